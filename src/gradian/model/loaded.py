"""A base model with its adapter on, ready to generate and to be differentiated.

Knows how to give either arm, the base and the tuned model. Knows nothing of rows, metrics or gradients.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from gradian.errors import AdapterError, ModelError
from gradian.model.adapter import AdapterFolder
from gradian.model.places import BaseFolder
from gradian.model.sites import Site, find_sites
from gradian.rows.tokenizer import Tokenizer

Arm = Literal["base", "tuned"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class LoadedModel:
    """Base and adapter in memory.

    Attributes:
        model: the PEFT model, in eval mode, every parameter frozen.
        tokenizer: the tokeniser of the run (its template is the one that was trained with), else the base's.
        adapter: the adapter's files.
        sites: where the adapter acts.
        device, dtype: as chosen.
        separate_base: why a second copy of the base serves the base arm; None when switching the adapter off is exact.
    """

    model: nn.Module
    tokenizer: Tokenizer
    adapter: AdapterFolder
    sites: tuple[Site, ...]
    base: BaseFolder
    device: torch.device
    dtype: torch.dtype
    separate_base: str | None
    trust_remote_code: bool = False
    _base: nn.Module | None = None

    @contextlib.contextmanager
    def arm(self, which: Arm) -> Iterator[nn.Module]:
        """The causal language model with that arm active.

        The base arm is the same model with the adapter switched off where that is exact, else the base loaded again.
        """
        if which == "tuned":
            yield self.model
        elif self.separate_base is not None:
            if self._base is None:
                self._base = _load_base(self.base, self.dtype, self.device, self.trust_remote_code)
            yield self._base
        else:
            try:
                with self.model.disable_adapter():  # type: ignore[operator]
                    yield self.model
            finally:
                _freeze(self.model)  # PEFT makes the adapter trainable when it switches it on again

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that the base model was made for; None when its config does not say."""
        value = getattr(self.model.config, "max_position_embeddings", None)
        return int(value) if isinstance(value, int) else None


def choose_device(device: str = "auto") -> torch.device:
    """`auto` takes CUDA, then Apple's MPS, then the CPU.

    Raises:
        ModelError: the named device is not there.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(
            f"device {device!r} cannot be used", why=str(error).splitlines()[0], fix="--device cpu"
        ) from None
    return chosen


def choose_dtype(dtype: str, device: torch.device, base_folder: Path) -> torch.dtype:
    """`auto` takes float32 off the GPU, and on it the dtype that the checkpoint was saved in."""
    if dtype != "auto":
        return DTYPES[dtype]
    if device.type != "cuda":
        return torch.float32
    config = json.loads((base_folder / "config.json").read_text(encoding="utf-8"))
    saved = config.get("dtype") or config.get("torch_dtype") or (config.get("text_config") or {}).get("dtype")
    return DTYPES.get(str(saved), torch.float32)


def load(
    base: BaseFolder,
    adapter: AdapterFolder,
    tokenizer: Tokenizer,
    *,
    dtype: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load base and adapter and check that they belong together.

    Args:
        base: from `find_base`. adapter: from `read_adapter`. tokenizer: the one of the run, else the base's.
        dtype: `auto`, `float32`, `bfloat16` or `float16`.
        device: `auto`, `cpu`, `cuda`, `cuda:1`, `mps`.

    Raises:
        ModelError: the base cannot be loaded, or the device is not there.
        AdapterError: the adapter does not fit the base; the message names the tensor.
    """
    chosen_device = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen_device, base.path)
    plain = _load_base(base, chosen_dtype, chosen_device, trust_remote_code)
    check_fit(plain, adapter, base.name)
    model = _put_on(plain, adapter)
    sites = find_sites(model)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        adapter=adapter,
        sites=sites,
        base=base,
        device=chosen_device,
        dtype=chosen_dtype,
        separate_base=adapter.changes_base,
        trust_remote_code=trust_remote_code,
    )


