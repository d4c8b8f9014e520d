"""axolotl's configuration: the yaml a run was started with, or its copy inside the model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradian.run.settings import SettingsBuilder

#: axolotl key -> normalised name.
NAMES: Mapping[str, str] = {
    "adapter": "peft_type",
    "eval_sample_packing": "eval_packing",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_model_dir": "init_adapter",
    "lora_modules_to_save": "modules_to_save",
    "lora_r": "lora_r",
    "lora_target_modules": "target_modules",
    "lora_target_parameters": "target_parameters",
    "lr_scheduler": "lr_scheduler_type",
    "micro_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "num_epochs": "num_train_epochs",
    "optimizer": "optim",
    "peft_init_lora_weights": "init_lora_weights",
    "peft_trainable_token_indices": "trainable_token_indices",
    "peft_use_dora": "use_dora",
    "peft_use_rslora": "use_rslora",
    "sample_packing": "packing",
    "sequence_len": "max_length",
    "train_on_inputs": "train_on_inputs",
    "val_set_size": "val_size",
}
#: Fields of axolotl's pickled training arguments -> normalised name (axolotl/core/training_args_base.py).
ARGUMENT_NAMES: Mapping[str, str] = {
    "eval_sample_packing": "eval_packing",
    "max_seq_length": "max_length",
    "sample_packing": "packing",
}
#: Keys that only axolotl has; two of them beside a base model make a configuration axolotl's.
OWN_KEYS = frozenset(
    {"sequence_len", "micro_batch_size", "lora_target_linear", "val_set_size", "sample_packing", "lora_r",
     "pad_to_sequence_len", "excess_length_strategy", "dataset_prepared_path"}
)  # fmt: skip


def is_axolotl_config(config: Mapping[str, Any]) -> bool:
    """True when the mapping is an axolotl configuration."""
    return "base_model" in config and len(OWN_KEYS & config.keys()) >= 2


def add_axolotl_settings(builder: SettingsBuilder, file: str, config: Mapping[str, Any]) -> None:
    """Adds the settings of an axolotl configuration, those of the first dataset among them."""
    builder.add(file, {key: value for key, value in config.items() if key not in ("datasets", "bf16")}, NAMES)
    bf16 = config.get("bf16")
    if bf16 is not None:  # `auto` and `full` both mean bfloat16 where the device has it
        builder.add_one(file, "bf16", "bf16", True if bf16 == "full" else bf16)
    if config.get("lora_target_linear") is True and not config.get("lora_target_modules"):
        builder.add_one(file, "lora_target_linear", "target_modules", "all-linear")
    datasets = config.get("datasets")
    first = (
        next((item for item in datasets if isinstance(item, dict)), {}) if isinstance(datasets, list) else {}
    )
    kind = first.get("type")
    if isinstance(kind, str):
        builder.add_one(file, "datasets[0].type", "dataset_type", kind)
    elif isinstance(kind, dict):
        builder.add_one(file, "datasets[0].type", "dataset_type", "user_defined")
    for key in ("roles_to_train", "train_on_eos", "train_on_eot", "chat_template", "split"):
        if key in first:
            name = "dataset_chat_template" if key == "chat_template" else key
            builder.add_one(file, f"datasets[0].{key}", name, first[key])
