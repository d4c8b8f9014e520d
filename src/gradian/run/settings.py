"""The settings of a run under one set of names, each with the files that state it.

Names are those of transformers' `TrainingArguments` and TRL's `SFTConfig`; the LoRA settings are `lora_r`,
`lora_alpha`, `lora_dropout` and PEFT's own names. A setting that no file states is *absent*: it is not in
here, and a trainer's default is never filled in. Knows nothing of any trainer's behaviour (see `profile`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Settings that are counts or rates. Text is turned into a number: YAML 1.1 reads `2e-4` as text.
NUMERIC = frozenset(
    {
        "adam_beta1", "adam_beta2", "adam_epsilon", "early_stopping_patience", "eval_steps",
        "gradient_accumulation_steps", "learning_rate", "logging_steps", "lora_alpha", "lora_dropout",
        "lora_r", "loraplus_lr_ratio", "max_grad_norm", "max_length", "max_seq_length", "max_steps",
        "neftune_noise_alpha", "num_devices", "num_train_epochs", "per_device_eval_batch_size",
        "per_device_train_batch_size", "save_steps", "save_total_limit", "seed", "total_train_batch_size",
        "val_size", "warmup_ratio", "warmup_steps", "weight_decay",
    }
)  # fmt: skip

#: Names that mean the same in every source.
ALIASES: Mapping[str, str] = {
    "evaluation_strategy": "eval_strategy",  # renamed in transformers 4.41
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "model_name_or_path": "base_model",
    "base_model_name_or_path": "base_model",
}


@dataclass(frozen=True, slots=True)
class SeenValue:
    """One statement of a setting: the `value`, the `file` (relative to the run folder) and the `key` in
    it.
    """

    value: Any
    file: str
    key: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting and every statement of it, the most trusted first."""

    name: str
    seen: tuple[SeenValue, ...]

    @property
    def value(self) -> Any:
        """The value of the most trusted statement."""
        return self.seen[0].value

    @property
    def file(self) -> str:
        """The file of the most trusted statement."""
        return self.seen[0].file

    @property
    def key(self) -> str:
        """The key in that file."""
        return self.seen[0].key

    @property
    def disagreeing(self) -> tuple[SeenValue, ...]:
        """The first statement of each distinct value, when there is more than one value; else empty."""
        distinct: list[SeenValue] = []
        for seen in self.seen:
            if not any(_same(seen.value, other.value) for other in distinct):
                distinct.append(seen)
        return tuple(distinct) if len(distinct) > 1 else ()


@dataclass(frozen=True)
class RunSettings:
    """Every setting that some file of the run states, by its normalised name."""

    values: Mapping[str, Setting] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.values.values())

    def setting(self, name: str) -> Setting | None:
        """The setting with its provenance; None when absent."""
        return self.values.get(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value; `default` when absent. A setting that a file states as null is None."""
        setting = self.values.get(name)
        return default if setting is None else setting.value

    def number(self, name: str) -> float | None:
        """The value as a finite float; None when absent, null, or text such as `auto`."""
        value = self.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        return None

    def integer(self, name: str) -> int | None:
        """The value as an int; None when absent, null, text, not whole, or beyond what a float holds exactly."""
        value = self.number(name)
        return int(value) if value is not None and abs(value) < 2**53 and value == int(value) else None

    def flag(self, name: str) -> bool | None:
        """The value when it is a boolean; None when absent, null or text such as `auto`."""
        value = self.get(name)
        return value if isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        """The value when it is a non-empty text; None otherwise."""
        value = self.get(name)
        return value if isinstance(value, str) and value else None

    def strings(self, name: str) -> tuple[str, ...] | None:
        """The value when it is a list of texts, in the file's order; a single text becomes one; else None."""
        value = self.get(name)
        if isinstance(value, str):
            return (value,)
        if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
            return tuple(value)
        return None

    def where(self, name: str) -> str | None:
        """`file: key` of the value, for a report; None when absent."""
        setting = self.values.get(name)
        return f"{setting.file}: {setting.key}" if setting else None


def normalise(name: str, value: Any) -> Any:
    """The value of setting `name` in its plain form: numbers from text, `none` and `null` as None."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() in ("none", "null", "~", ""):
        return None
    if name in NUMERIC:
        try:
            number = float(text)
        except ValueError:
            return text
        whole = number.is_integer() and not any(mark in text.lower() for mark in ".e")
        return int(number) if whole else number
    return text


class SettingsBuilder:
    """Collects statements, the most trusted source first, into `RunSettings`."""

    def __init__(self) -> None:
        self._seen: dict[str, list[SeenValue]] = {}

    def add(self, file: str, values: Mapping[str, Any], names: Mapping[str, str] | None = None) -> None:
        """Adds the settings of one file.

        Args:
            file: the path relative to the run folder.
            values: key -> value, as the file has them.
            names: key -> normalised name, for the keys of this source that are called differently.
        """
        for key, value in values.items():
            name = (names or {}).get(key) or ALIASES.get(key, key)
            self.add_one(file, key, name, value)

    def add_one(self, file: str, key: str, name: str, value: Any) -> None:
        """Adds one statement under its normalised `name`.

        transformers writes `<EOS_TOKEN>` in place of every `*_token` in the arguments that it logs, which
        states nothing.
        """
        if value == f"<{key.upper()}>":
            return
        self._seen.setdefault(name, []).append(SeenValue(normalise(name, value), file, key))

    def build(self) -> RunSettings:
        """The settings, in the order of their names."""
        return RunSettings({name: Setting(name, tuple(self._seen[name])) for name in sorted(self._seen)})


def first_present(settings: RunSettings, names: Iterable[str]) -> Setting | None:
    """The first of `names` that some file states with a value other than null."""
    for name in names:
        setting = settings.setting(name)
        if setting is not None and setting.value is not None:
            return setting
    return None


def _same(left: Any, right: Any) -> bool:
    numbers = (int, float)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, numbers) and isinstance(right, numbers):
        return left == right or math.isclose(left, right, rel_tol=1e-6)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return sorted(map(str, left)) == sorted(map(str, right))
    if isinstance(left, str) and isinstance(right, str):
        return left.lower() == right.lower()
    return bool(left == right)
