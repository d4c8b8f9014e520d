"""Run folders whose files hold anything at all: every check says something or nothing, and none breaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradian.audit.context import AuditInputs
from gradian.audit.runner import run_audit
from support.auditing import FIXTURES, sound_rows, write_rows
from support.run_folders import SOUND, base_folder, eval_lines, falling, log_lines, write_adapter, write_run

WRONG = st.sampled_from(
    [None, True, False, 0, -1, 3, 1e-5, float("nan"), float("inf"), 1e300, 2**70, "", "x", "auto", "none", "1e-4", [],
     [1], ["a"], {}, {"a": 1}, {"a": {"b": [1]}}, "q_proj", "../..", "\0", "é" * 50, "(" * 20]
)  # fmt: skip
SETTING_NAMES = [
    *SOUND, "eval_steps", "save_steps", "metric_for_best_model", "neftune_noise_alpha", "deepspeed",
    "distributed_state", "gradient_checkpointing_kwargs", "model_init_kwargs", "val_size", "num_devices",
    "total_train_batch_size", "optim", "early_stopping_patience", "streaming", "max_seq_length",
    "packing_strategy", "eos_token", "warmup_ratio", "loraplus_lr_ratio", "load_in_4bit", "init_adapter",
    "finetuning_type", "stage", "rl", "greater_is_better", "load_best_model_at_end", "train_sampling_strategy",
]  # fmt: skip
ADAPTER_NAMES = [
    "r", "lora_alpha", "lora_dropout", "target_modules", "modules_to_save", "rank_pattern", "alpha_pattern",
    "target_parameters", "trainable_token_indices", "layers_to_transform", "init_lora_weights", "use_rslora",
    "peft_type", "task_type", "base_model_name_or_path", "auto_mapping", "peft_version",
]  # fmt: skip
STATE_NAMES = ["global_step", "max_steps", "epoch", "num_train_epochs", "log_history", "train_batch_size",
               "best_metric", "stateful_callbacks", "logging_steps"]  # fmt: skip
LINE_NAMES = ["step", "epoch", "loss", "learning_rate", "grad_norm", "eval_loss"]
CONFIGS = sorted(path for path in (FIXTURES / "runs").glob("*/*.y*ml"))


def wrong(names: list[str], most: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), WRONG, max_size=most)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    return base_folder(folder / "base"), write_rows(folder / "train.jsonl", sound_rows(20))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    values=wrong(SETTING_NAMES, 6), adapter=wrong(ADAPTER_NAMES, 4), state=wrong(STATE_NAMES, 3),
    line=wrong(LINE_NAMES, 3), points=st.sampled_from([1, 3, 25, 60]), complete=st.booleans(),
)  # fmt: skip
def test_settings_adapter_and_log(
    tmp_path_factory: pytest.TempPathFactory, inputs: tuple[Path, Path], values: dict[str, Any],
    adapter: dict[str, Any], state: dict[str, Any], line: dict[str, Any], points: int, complete: bool,
) -> None:  # fmt: skip
    base, rows = inputs
    run = write_run(tmp_path_factory.mktemp("run"), settings=values, adapter=adapter, state=state)
    path = run / "trainer_state.json"
    written = json.loads(path.read_text())
    if "log_history" not in state:
        lines: list[dict[str, Any]] = [
            *log_lines(falling(points)),
            *eval_lines({1: 2.0, 2: 1.5, 3: 1.6, 4: 1.9}),
        ]
        lines[points // 2] = {**lines[points // 2], **line}
        written["log_history"] = lines
    path.write_text(json.dumps(written))
    write_adapter(run / "checkpoint-20", **adapter)
    write_adapter(run / "checkpoint-40")
    given_inputs = {"dataset": str(rows), "base_model": str(base)} if complete else {}
    result = run_audit(
        AuditInputs(run=str(run), **given_inputs), select=["config.", "adapter.", "logs.", "run."]
    )
    assert result.checks_run


@settings(max_examples=40, deadline=None)
@given(
    config=st.sampled_from(CONFIGS),
    values=st.lists(WRONG, min_size=4, max_size=4),
    seed=st.integers(0, 10**6),
)
def test_configuration_files(
    tmp_path_factory: pytest.TempPathFactory, config: Path, values: list[Any], seed: int
) -> None:
    content = yaml.safe_load(config.read_text())
    names = sorted(content)
    for place, value in enumerate(values):
        content[names[(seed + 7 * place) % len(names)]] = value
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    run_audit(AuditInputs(run=str(folder)), select=["config.", "logs.", "run."])
