"""The places where a LoRA adapter acts, sorted by their path in the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Site:
    """A LoRA-adapted linear module `y = W x + s B A x`.

    Attributes:
        name: module path in the base model (`model.layers.0.self_attn.q_proj`).
        lora_a, lora_b: the two linear modules; weights [r, in_features] and [out_features, r].
        scaling: s, that is alpha/r, or alpha/sqrt(r) with rsLoRA; the pattern's alpha and r where there is one.
    """

    name: str
    lora_a: nn.Linear
    lora_b: nn.Linear
    scaling: float

    @property
    def rank(self) -> int:
        return self.lora_a.weight.shape[0]

    @property
    def in_features(self) -> int:
        return self.lora_a.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.lora_b.weight.shape[0]


def find_sites(model: nn.Module, adapter_name: str = "default") -> tuple[Site, ...]:
    """All LoRA-adapted linear modules of a PEFT model.

    A module that appears under several names (tied modules) is listed once; its gradient is the sum over its uses.
    """
    sites = []
    seen: set[int] = set()
    for name, module in model.named_modules():
        lora_a: Any = getattr(module, "lora_A", None)
        lora_b: Any = getattr(module, "lora_B", None)
        if not isinstance(lora_a, nn.ModuleDict) or adapter_name not in lora_a:
            continue
        a, b = lora_a[adapter_name], lora_b[adapter_name]
        if not (isinstance(a, nn.Linear) and isinstance(b, nn.Linear)) or id(a) in seen:
            continue
        seen.add(id(a))
        scaling = float(module.scaling[adapter_name])
        sites.append(Site(name.removeprefix("base_model.model."), a, b, scaling))
    return tuple(sorted(sites, key=lambda site: site.name))
