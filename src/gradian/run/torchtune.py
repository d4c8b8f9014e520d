"""torchtune's `torchtune_config.yaml` and its plain-text metric log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradian.run.artefact import ArtefactError, parse_json, read_text
from gradian.run.log_history import LogHistory, split_lines
from gradian.run.settings import SettingsBuilder

CONFIG_NAME = "torchtune_config.yaml"
LOG_GLOB = "log_*.txt"

#: Path in the configuration -> normalised name.
NAMES: Mapping[str, str] = {
    "batch_size": "per_device_train_batch_size",
    "clip_grad_norm": "max_grad_norm",
    "dataset._component_": "dataset_type",
    "dataset.packed": "packing",
    "dataset.train_on_input": "train_on_inputs",
    "epochs": "num_train_epochs",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "lr_scheduler._component_": "lr_scheduler_type",
    "lr_scheduler.num_warmup_steps": "warmup_steps",
    "model._component_": "model_component",
    "model.apply_lora_to_mlp": "apply_lora_to_mlp",
    "model.apply_lora_to_output": "apply_lora_to_output",
    "model.lora_alpha": "lora_alpha",
    "model.lora_attn_modules": "target_modules",
    "model.lora_dropout": "lora_dropout",
    "model.lora_rank": "lora_r",
    "model.use_dora": "use_dora",
    "optimizer._component_": "optim",
    "optimizer.lr": "learning_rate",
    "optimizer.weight_decay": "weight_decay",
    "tokenizer.max_seq_len": "max_length",
    "tokenizer.prompt_template": "chat_template",
}
#: Names of torchtune's log -> transformers' names.
LOG_NAMES: Mapping[str, str] = {"lr": "learning_rate"}
LOG_LINE = re.compile(r"^Step (\d+) \| (.*)$")
LOG_PAIR = re.compile(r"([A-Za-z_/]+):(\S+)")


def is_torchtune_config(config: Mapping[str, Any]) -> bool:
    """True when the mapping is a torchtune recipe configuration."""
    model, tokenizer = config.get("model"), config.get("tokenizer")
    return (
        any(isinstance(part, dict) and "_component_" in part for part in (model, tokenizer))
        and "epochs" in config
    )


def add_torchtune_settings(builder: SettingsBuilder, file: str, config: Mapping[str, Any]) -> None:
    """Adds the settings of a torchtune configuration under their paths (`optimizer.lr`)."""
    flat = _flatten(config)
    # `max_steps_per_epoch` limits each epoch, so it is no max_steps and keeps its own name.
    values = {key: value for key, value in flat.items() if not _is_reference(value)}
    if values.get("model.apply_lora_to_mlp") is True and isinstance(
        values.get("model.lora_attn_modules"), list
    ):
        values["model.lora_attn_modules"] = [*values["model.lora_attn_modules"], "w1", "w2", "w3"]
    if values.get("dtype") == "bf16":
        builder.add_one(file, "dtype", "bf16", True)
    builder.add(file, values, NAMES)


def read_torchtune_log(path: Path, name: str) -> LogHistory:
    """Reads `log_<time>.txt`: `Step 12 | loss:1.23 lr:0.0003`, or JSON lines with a `step`. Raises
    ArtefactError.
    """
    lines: list[dict[str, Any]] = []
    for line in read_text(path).splitlines():
        match = LOG_LINE.match(line)
        if match:
            lines.append({"step": int(match[1]), **_renamed(dict(LOG_PAIR.findall(match[2])))})
        elif line.startswith("{"):
            try:
                record = parse_json(line)
            except ArtefactError:
                continue  # the last line of a killed run
            lines.append(_renamed(record))
    if not lines:
        raise ArtefactError("holds no line of the form `Step 1 | loss:...`")
    parts = split_lines(lines)
    last = max((point.step for point in parts["train"]), default=None)
    return LogHistory(file=name, global_step=last, **parts)


def _renamed(record: Mapping[str, Any]) -> dict[str, Any]:
    return {LOG_NAMES.get(key, key): value for key, value in record.items()}


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and path.count(".") < 4:
            flat.update(_flatten(value, f"{path}."))
        else:
            flat[path] = value
    return flat


def _is_reference(value: Any) -> bool:
    """An OmegaConf interpolation (`${output_dir}`) says nothing by itself."""
    return isinstance(value, str) and "${" in value
