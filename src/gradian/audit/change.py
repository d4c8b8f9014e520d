"""The change of a setting, in the words of the file that states it."""

from __future__ import annotations

from typing import Any

from gradian.audit.finding import Fix
from gradian.audit.training_plan import rate_text
from gradian.run.settings import RunSettings

#: What other trainers call a setting, for one that no file states.
NAMES: dict[str, dict[str, str]] = {
    "axolotl": {
        "lr_scheduler_type": "lr_scheduler", "max_length": "sequence_len", "num_train_epochs": "num_epochs",
        "packing": "sample_packing", "per_device_train_batch_size": "micro_batch_size",
        "target_modules": "lora_target_modules",
    },
    "llama_factory": {"lora_r": "lora_rank", "max_length": "cutoff_len", "target_modules": "lora_target"},
    "torchtune": {
        "learning_rate": "optimizer.lr", "lora_r": "model.lora_rank", "lora_alpha": "model.lora_alpha",
        "max_grad_norm": "clip_grad_norm", "num_train_epochs": "epochs",
        "per_device_train_batch_size": "batch_size",
    },
}  # fmt: skip
#: Names of LoraConfig fields, which the settings carry under longer ones.
PEFT_NAMES = {"lora_r": "r"}


def key_of(settings: RunSettings, name: str, trainer: str = "") -> str:
    """What the user's own file calls the setting; the trainer's name for it when no file states it."""
    setting = settings.setting(name)
    if setting is not None:
        return setting.key
    return NAMES.get(trainer, {}).get(name) or PEFT_NAMES.get(name, name)


def change(
    settings: RunSettings, name: str, new: Any, *, trainer: str = "", note: str = "", old: Any = None
) -> Fix:
    """The change of setting `name` to `new`: `num_epochs 10 -> 3`.

    Args:
        note: said after the change, in brackets.
        old: the value in force where no file states it (a trainer's default).
    """
    setting = settings.setting(name)
    key = key_of(settings, name, trainer)
    before = setting.value if setting is not None else old
    shown = f"{key} {shown_value(name, before)} -> {shown_value(name, new)}"
    file = setting.file if setting is not None else None
    return Fix.change(key, before, new, text=f"{shown} ({note})" if note else shown, file=file)


def shown_value(name: str, value: Any) -> str:
    """A value as people write it in a configuration."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if name == "learning_rate" and isinstance(value, (int, float)):
        return rate_text(float(value))
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(str(item) for item in value)}]"
    return str(value)
