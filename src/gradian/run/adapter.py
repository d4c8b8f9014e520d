"""The adapter of a run: PEFT's `adapter_config.json` and the header of its weights.

Weights in `.bin` or `.pt` files are pickles: they are named and never opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from gradian.run.artefact import MAX_CONFIG_BYTES, ArtefactError, RunProblem, read_json_object
from gradian.run.safetensors_header import Tensor, TensorFile, TensorScan, read_header, scan_tensor

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
PICKLE_NAMES = ("adapter_model.bin", "adapter_model.pt")

#: `base_model.model.<module path>.lora_A[.<adapter>][.weight]`, the parts of a PEFT tensor name.
LORA_KEY = re.compile(
    r"^(?P<prefix>base_model\.model\.)?(?P<module>.+?)\."
    r"(?P<matrix>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)(?P<suffix>(\.\w+)*)$"
)
Matrix = Literal["lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"]


@dataclass(frozen=True)
class AdapterFile:
    """An adapter on disk.

    Attributes:
        path: the folder. name: the same, relative to the run folder (`.` for the run folder itself).
        config: `adapter_config.json`; empty when there is none or it cannot be read (see has_config).
        weights: the header of `adapter_model.safetensors`; None when there is none or it is damaged.
        damage: why the weights file cannot be used; None when it can, or when there is none.
        pickle: the name of a pickle weights file, which is not read; None without one.
        weights_bytes: size of the weights file on disk; None without one.
    """

    path: Path
    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    weights: TensorFile | None = None
    damage: str | None = None
    pickle: str | None = None
    weights_bytes: int | None = None

    @property
    def has_config(self) -> bool:
        """The config was there and could be read."""
        return bool(self.config)

    @property
    def files(self) -> tuple[str, ...]:
        """What was read, relative to the run folder."""
        read = [CONFIG_NAME] * self.has_config + [WEIGHTS_NAME] * (self.weights is not None)
        return tuple(inside(self.name, file) for file in read)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the weights, by name; empty without readable weights."""
        return self.weights.tensors if self.weights else ()

    def matrices(self, kind: str) -> tuple[Tensor, ...]:
        """The tensors of one kind: `lora_A`, `lora_B`, ... (embedding adapters are a kind of their own)."""
        return tuple(tensor for tensor in self.tensors if _matrix(tensor.name) == kind)

    @cached_property
    def b_scans(self) -> Mapping[str, TensorScan]:
        """A scan of every trained-from-zero matrix (`lora_B`, and `lora_embedding_B`), by tensor name.

        PEFT initialises B to zero and A at random for linear layers; for embeddings it is the other way round
        (A zero, B normal), so there A is scanned.
        """
        chosen = self.matrices("lora_B") + self.matrices("lora_embedding_A")
        return {tensor.name: self.scan(tensor) for tensor in chosen}

    @cached_property
    def scans(self) -> Mapping[str, TensorScan]:
        """A scan of every floating-point tensor, by name."""
        return {t.name: self.b_scans.get(t.name) or self.scan(t) for t in self.tensors if t.dtype[:1] in "FB"}

    def scan(self, tensor: Tensor) -> TensorScan:
        """Scans one tensor's values."""
        assert self.weights is not None, "a tensor comes from a weights file"
        return scan_tensor(self.weights.path, tensor)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved step: `checkpoint-<step>` (torchtune: `epoch_<n>`, with the epoch as the step)."""

    step: int
    path: Path
    name: str
    adapter: AdapterFile | None


def has_adapter(folder: Path) -> bool:
    """True when the folder holds an adapter's config or weights."""
    return any((folder / name).exists() for name in (CONFIG_NAME, WEIGHTS_NAME, *PICKLE_NAMES))


def read_adapter(folder: Path, name: str) -> tuple[AdapterFile, list[RunProblem]]:
    """Reads the adapter in `folder`; `name` is the folder relative to the run folder."""
    problems: list[RunProblem] = []
    config: dict[str, Any] = {}
    if (folder / CONFIG_NAME).exists():
        try:
            config = read_json_object(folder / CONFIG_NAME, MAX_CONFIG_BYTES)
        except ArtefactError as error:
            problems.append(RunProblem(inside(name, CONFIG_NAME), str(error)))
    weights, damage, size = None, None, None
    if (folder / WEIGHTS_NAME).exists():
        size = (folder / WEIGHTS_NAME).stat().st_size
        try:
            weights = read_header(folder / WEIGHTS_NAME)
        except ArtefactError as error:
            damage = str(error)
            problems.append(RunProblem(inside(name, WEIGHTS_NAME), damage))
    pickle = next((file for file in PICKLE_NAMES if (folder / file).exists()), None)
    if pickle and weights is None and damage is None:
        size = (folder / pickle).stat().st_size
    if pickle:
        problems.append(RunProblem(inside(name, pickle), "is a pickle, so it was not read", "not_read"))
    return AdapterFile(folder, name, config, weights, damage, pickle, size), problems


def inside(folder: str, file: str) -> str:
    """A path relative to the run folder."""
    return file if folder in ("", ".") else f"{folder}/{file}"


def _matrix(name: str) -> str | None:
    match = LORA_KEY.match(name)
    return match["matrix"] if match else None