def check_fit(base: nn.Module, adapter: AdapterFolder, base_name: str) -> None:
    """Every LoRA tensor must have a module of its size in the base model.

    Raises:
        AdapterError: names the first tensor that does not fit, how many more, and the base that the adapter names.
    """
    modules = dict(base.named_modules())
    faults = []
    for site, blocks in adapter.sites.items():
        module = modules.get(site)
        weight = getattr(module, "weight", None)
        if module is None or weight is None:
            faults.append((f"base_model.model.{site}.lora_A.weight", "the base model has no such module"))
            continue
        features_in = int(getattr(module, "in_features", 0) or getattr(module, "nx", 0) or weight.shape[-1])
        features_out = int(getattr(module, "out_features", 0) or getattr(module, "nf", 0) or weight.shape[0])
        if blocks["A"][1] != features_in:
            faults.append(
                (
                    f"base_model.model.{site}.lora_A.weight",
                    f"takes {blocks['A'][1]} inputs, the module {features_in}",
                )
            )
        elif blocks["B"][0] != features_out:
            faults.append(
                (
                    f"base_model.model.{site}.lora_B.weight",
                    f"gives {blocks['B'][0]} outputs, the module {features_out}",
                )
            )
        elif blocks["A"][0] != blocks["B"][1]:
            faults.append(
                (
                    f"base_model.model.{site}.lora_B.weight",
                    f"rank {blocks['B'][1]}, but lora_A has {blocks['A'][0]}",
                )
            )
    if not faults:
        return
    tensor, reason = faults[0]
    trained_on = adapter.config.get("base_model_name_or_path")
    more = f" (and {len(faults) - 1} more tensors)" if len(faults) > 1 else ""
    raise AdapterError(
        f"the adapter does not fit the base model {base_name}{more}",
        where=tensor,
        why=reason,
        fix=f"the adapter names its base: --base-model {trained_on}"
        if trained_on
        else "give the base that was trained",
    )


def _load_base(
    base: BaseFolder, dtype: torch.dtype, device: torch.device, trust_remote_code: bool
) -> nn.Module:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model: nn.Module = AutoModelForCausalLM.from_pretrained(
            str(base.path), dtype=dtype, trust_remote_code=trust_remote_code, use_safetensors=True
        )
        model = model.to(device)
    except torch.OutOfMemoryError:
        raise ModelError(
            "the base model does not fit on the device",
            where=str(device),
            fix="--dtype bfloat16, or --device cpu",
        ) from None
    except Exception as error:
        raise _cannot_load(base, error, trust_remote_code) from None
    return _freeze(model)


def _cannot_load(base: BaseFolder, error: Exception, trust_remote_code: bool) -> ModelError:
    text = str(error).strip()
    if "trust_remote_code" in text and not trust_remote_code:
        return ModelError(
            "this model brings its own code, which is not run unless you ask",
            where=base.name,
            fix="read the code, then pass --trust-remote-code",
        )
    return ModelError(
        "the base model cannot be loaded",
        where=base.name,
        why=text.splitlines()[0] if text else type(error).__name__,
    )


def _put_on(base: nn.Module, adapter: AdapterFolder) -> nn.Module:
    from peft import PeftModel

    try:
        model: nn.Module = PeftModel.from_pretrained(base, str(adapter.path), is_trainable=False)
    except Exception as error:
        raise AdapterError(
            "PEFT cannot put this adapter on the base model",
            where=str(adapter.path),
            why=(str(error).strip() or type(error).__name__).splitlines()[0],
        ) from None
    model = _freeze(model)
    _check_loaded(model, adapter)
    return model


def _check_loaded(model: nn.Module, adapter: AdapterFolder) -> None:
    """PEFT warns about tensors that it could not place and goes on with random ones, which would then be explained.

    Raises:
        AdapterError: names the first tensor that is not in the model as it is in the file, or is not finite.
    """
    from safetensors import safe_open

    loaded = {site.name: site for site in find_sites(model)}
    for name in sorted(loaded.keys() ^ adapter.sites.keys()):
        in_file = name in adapter.sites
        raise AdapterError(
            "PEFT put no linear LoRA module here"
            if in_file
            else "the adapter file lacks this module's tensors",
            where=f"base_model.model.{name}",
            why="only LoRA on linear modules (and GPT-2's Conv1D) can be explained"
            if in_file
            else "adapter_config.json targets it, so PEFT gives it random values that were never trained",
        )
    with safe_open(str(adapter.path / "adapter_model.safetensors"), framework="pt") as file:
        for name, site in loaded.items():
            for side, weight in (("A", site.lora_a.weight), ("B", site.lora_b.weight)):
                tensor = f"base_model.model.{name}.lora_{side}.weight"
                wanted, have = file.get_tensor(tensor), weight.detach().cpu()
                if not torch.isfinite(wanted).all():
                    raise AdapterError(
                        "this tensor holds NaN or infinite values",
                        where=tensor,
                        why="training broke down; every output of the tuned model is NaN",
                        fix=f"gradian diagnose --run {adapter.path}",
                    )
                if not torch.equal(wanted.to(have.dtype), have):
                    raise AdapterError(
                        "PEFT did not load this tensor as it is in the file",
                        where=tensor,
                        why="the adapter would be explained with weights that were never trained",
                        fix="pip install -U peft",
                    )


def _freeze(model: nn.Module) -> nn.Module:
    # Dropout would make every gradient random, and a weight that wants a gradient costs one more product a layer.
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model
