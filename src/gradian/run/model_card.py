"""The model card (`README.md`) that trainers write: versions, tags, hyperparameters, an embedded axolotl
config.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradian.run.artefact import MAX_CONFIG_BYTES, ArtefactError, parse_yaml_object, read_text

#: `- TRL: 1.16.0` (TRL's card), `- Transformers 4.43.3` (transformers' card), `- PEFT 0.12.0` (PEFT's
#: addition).
VERSION_LINE = re.compile(
    r"^\s*[-*]\s+(TRL|Transformers|Pytorch|PyTorch|Datasets|Tokenizers|PEFT|Unsloth|Axolotl|Accelerate)"
    r"\s*:?\s+v?(\d[\w.+-]*)\s*$",
    re.MULTILINE | re.IGNORECASE,
)
HYPERPARAMETER_LINE = re.compile(r"^\s*-\s+([a-z_]+):\s*(.+?)\s*$", re.MULTILINE)
AXOLOTL_VERSION = re.compile(r"axolotl version:\s*`?([\w.+-]+)")

#: Hyperparameter bullets of transformers' card -> normalised names.
CARD_NAMES: Mapping[str, str] = {
    "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "lr_scheduler_warmup_ratio": "warmup_ratio",
    "lr_scheduler_warmup_steps": "warmup_steps",
    "num_epochs": "num_train_epochs",
    "training_steps": "max_steps",
    "optimizer": "optimizer_description",
}


@dataclass(frozen=True)
class ModelCard:
    """What a model card says.

    Attributes:
        versions: `trl`, `transformers`, `torch`, ... -> version.
        tags: the tags of its front matter, lower case.
        base_model: the front matter's base model, when it names one.
        hyperparameters: bullet -> value, as transformers writes them; empty for TRL's card.
        axolotl: the embedded axolotl config; None without one. axolotl_version: beside it.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    base_model: str | None = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    axolotl: Mapping[str, Any] | None = None
    axolotl_version: str | None = None


def read_model_card(path: Path) -> ModelCard:
    """Reads a model card. Raises ArtefactError when the file cannot be read as text."""
    return parse_model_card(read_text(path, MAX_CONFIG_BYTES))


def parse_model_card(text: str) -> ModelCard:
    """Parses a model card. Damaged front matter or an unreadable axolotl block is left out: cards are
    prose.
    """
    text = text.replace("\r\n", "\n")
    front = _front_matter(text)
    tags = front.get("tags")
    tag_list = [tags] if isinstance(tags, str) else tags if isinstance(tags, list) else []
    base = front.get("base_model")
    base = base[0] if isinstance(base, list) and base else base
    versions: dict[str, str] = {}
    start = text.rfind("Framework versions")
    if start >= 0:
        for name, version in VERSION_LINE.findall(text[start:]):
            key = name.lower()
            versions.setdefault("torch" if key == "pytorch" else key, version)
    axolotl, axolotl_version = _axolotl_block(text)
    return ModelCard(
        versions=versions,
        tags=tuple(str(tag).lower() for tag in tag_list),
        base_model=base if isinstance(base, str) else None,
        hyperparameters=_hyperparameters(text),
        axolotl=axolotl,
        axolotl_version=axolotl_version,
    )


def _front_matter(text: str) -> dict[str, Any]:
    if not text.startswith("---\n"):
        return {}
    end = text.find("\n---", 4)
    if end < 0:
        return {}
    try:
        return parse_yaml_object(text[4:end])
    except ArtefactError:
        return {}


def _axolotl_block(text: str) -> tuple[dict[str, Any] | None, str | None]:
    """The yaml that axolotl embeds under "See axolotl config", and its version."""
    start = text.find("See axolotl config")
    if start < 0:
        return None, None
    version = AXOLOTL_VERSION.search(text, start)
    opening = re.compile(r"^```ya?ml\s*$", re.MULTILINE).search(text, start)
    closing = text.find("\n```", opening.end()) if opening else -1
    if opening is None or closing < 0:
        return None, version[1] if version else None
    try:
        return parse_yaml_object(text[opening.end() : closing]), version[1] if version else None
    except ArtefactError:
        return None, version[1] if version else None


def _hyperparameters(text: str) -> dict[str, Any]:
    start = text.find("### Training hyperparameters")
    if start < 0:
        return {}
    section = text[start + 3 :]
    end = section.find("\n#")
    return dict(HYPERPARAMETER_LINE.findall(section if end < 0 else section[:end]))
