"""Run folders that a test writes down: settings, log, adapter."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradian.audit.context import AuditInputs
from gradian.audit.runner import AuditResult, run_audit
from support.auditing import TOKENIZERS, Record, write_rows

MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
           "mlp.up_proj", "mlp.down_proj")  # fmt: skip
HIDDEN, INNER = 16, 32

#: Settings of a run that no check has anything to say about.
SOUND: dict[str, Any] = {
    "learning_rate": 2e-4, "num_train_epochs": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4,
    "max_steps": -1, "warmup_steps": 3, "weight_decay": 0.0, "max_grad_norm": 1.0, "seed": 42, "bf16": True,
    "fp16": False, "max_length": 1024, "packing": False, "lr_scheduler_type": "linear", "eval_strategy": "no",
    "save_strategy": "steps", "logging_steps": 1, "assistant_only_loss": False, "completion_only_loss": None,
    "dataset_text_field": "text", "loss_type": "nll", "truncation_mode": "keep_start", "trust_remote_code": False,
    "shuffle_dataset": False, "activation_offloading": False, "pad_token": None,
}  # fmt: skip


def training_args(values: Mapping[str, Any], class_name: str = "trl.trainer.sft_config.SFTConfig") -> bytes:
    """A training_args.bin as torch.save writes it."""
    module, _, name = class_name.rpartition(".")
    state = pickle.dumps(dict(values), 2)[2:-1]
    pickled = b"\x80\x02c" + f"{module}\n{name}\n".encode() + b")\x81" + state + b"b."
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("training_args/data.pkl", pickled)
        archive.writestr("training_args/version", "3")
    return buffer.getvalue()


def sound_tensors(rank: int = 4, layers: int = 2, modules: Sequence[str] = MODULES) -> dict[str, np.ndarray]:
    """The tensors of a trained adapter, by PEFT's names."""
    random = np.random.default_rng(0)
    sizes = {
        "mlp.gate_proj": (HIDDEN, INNER),
        "mlp.up_proj": (HIDDEN, INNER),
        "mlp.down_proj": (INNER, HIDDEN),
    }
    tensors = {}
    for layer in range(layers):
        for module in modules:
            inputs, outputs = sizes.get(module, (HIDDEN, HIDDEN))
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = random.normal(0, 0.1, (rank, inputs)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = random.normal(0, 0.01, (outputs, rank)).astype(np.float32)
    return tensors


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    header: dict[str, Any] = {}
    data = b""
    for name, array in tensors.items():
        dtype = {"float32": "F32", "float16": "F16"}[str(array.dtype)]
        raw = array.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_adapter(folder: Path, tensors: Mapping[str, np.ndarray] | None = None, **config: Any) -> None:
    """An adapter with its config; `tensors` None means a sound one."""
    folder.mkdir(parents=True, exist_ok=True)
    full = {
        "base_model_name_or_path": "org/base", "inference_mode": True, "init_lora_weights": True, "lora_alpha": 8,
        "lora_dropout": 0.0, "modules_to_save": None, "peft_type": "LORA", "peft_version": "0.19.0", "r": 4,
        "rank_pattern": {}, "alpha_pattern": {}, "target_modules": [name.split(".")[1] for name in MODULES],
        "target_parameters": None, "task_type": "CAUSAL_LM", "trainable_token_indices": None, "use_dora": False,
        "use_rslora": False, **config,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(full))
    write_safetensors(folder / "adapter_model.safetensors", sound_tensors() if tensors is None else tensors)


def falling(count: int, start: float = 2.0, end: float = 1.0, noise: float = 0.02) -> list[float]:
    """A loss that falls steadily, with a little noise."""
    random = np.random.default_rng(1)
    return [float(value) for value in np.linspace(start, end, count) + random.normal(0, noise, count)]


def linear_rates(count: int, peak: float = 2e-4, warmup: int = 3) -> list[float]:
    """The learning rates of a linear schedule, one a step."""
    return [
        peak * (step / warmup if step <= warmup else (count - step) / (count - warmup))
        for step in range(1, count + 1)
    ]


def log_lines(
    losses: Sequence[float],
    *,
    epochs: float = 2,
    rates: Sequence[float] | None = None,
    norms: Sequence[float] | None = None,
    every: int = 1,
    **series: Sequence[float],
) -> list[dict[str, Any]]:
    """Training lines of a log: one a step (or `every` so many), over `epochs` epochs."""
    count = len(losses)
    rates = linear_rates(count) if rates is None else rates
    norms = [0.6 + 0.01 * (place % 7) for place in range(count)] if norms is None else norms
    lines = []
    for place in range(count):
        step = (place + 1) * every
        lines.append(
            {"step": step, "epoch": epochs * (place + 1) / count, "loss": losses[place], "learning_rate": rates[place],
             "grad_norm": norms[place], **{name: values[place] for name, values in series.items()}}
        )  # fmt: skip
    return lines


def eval_lines(losses: Mapping[int, float], name: str = "eval_loss") -> list[dict[str, Any]]:
    """Evaluation lines: step -> value."""
    return [{"step": step, "epoch": step / 10, name: value} for step, value in losses.items()]


def write_state(folder: Path, lines: Sequence[Mapping[str, Any]], **state: Any) -> None:
    """A trainer_state.json. Steps and epochs follow from the lines unless they are given."""
    steps = [line["step"] for line in lines]
    epochs = [line["epoch"] for line in lines if "epoch" in line]
    full = {
        "global_step": max(steps, default=0), "max_steps": max(steps, default=0), "epoch": max(epochs, default=0.0),
        "num_train_epochs": 2, "log_history": list(lines), "logging_steps": 1, "train_batch_size": 2,
        "best_metric": None, "best_global_step": None, "best_model_checkpoint": None,
        "stateful_callbacks": {"TrainerControl": {"args": {"should_training_stop": True}}}, **state,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps(full))


def write_run(
    folder: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    lines: Sequence[Mapping[str, Any]] | None = None,
    state: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    adapter: Mapping[str, Any] | None = None,
    with_adapter: bool = True,
    trl: str | None = "1.9.0",
    transformers: str = "5.12.0",
    tokenizer: str | Path | None = None,
    class_name: str = "trl.trainer.sft_config.SFTConfig",
) -> Path:
    """A run folder that is sound but for what the test changes.

    Args:
        settings: over SOUND; a value of `...` removes the key.
        lines: of the log; by default a loss that falls over 40 steps. An empty list means no log.
        adapter: over the adapter's config.
        tokenizer: a folder of the tokenizer fixtures, or a path, that is copied into the run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = {key: value for key, value in {**SOUND, **(settings or {})}.items() if value is not ...}
    (folder / "training_args.bin").write_bytes(training_args(values, class_name))
    if trl is not None:
        (folder / "README.md").write_text(
            f"# Model Card\n\n### Framework versions\n\n- TRL: {trl}\n- Transformers: {transformers}\n"
        )
    lines = log_lines(falling(40)) if lines is None else lines
    if lines:
        write_state(folder, lines, **(state or {}))
    if with_adapter:
        write_adapter(folder, tensors, **(adapter or {}))
    if tokenizer is not None:
        source = TOKENIZERS / tokenizer if isinstance(tokenizer, str) else tokenizer
        for path in source.iterdir():
            if path.name != "config.json":
                shutil.copy(path, folder / path.name)
    return folder


def base_folder(folder: Path, tokenizer: str = "chatml", **config: Any) -> Path:
    """A base model's folder: tokenizer and config.json, no weights."""
    shutil.copytree(TOKENIZERS / tokenizer, folder)
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**known, **config}))
    return folder


def diagnosed(
    run: Path, *select: str, rows: Sequence[Record] | None = None, base: Path | None = None, **inputs: Any
) -> AuditResult:
    """The audit of a run folder, of the selected checks."""
    if rows is not None:
        inputs["dataset"] = str(write_rows(run.parent / "train.jsonl", rows))
    if base is not None:
        inputs["base_model"] = str(base)
    return run_audit(AuditInputs(run=str(run), **inputs), select=select)
