"""The adapter folder, before anything is loaded: is it one that Gradian can explain, and does it fit the base?

Only the config and the header of the safetensors file are read here. A `.bin` adapter is a pickle, which can run
code when it is opened, so it is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradian.errors import AdapterError, InputError

WEIGHTS = "adapter_model.safetensors"
PICKLED_WEIGHTS = "adapter_model.bin"
CONFIG = "adapter_config.json"

#: Initialisations that change the base weights when the adapter is put on, so that switching the adapter off
#: does not give the base model back (PEFT, `LoraConfig.init_lora_weights`).
BASE_CHANGING_INITS = ("pissa", "olora", "corda", "eva", "loftq", "lora_ga", "orthogonal")

_LORA_NAME = re.compile(r"^base_model\.model\.(?P<site>.+)\.lora_(?P<block>[AB])\.weight$")


@dataclass(frozen=True)
class AdapterFolder:
    """An adapter as it lies on disk.

    Attributes:
        path: the folder that holds `adapter_config.json`.
        config: its content.
        shapes: tensor name -> shape, from the safetensors header.
        sites: module path in the base model -> {"A": shape [r, in], "B": shape [out, r]}, sorted by path.
        other: names of the trained tensors that are no plain LoRA block (modules_to_save, DoRA magnitudes,
            embedding LoRA, biases, trainable tokens): they cannot be attributed.
    """

    path: Path
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    sites: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    other: tuple[str, ...] = ()

    @property
    def trained_parameters(self) -> int:
        """Number of trained values in the file."""
        return sum(_size(shape) for shape in self.shapes.values())

    def share_of(self, names: tuple[str, ...]) -> float:
        """Share of the trained values that the named tensors hold, in [0, 1]."""
        return sum(_size(self.shapes[name]) for name in names) / max(1, self.trained_parameters)

    @property
    def site_shapes(self) -> list[tuple[str, int, int, int]]:
        """(site, rank, in_features, out_features), sorted by path: what a gradient layout is made of."""
        return [(site, b["A"][0], b["A"][1], b["B"][0]) for site, b in self.sites.items()]

    @property
    def changes_base(self) -> str | None:
        """Why switching the adapter off would not give the base model back, or None."""
        init = self.config.get("init_lora_weights", True)
        if isinstance(init, str) and init.lower().startswith(BASE_CHANGING_INITS):
            return f"init_lora_weights={init} changes the base weights"
        if self.config.get("bias", "none") != "none":
            return f"bias={self.config['bias']} trains the base model's own biases"
        if self.config.get("layer_replication"):
            return "layer_replication repeats layers of the base model"
        return None


def find_adapter(path: str | Path) -> Path:
    """The folder with `adapter_config.json`: the path itself, its `adapter/`, or its newest checkpoint.

    Raises:
        InputError: the path does not exist.
        AdapterError: no adapter lies there.
    """
    folder = Path(path)
    if not folder.exists():
        raise InputError(
            "adapter folder not found",
            where=str(path),
            why="a hub id is not resolved for adapters: the report must name exactly the files that it explains",
            fix=f"hf download {path} --local-dir ./adapter" if not str(path).startswith((".", "/")) else None,
        )
    if folder.is_file():
        folder = folder.parent
    checkpoints = sorted(
        (p for p in folder.glob("checkpoint-*") if p.name.rpartition("-")[2].isdigit()),
        key=lambda p: int(p.name.rpartition("-")[2]),
        reverse=True,
    )
    for candidate in (folder, folder / "adapter", *checkpoints):
        if (candidate / CONFIG).is_file():
            return candidate
    if any(folder.glob("model*.safetensors")):
        raise AdapterError(
            "this is a full model, not an adapter",
            where=str(path),
            why="Gradian explains LoRA adapters; a merged model no longer holds the update on its own",
            fix="give the folder that PEFT saved (adapter_config.json and adapter_model.safetensors)",
        )
    raise AdapterError(
        f"no {CONFIG} here, in adapter/ or in a checkpoint",
        where=str(path),
        fix="give the folder that the trainer's save_model() or PEFT's save_pretrained() wrote",
    )


def read_adapter(path: str | Path) -> AdapterFolder:
    """Read config and tensor names, and refuse what Gradian cannot explain.

    Raises:
        AdapterError: a pickle, another PEFT method, no tensors, a damaged file; the message names the way out.
    """
    folder = find_adapter(path)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{CONFIG} cannot be read", where=str(folder / CONFIG), why=str(error)) from None
    if not isinstance(config, dict):
        raise AdapterError(f"{CONFIG} is not an object", where=str(folder / CONFIG))
    kind = config.get("peft_type")
    if kind != "LORA":
        raise AdapterError(
            f"peft_type {kind!r} is not supported",
            where=str(folder / CONFIG),
            why="the gradients are those of LoRA blocks (plain, rsLoRA, DoRA, rank and alpha patterns)",
        )
    shapes = _header(folder)
    sites: dict[str, dict[str, tuple[int, ...]]] = {}
    other = []
    for name, shape in sorted(shapes.items()):
        match = _LORA_NAME.match(name)
        if match and len(shape) == 2:
            sites.setdefault(match["site"], {})[match["block"]] = shape
        else:
            other.append(name)
    if not sites:
        raise AdapterError(
            "the adapter file holds no LoRA tensor",
            where=str(folder / WEIGHTS),
            why=f"{len(shapes)} tensors, none named base_model.model.<module>.lora_A.weight",
            fix="gradian diagnose --run " + str(folder),
        )
    for site, blocks in sites.items():
        missing = {"A", "B"} - set(blocks)
        if missing:
            raise AdapterError(
                f"half of a LoRA block is missing: lora_{missing.pop()}", where=f"base_model.model.{site}"
            )
    return AdapterFolder(folder, config, shapes, dict(sorted(sites.items())), tuple(other))


def not_attributed(adapter: AdapterFolder) -> tuple[str, ...]:
    """What was trained but has no LoRA block of its own: one sentence a kind, with its share of the trained values."""
    kinds: dict[str, list[str]] = {}
    for name in adapter.other:
        tail = name.removeprefix("base_model.model.")
        if "lora_magnitude_vector" in name:
            kind = "DoRA magnitudes"
        elif "lora_embedding" in name:
            kind = "LoRA on embeddings"
        elif "trainable_tokens_delta" in name:
            kind = "trainable token embeddings"
        elif ".lora_" in name:
            kind = "LoRA blocks of another kind (convolutions, biases)"
        else:
            kind = f"modules_to_save: {tail.rpartition('.')[0]}"
        kinds.setdefault(kind, []).append(name)
    return tuple(
        f"{kind}: {adapter.share_of(tuple(names)):.1%} of the trained parameters"
        for kind, names in sorted(kinds.items())
    )


def _header(folder: Path) -> dict[str, tuple[int, ...]]:
    weights = folder / WEIGHTS
    if not weights.is_file():
        if (folder / PICKLED_WEIGHTS).is_file():
            raise AdapterError(
                "a pickled adapter is not read",
                where=str(folder / PICKLED_WEIGHTS),
                why="opening a pickle can run any code that its author put there",
                fix=(
                    'if you trust the file, convert it once: python -c "import torch, safetensors.torch as s; '
                    f"s.save_file(torch.load('{PICKLED_WEIGHTS}', weights_only=True), '{WEIGHTS}')\""
                ),
            )
        raise AdapterError(
            f"{WEIGHTS} is missing", where=str(folder), fix="save the adapter with save_pretrained()"
        )
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(weights), framework="numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise AdapterError("the adapter file is damaged", where=str(weights), why=str(error)) from None


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for dimension in shape:
        size *= dimension
    return size
