"""Each check on the configuration where it must fire, and where it must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradian.audit.checks.config_keys import edit_distance, known_keys
from gradian.audit.checks.config_rate import proposed_rate
from gradian.audit.finding import Finding
from gradian.audit.training_plan import rate_text
from support.auditing import chat, finding, ids, pair, sound_rows
from support.run_folders import (
    MODULES,
    base_folder,
    diagnosed,
    eval_lines,
    falling,
    linear_rates,
    log_lines,
    sound_tensors,
    write_run,
)

MINE = ("config.", "adapter.", "logs.", "run.")


def found(tmp_path: Path, id: str, **run: Any) -> Finding | None:
    """The finding of this id for a sound run that differs by `run`; `rows` and `base` go to the audit."""
    given = {name: run.pop(name) for name in ("rows", "base") if name in run}
    result = diagnosed(write_run(tmp_path / "run", **run), id, **given)
    return finding(result, id) if ids(result) else None


def severity_of(tmp_path: Path, id: str, **run: Any) -> str | None:
    raised = found(tmp_path, id, **run)
    return None if raised is None else raised.severity.value


def test_a_sound_run_is_silent(tmp_path: Path) -> None:
    result = diagnosed(
        write_run(tmp_path / "run", tokenizer="chatml"),
        *MINE,
        rows=sound_rows(160),
        base=base_folder(tmp_path / "base"),
    )
    assert ids(result) == set()
    assert len(result.checks_run) > 50


# Learning rate


@pytest.mark.parametrize(
    ("run", "severity", "fix"),
    [
        ({"settings": {"learning_rate": 1e-5}}, "warning", "learning_rate 1e-05 -> 2e-04"),
        ({"settings": {"learning_rate": 2e-5}}, "warning", "learning_rate 2e-05 -> 3e-04"),
        (
            {
                "settings": {"learning_rate": 2e-5},
                "lines": log_lines(falling(200), rates=linear_rates(200, 2e-5)),
            },
            "warning",
            "2e-05 -> 2e-04",
        ),
        ({"settings": {"learning_rate": 1e-7}}, "warning", "learning_rate 1e-07 -> 1e-04"),
        ({"settings": {"learning_rate": 4e-5}}, "info", "learning_rate 4e-05 -> 3e-04"),
        ({"settings": {"learning_rate": 5e-5}}, None, ""),
        ({"settings": {"learning_rate": 1e-4}}, None, ""),
        ({"settings": {"learning_rate": 1e-5}, "adapter": {"lora_alpha": 64}}, None, ""),  # scale 16
        ({"settings": {"learning_rate": 1e-5, "optim": "prodigy"}}, None, ""),
        ({"settings": {"learning_rate": 1e-5, "loraplus_lr_ratio": 16}}, None, ""),
        ({"settings": {"learning_rate": 1e-5, "init_adapter": "old"}}, None, ""),
        ({"settings": {"learning_rate": 1e-6}, "class_name": "trl.trainer.dpo_config.DPOConfig"}, None, ""),
        ({"settings": {"learning_rate": 1e-6}, "class_name": "trl.trainer.grpo_config.GRPOConfig"}, None, ""),
        ({"settings": {"learning_rate": 1e-5}, "with_adapter": False}, None, ""),
    ],
)
def test_lr_full_finetune(tmp_path: Path, run: dict[str, Any], severity: str | None, fix: str) -> None:
    raised = found(tmp_path, "config.lr_full_finetune", **run)
    assert (raised and raised.severity.value) == severity
    if raised is not None:
        assert raised.fix is not None
        assert fix in raised.fix.text
        assert raised.fix.file == "training_args.bin"


def test_a_low_rate_over_a_very_long_run_is_info(tmp_path: Path) -> None:
    """2,000 steps at 2e-5 add up to as much as 200 at 2e-4."""
    lines = log_lines(falling(50), rates=[2e-5] * 50, every=40)
    raised = found(tmp_path, "config.lr_full_finetune", settings={"learning_rate": 2e-5}, lines=lines)
    assert raised is not None
    assert raised.severity.value == "info"
    assert raised.values["sum_of_rates"] == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("rate", "factor", "wanted"), [(1e-5, 15, 2e-4), (1e-5, 10, 1e-4), (2e-5, 10, 2e-4), (3e-5, 15, 3e-4)]
)
def test_the_proposed_rate(rate: float, factor: float, wanted: float) -> None:
    """Worked by hand: ten or fifteen times, one digit, within 1e-4 and 3e-4."""
    assert proposed_rate(rate, factor) == wanted


@pytest.mark.parametrize(
    ("rate", "text"), [(2e-4, "2e-04"), (1.5e-5, "1.5e-05"), (0.001, "1e-03"), (0.0, "0"), (1.0, "1e+00")]
)
def test_rates_as_people_write_them(rate: float, text: str) -> None:
    assert rate_text(rate) == text


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        ({"settings": {"learning_rate": 2e-3}, "lines": []}, "warning"),
        ({"settings": {"learning_rate": 1e-2}, "lines": []}, "error"),
        ({"settings": {"learning_rate": 1e-2}}, "info"),  # the log is calm all the same
        ({"settings": {"learning_rate": 1e-2}, "lines": log_lines(falling(40, 2.0, 2.5))}, "error"),
        ({"settings": {"learning_rate": 3e-4}, "lines": []}, None),
        ({"settings": {"learning_rate": 1e-3}, "lines": []}, None),
        ({"settings": {"learning_rate": 1.0, "optim": "prodigy"}, "lines": []}, None),
        (
            {
                "settings": {"learning_rate": 5e-4, "finetuning_type": "full"},
                "lines": [],
                "with_adapter": False,
            },
            "warning",
        ),
        ({"settings": {"learning_rate": 5e-4}, "lines": [], "with_adapter": False}, None),
    ],
)
def test_lr_too_high(tmp_path: Path, run: dict[str, Any], severity: str | None) -> None:
    assert severity_of(tmp_path, "config.lr_too_high", **run) == severity


@pytest.mark.parametrize(
    ("settings", "rates", "severity", "fix"),
    [
        ({"warmup_steps": 500}, linear_rates(40, warmup=500), "error", "warmup_steps 500 -> 2"),
        ({"warmup_steps": 40}, linear_rates(40, warmup=40), "error", "-> 2"),
        ({"warmup_steps": 15}, linear_rates(40, warmup=15), "warning", "-> 2"),
        ({"warmup_steps": 0.5}, linear_rates(40, warmup=20), "warning", "-> 2"),  # transformers 5: a share
        ({"warmup_steps": 0, "warmup_ratio": 0.5}, linear_rates(40, warmup=20), "warning", "warmup_ratio 0.5 -> 0.05"),
        ({"warmup_steps": 4}, linear_rates(40, warmup=4), None, ""),
        ({"warmup_steps": 0.03}, linear_rates(40, warmup=2), None, ""),
        ({"warmup_steps": 500, "lr_scheduler_type": "constant"}, [2e-4] * 40, None, ""),
        ({"warmup_steps": 0}, linear_rates(40, warmup=0.5), None, ""),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_warmup_exceeds_run(
    tmp_path: Path, settings: dict[str, Any], rates: list[float], severity: str | None, fix: str
) -> None:
    raised = found(
        tmp_path, "config.warmup_exceeds_run", settings=settings, lines=log_lines(falling(40), rates=rates)
    )
    assert (raised and raised.severity.value) == severity
    if raised is not None:
        assert raised.fix is not None
        assert fix in raised.fix.text


def test_no_warmup_needs_a_reason(tmp_path: Path) -> None:
    settings = {"warmup_steps": 0, "learning_rate": 8e-4}
    jump = [2.0, 3.5, 3.0, *falling(37)]
    assert severity_of(tmp_path / "a", "config.no_warmup", settings=settings, lines=log_lines(jump)) == "info"
    assert severity_of(tmp_path / "b", "config.no_warmup", settings=settings) is None  # a calm start
    assert severity_of(tmp_path / "c", "config.no_warmup", settings=settings, lines=[]) == "info"
    assert severity_of(tmp_path / "d", "config.no_warmup", settings={"warmup_steps": 0}, lines=[]) is None


@pytest.mark.parametrize(("decay", "severity"), [(0.3, "warning"), (0.1, None), (0.01, None)])
def test_weight_decay_high(tmp_path: Path, decay: float, severity: str | None) -> None:
    assert severity_of(tmp_path, "config.weight_decay_high", settings={"weight_decay": decay}) == severity


@pytest.mark.parametrize(
    ("clip", "spike", "severity"),
    [
        (0.0, False, "info"),
        (None, False, "info"),
        (100.0, False, "info"),
        (0.0, True, "warning"),
        (1.0, True, None),
    ],
)
def test_grad_clip_off(tmp_path: Path, clip: float | None, spike: bool, severity: str | None) -> None:
    norms = [0.6 + 0.01 * (place % 7) for place in range(40)]
    if spike:
        norms[25] = 60.0
    lines = log_lines(falling(40), norms=norms)
    assert (
        severity_of(tmp_path, "config.grad_clip_off", settings={"max_grad_norm": clip}, lines=lines)
        == severity
    )


# Schedule


def test_max_steps_override(tmp_path: Path) -> None:
    """20 steps of 8 rows are 160 of 400 rows: 0.4 epochs of 3; all three take 150 steps."""
    run = {
        "settings": {"max_steps": 20, "num_train_epochs": 3},
        "lines": log_lines(falling(20), epochs=0.4),
        "state": {"num_train_epochs": 1},
        "rows": sound_rows(400),
    }
    raised = found(tmp_path, "config.max_steps_override", **run)
    assert raised is not None
    assert raised.severity.value == "warning"
    assert "160 of 400 rows" in raised.title
    assert raised.fix is not None
    assert raised.fix.text == "max_steps 20 -> -1 (150 steps)"
    assert (raised.fix.from_, raised.fix.to) == (20, -1)


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        ({"max_steps": 100, "num_train_epochs": 2}, 2.0),  # reaches them
        ({"max_steps": -1, "num_train_epochs": 2}, 2.0),
        ({"max_steps": 20, "num_train_epochs": 3, "streaming": True}, 0.4),
    ],
)
def test_max_steps_that_cut_nothing(tmp_path: Path, settings: dict[str, Any], epochs: float) -> None:
    lines = log_lines(falling(40), epochs=epochs)
    rows = sound_rows(160)
    assert found(tmp_path, "config.max_steps_override", settings=settings, lines=lines, rows=rows) is None


def test_max_steps_before_the_run_counts_rows(tmp_path: Path) -> None:
    raised = found(
        tmp_path, "config.max_steps_override", lines=[], with_adapter=False, rows=sound_rows(800),
        settings={"max_steps": 60, "num_train_epochs": ...},
    )  # fmt: skip
    assert raised is not None
    assert "480 of 800 rows" in raised.title
    assert "is by default 3" in raised.title
    assert raised.assumes == "one device"


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        ({"settings": {"num_train_epochs": 10}}, "warning"),
        ({"settings": {"num_train_epochs": 40}}, "error"),
        ({"settings": {"num_train_epochs": 3}}, None),
        ({"settings": {"num_train_epochs": 10, "max_steps": 40}}, None),  # max_steps stopped it after 2
        ({"settings": {"num_train_epochs": 10}, "lines": [*log_lines(falling(40)), *eval_lines({10: 2.0})]}, None),
        (
            {"settings": {"num_train_epochs": 40},
             "lines": [*log_lines(falling(40)), *eval_lines({10: 2.0, 20: 1.9, 40: 1.8})]},
            None,  # still falling
        ),
    ],
)  # fmt: skip
def test_epochs_many(tmp_path: Path, run: dict[str, Any], severity: str | None) -> None:
    assert severity_of(tmp_path, "config.epochs_many", **run) == severity


def test_steps_too_few(tmp_path: Path) -> None:
    few = {
        "lines": log_lines(falling(8)),
        "settings": {"gradient_accumulation_steps": 32},
        "rows": sound_rows(256),
    }
    raised = found(tmp_path / "a", "config.steps_too_few", **few)
    assert raised is not None
    assert raised.fix is not None
    assert raised.fix.text == "gradient_accumulation_steps 32 -> 4 (8 rows a step)"
    # At 8 rows a step there is nothing to lower: the rows are few, which data.tiny_for_schedule says.
    assert (
        found(tmp_path / "b", "config.steps_too_few", lines=log_lines(falling(8)), rows=sound_rows(32))
        is None
    )


@pytest.mark.parametrize(
    ("batch", "rows", "severity"),
    [(8, 2000, "info"), (64, 20000, "warning"), (8, 160, "warning"), (2, 160, None)],
)
def test_batch_large(tmp_path: Path, batch: int, rows: int, severity: str | None) -> None:
    settings = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": 8 if batch > 2 else 4}
    data = [{"text": f"row {number}"} for number in range(rows)]
    assert severity_of(tmp_path, "config.batch_large", settings=settings, lines=[], rows=data) == severity


@pytest.mark.parametrize(
    ("settings", "severity", "fix"),
    [
        ({"eval_strategy": "steps", "eval_steps": 100, "save_strategy": "steps", "save_steps": 500}, "warning",
         "save_steps 500 -> 100"),
        ({"eval_strategy": "steps", "eval_steps": 100, "save_strategy": "epoch"}, "warning",
         "save_strategy epoch -> steps"),
        ({"eval_strategy": "epoch", "save_strategy": "no"}, "warning", "save_strategy no -> epoch"),
        ({"eval_strategy": "epoch", "save_strategy": "no", "num_train_epochs": 1}, "info", ""),
        ({"eval_strategy": "steps", "eval_steps": 100, "save_strategy": "steps", "save_steps": 50}, None, ""),
        ({"eval_strategy": "epoch", "save_strategy": "epoch"}, None, ""),
        ({"eval_strategy": "epoch", "save_strategy": "best"}, None, ""),
        ({"eval_strategy": "no", "save_strategy": "no"}, None, ""),
    ],
)  # fmt: skip
def test_best_model_not_kept(
    tmp_path: Path, settings: dict[str, Any], severity: str | None, fix: str
) -> None:
    raised = found(tmp_path, "config.best_model_not_kept", settings=settings, lines=[])
    assert (raised and raised.severity.value) == severity
    if raised is not None:
        assert raised.fix is not None
        assert fix in raised.fix.text


def test_seed_missing(tmp_path: Path) -> None:
    assert severity_of(tmp_path / "a", "config.seed_missing", settings={"seed": None}) == "info"
    assert severity_of(tmp_path / "b", "config.seed_missing", settings={"seed": ...}) is None


@pytest.mark.parametrize(
    ("settings", "severity"),
    [({"train_sampling_strategy": "sequential"}, "warning"), ({"streaming": True}, "info"), ({}, None)],
)
def test_no_shuffle(tmp_path: Path, settings: dict[str, Any], severity: str | None) -> None:
    assert severity_of(tmp_path, "config.no_shuffle", settings=settings) == severity


# LoRA


@pytest.mark.parametrize(
    ("adapter", "severity", "fix"),
    [
        ({"lora_alpha": 64}, "warning", "lora_alpha 64 -> 8"),  # r 4: scale 16
        ({"lora_alpha": 512}, "error", "-> 8"),
        ({"r": 64, "lora_alpha": 128, "use_rslora": True}, "warning", "lora_alpha 128 -> 16"),  # 128 / 8
        ({"lora_alpha": 32}, None, ""),  # 8
        ({"lora_alpha": 64, "init_lora_weights": "pissa"}, None, ""),
        ({"lora_alpha": 64, "alpha_pattern": {".*": 8}}, None, ""),
        ({"lora_alpha": 8, "rank_pattern": {"q_proj": 1}, "alpha_pattern": {"q_proj": 32}}, "warning", ""),
    ],
)
def test_lora_scale_high(tmp_path: Path, adapter: dict[str, Any], severity: str | None, fix: str) -> None:
    raised = found(tmp_path, "config.lora_scale_high", adapter=adapter)
    assert (raised and raised.severity.value) == severity
    if raised is not None:
        assert raised.fix is not None
        assert fix in raised.fix.text


@pytest.mark.parametrize(
    ("adapter", "severity"),
    [
        ({"r": 64, "lora_alpha": 8}, "info"),
        ({"r": 256, "lora_alpha": 16}, None),  # TRL's own recipe
        ({"r": 8, "lora_alpha": 8}, None),  # PEFT's default
        ({"r": 64, "lora_alpha": 16}, None),  # 0.25
    ],
)
def test_lora_scale_low(tmp_path: Path, adapter: dict[str, Any], severity: str | None) -> None:
    assert severity_of(tmp_path, "config.lora_scale_low", adapter=adapter) == severity


@pytest.mark.parametrize(
    ("modules", "lines", "severity"),
    [
        (("self_attn.q_proj", "self_attn.v_proj"), log_lines(falling(40)), "info"),
        (("self_attn.q_proj", "self_attn.v_proj"), log_lines(falling(40, 2.0, 1.99)), "warning"),
        (("self_attn.q_proj", "mlp.up_proj"), log_lines(falling(40)), None),
        (MODULES, log_lines(falling(40)), None),
    ],
)
def test_attention_only(
    tmp_path: Path, modules: tuple[str, ...], lines: list[dict[str, Any]], severity: str | None
) -> None:
    tensors = sound_tensors(modules=modules)
    assert severity_of(tmp_path, "config.attention_only", tensors=tensors, lines=lines) == severity


def test_rank_capacity(tmp_path: Path) -> None:
    rows = [chat("Write on.", "word " * 400) for _ in range(40)]
    raised = found(tmp_path / "a", "config.rank_capacity", rows=rows, tokenizer="chatml")
    assert raised is not None
    assert raised.values["trained_tokens"] > 10 * raised.values["parameters"]
    assert raised.fix is not None
    assert raised.fix.key == "r"
    assert found(tmp_path / "b", "config.rank_capacity", rows=sound_rows(20), tokenizer="chatml") is None


@pytest.mark.parametrize(
    ("adapter", "severity"),
    [
        ({"lora_dropout": 0.3}, "warning"),
        ({"lora_dropout": 0.15}, "info"),
        ({"lora_dropout": 0.05}, None),
        ({"lora_dropout": 0.05, "target_parameters": ["mlp.experts.down_proj"]}, "error"),
    ],
)
def test_dropout_high(tmp_path: Path, adapter: dict[str, Any], severity: str | None) -> None:
    assert severity_of(tmp_path, "config.dropout_high", adapter=adapter) == severity


def test_embeddings_targeted(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    adapter = {"modules_to_save": ["embed_tokens", "lm_head"]}
    raised = found(
        tmp_path / "a", "config.embeddings_targeted", adapter=adapter, tokenizer="chatml", base=base
    )
    assert raised is not None
    assert raised.severity.value == "info"
    assert found(tmp_path / "b", "config.embeddings_targeted", tokenizer="chatml", base=base) is None
    assert found(tmp_path / "c", "config.embeddings_targeted", adapter=adapter) is None  # tokenizers unknown


@pytest.mark.parametrize(("alpha", "severity"), [(30, "info"), (15, None), (None, None)])
def test_neftune(tmp_path: Path, alpha: float | None, severity: str | None) -> None:
    assert severity_of(tmp_path, "config.neftune_strong", settings={"neftune_noise_alpha": alpha}) == severity


# Precision


def test_precision_conflict(tmp_path: Path) -> None:
    both = found(tmp_path / "a", "config.precision_conflict", settings={"bf16": True, "fp16": True})
    assert both is not None
    assert both.severity.value == "error"
    assert both.fix is not None
    assert both.fix.text == "fp16 true -> false"
    assert found(tmp_path / "b", "config.precision_conflict", settings={"bf16": False, "fp16": True}) is None


@pytest.mark.parametrize(
    ("run", "dtype", "severity"),
    [
        ({"lines": []}, "bfloat16", "warning"),
        ({}, "bfloat16", "info"),  # the log is free of NaN
        ({"lines": log_lines(falling(40), norms=[0.5] * 39 + [float("nan")])}, "bfloat16", "warning"),
        ({"lines": []}, "float16", None),
        ({"lines": [], "settings": {"fp16": False, "bf16": True}}, "bfloat16", None),
    ],
)
def test_fp16_risk(tmp_path: Path, run: dict[str, Any], dtype: str, severity: str | None) -> None:
    base = base_folder(tmp_path / "base", dtype=dtype)
    run = {"settings": {"fp16": True, "bf16": False}, **run}
    assert severity_of(tmp_path, "config.fp16_risk", base=base, **run) == severity


def test_gradient_checkpointing(tmp_path: Path) -> None:
    settings = {
        "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "deepspeed": {"zero_optimization": {"stage": 3}},
    }  # fmt: skip
    assert severity_of(tmp_path / "a", "config.gradient_checkpointing", settings=settings) == "warning"
    settings["deepspeed"] = {"zero_optimization": {"stage": 2}}
    assert severity_of(tmp_path / "b", "config.gradient_checkpointing", settings=settings) is None


def test_quantized_merge(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", settings={"load_in_4bit": True})
    assert ids(diagnosed(run, "config.quantized_merge")) == set()
    (run / "model.safetensors").write_bytes(b"")
    assert ids(diagnosed(run, "config.quantized_merge")) == {"config.quantized_merge"}


# Packing and keys


@pytest.mark.parametrize(
    ("settings", "trl", "rows", "severity"),
    [
        ({"packing_strategy": "wrapped"}, "1.9.0", [pair("a", " b")], "warning"),
        ({"packing_strategy": "bfd"}, "1.9.0", [pair("a", " b")], "warning"),  # no flash attention is stated
        ({}, "0.18.0", [pair("a", " b")], "warning"),
        ({"packing_strategy": "wrapped"}, "1.9.0", [{"text": "a"}, {"text": "b"}], "info"),
        (
            {"packing_strategy": "bfd", "model_init_kwargs": {"attn_implementation": "flash_attention_2"}},
            "1.9.0", [pair("a", " b")], None,
        ),
        ({"packing": False}, "1.9.0", [pair("a", " b")], None),
    ],
)  # fmt: skip
def test_packing_cross_contamination(
    tmp_path: Path, settings: dict[str, Any], trl: str, rows: list[dict[str, Any]], severity: str | None
) -> None:
    run = {"settings": {"packing": True, **settings}, "trl": trl, "rows": rows, "lines": []}
    assert severity_of(tmp_path, "config.packing_cross_contamination", **run) == severity


@pytest.mark.parametrize(
    ("trl", "completion", "severity"),
    [("0.18.0", True, "warning"), ("0.20.0", True, None), ("0.18.0", None, None)],
)
def test_packing_with_completion_loss(
    tmp_path: Path, trl: str, completion: bool | None, severity: str | None
) -> None:
    settings = {"packing": True, "completion_only_loss": completion}
    assert (
        severity_of(tmp_path, "config.packing_with_completion_loss", settings=settings, trl=trl) == severity
    )


@pytest.mark.parametrize(
    ("settings", "trl", "fix"),
    [
        ({"max_seq_length": 4096, "max_length": 1024}, "1.9.0", "max_length 1024 -> 4096"),
        ({"max_length": 4096, "max_seq_length": 512}, "0.14.0", "max_seq_length 512 -> 4096"),
        ({"max_length": 4096, "max_seq_length": ...}, "0.14.0", "max_seq_length 1024 -> 4096"),
        ({"max_seq_length": 1024, "max_length": 1024}, "1.9.0", None),
        ({"max_seq_length": 4096, "max_length": 1024}, "0.18.0", None),  # obeys both
        ({}, "1.9.0", None),
    ],
)
def test_unused_length_key(tmp_path: Path, settings: dict[str, Any], trl: str, fix: str | None) -> None:
    raised = found(tmp_path, "config.unused_length_key", settings=settings, trl=trl)
    assert (raised is None) == (fix is None)
    if raised is not None:
        assert raised.fix is not None
        assert raised.fix.text == fix


AXOLOTL = (
    "base_model: org/base\ndatasets: [{path: a, type: alpaca}]\nadapter: lora\nlora_r: 8\nsequence_len: 512\n"
)


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("learning_rat: 0.0002", "learning_rat -> learning_rate"),
        ("num_train_epochs: 3", "num_train_epochs -> num_epochs"),
        ("max_seq_length: 4096", "max_seq_length -> sequence_len"),
        ("my_plugin_option: 3", None),
        ("learning_rate: 0.0002", None),
    ],
)
def test_unknown_key(tmp_path: Path, line: str, fix: str | None) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(AXOLOTL + line + "\n")
    result = diagnosed(run, "config.unknown_key")
    assert ids(result) == (set() if fix is None else {"config.unknown_key"})
    if fix is not None:
        raised = finding(result, "config.unknown_key")
        assert raised.fix is not None
        assert raised.fix.text == fix
        assert raised.locations[0].endswith("config.yaml")


@pytest.mark.parametrize(
    "fixture", ["axolotl-card", "axolotl-yaml", "llama-factory", "torchtune", "trl-yaml", "unsloth"]
)
def test_the_keys_of_sound_configurations_are_known(fixture: str) -> None:
    from support.auditing import FIXTURES

    assert ids(diagnosed(FIXTURES / "runs" / fixture, "config.unknown_key")) == set()


def test_the_tables_of_keys_hold_what_is_asked_for() -> None:
    keys = known_keys()
    assert {"sequence_len", "micro_batch_size", "sample_packing"} <= keys["axolotl"]
    assert {"cutoff_len", "lora_rank", "learning_rate"} <= keys["llama_factory"]
    assert {"max_length", "assistant_only_loss", "learning_rate"} <= keys["trl"]


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [("", "abc", 3), ("kitten", "sitting", 3), ("lora_r", "lora_r", 0), ("ab", "ba", 2)],
)
def test_edit_distance(left: str, right: str, distance: int) -> None:
    assert edit_distance(left, right) == distance == edit_distance(right, left)


def test_tensors_of_the_tests_are_sound() -> None:
    assert all(np.isfinite(array).all() for array in sound_tensors().values())
