"""LLaMA-Factory's configuration: the yaml or json that a run was started with, or the web UI's copy of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradian.run.settings import SettingsBuilder

#: LLaMA-Factory key -> normalised name. All other keys are transformers' own.
NAMES: Mapping[str, str] = {
    "additional_target": "modules_to_save",
    "adapter_name_or_path": "init_adapter",
    "create_new_adapter": "create_new_adapter",
    "cutoff_len": "max_length",
    "flash_attn": "attn_implementation",
    "lora_rank": "lora_r",
    "lora_target": "target_modules",
    "template": "chat_template",
    "train_on_prompt": "train_on_inputs",
}
OWN_KEYS = frozenset(
    {"finetuning_type", "stage", "template", "cutoff_len", "lora_rank", "lora_target", "dataset_dir",
    "neat_packing",
     "overwrite_cache", "preprocessing_num_workers"}
)  # fmt: skip
LISTS = ("lora_target", "additional_target")


def is_llama_factory_config(config: Mapping[str, Any]) -> bool:
    """True when the mapping is a LLaMA-Factory configuration."""
    return "model_name_or_path" in config and len(OWN_KEYS & config.keys()) >= 2


def add_llama_factory_settings(builder: SettingsBuilder, file: str, config: Mapping[str, Any]) -> None:
    """Adds the settings of a LLaMA-Factory configuration. Comma-separated lists are split; `all` is
    all-linear.
    """
    values = dict(config)
    for key in LISTS:
        value = values.get(key)
        if isinstance(value, str):
            parts = [part.strip() for part in value.split(",") if part.strip()]
            values[key] = "all-linear" if parts == ["all"] and key == "lora_target" else parts
    if values.get("quantization_bit") in (4, 8):
        builder.add_one(file, "quantization_bit", f"load_in_{values['quantization_bit']}bit", True)
    builder.add(file, values, NAMES)
