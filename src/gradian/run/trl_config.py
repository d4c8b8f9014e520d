"""A configuration file of `trl sft` (or of a script with TrlParser): the names are SFTConfig's and
ModelConfig's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradian.run.settings import SettingsBuilder

#: ModelConfig key -> normalised name.
NAMES: Mapping[str, str] = {
    "lora_modules_to_save": "modules_to_save",
    "lora_target_modules": "target_modules",
    "lora_task_type": "task_type",
}
COMMON_KEYS = frozenset(
    {"dataset_name", "learning_rate", "num_train_epochs", "per_device_train_batch_size", "use_peft",
    "max_length",
     "max_seq_length", "gradient_accumulation_steps", "lora_r", "dataset_text_field", "assistant_only_loss"}
)  # fmt: skip
OWN_KEYS = frozenset({"use_peft", "max_length", "max_seq_length", "dataset_text_field", "assistant_only_loss",
                      "completion_only_loss", "packing", "lora_target_modules"})  # fmt: skip


def is_trl_config(config: Mapping[str, Any]) -> bool:
    """True when the mapping is a TRL configuration (asked after the trainers whose keys are more telling)."""
    return (
        "model_name_or_path" in config
        and len(COMMON_KEYS & config.keys()) >= 2
        and bool(OWN_KEYS & config.keys())
    )


def add_trl_settings(builder: SettingsBuilder, file: str, config: Mapping[str, Any]) -> None:
    """Adds the settings of a TRL configuration file."""
    builder.add(file, config, NAMES)
