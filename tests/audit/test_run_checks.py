"""Each check on the run as a whole where it must fire, and where it must not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gradian.audit.checks.run_base import bare_name
from gradian.audit.checks.run_known_bugs import known_bugs
from gradian.audit.finding import Finding
from gradian.audit.registry import all_checks
from gradian.run.trl_profile import parse_version
from support.auditing import FIXTURES, TOKENIZERS, chat, finding, ids, pair, sound_rows
from support.run_folders import (
    base_folder,
    diagnosed,
    eval_lines,
    falling,
    linear_rates,
    log_lines,
    sound_tensors,
    write_adapter,
    write_run,
    write_state,
)

MINE = ("config", "adapter", "logs", "run")


def found(tmp_path: Path, id: str, **run: Any) -> Finding | None:
    given = {name: run.pop(name) for name in ("rows", "base") if name in run}
    result = diagnosed(write_run(tmp_path / "run", **run), id, **given)
    return finding(result, id) if ids(result) else None


# The table


def test_every_check_explains_itself() -> None:
    for check in all_checks():
        if check.family in MINE:
            assert len(check.explain) > 80, check.id
            assert check.title[0].isupper(), check.id


def test_there_are_enough_checks() -> None:
    assert len([check for check in all_checks() if check.family in MINE]) >= 70


# The base model


def test_another_base_model(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base", tokenizer="headers-bos")
    run = write_run(tmp_path / "run", tokenizer="chatml")
    result = diagnosed(run, "run.", "adapter.", base=base)
    raised = finding(result, "run.base_model_mismatch")
    assert raised.severity.value == "error"
    assert "org/base" in raised.title
    assert "the first difference is id" in raised.message
    assert raised.values["run_token"] != raised.values["base_token"]
    assert "adapter.new_tokens_untrained" not in ids(result)
    assert "run.tokenizer_mismatch" not in ids(result)


def test_the_same_vocabulary_under_another_name_is_the_same_model(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "another-name")
    assert found(tmp_path, "run.base_model_mismatch", tokenizer="chatml", base=base) is None


def test_names_alone_are_info(tmp_path: Path) -> None:
    raised = found(tmp_path / "a", "run.base_model_mismatch", base=base_folder(tmp_path / "other"))
    assert raised is not None
    assert raised.severity.value == "info"
    copies = {
        "adapter": {"base_model_name_or_path": "unsloth/base-bnb-4bit"},
        "base": base_folder(tmp_path / "base"),
    }
    assert found(tmp_path / "b", "run.base_model_mismatch", **copies) is None


def test_an_extended_vocabulary_is_no_other_model(tmp_path: Path) -> None:
    smaller = base_folder(tmp_path / "base")
    larger = tmp_path / "larger"
    shutil.copytree(TOKENIZERS / "chatml", larger)
    data = json.loads((larger / "tokenizer.json").read_text())
    last = max(token["id"] for token in data["added_tokens"])
    data["added_tokens"].append({**data["added_tokens"][-1], "id": last + 1, "content": "<new>"})
    (larger / "tokenizer.json").write_text(json.dumps(data))
    assert found(tmp_path, "run.base_model_mismatch", tokenizer=larger, base=smaller) is None


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("org/Tiny-8B", "tiny-8b"),
        ("unsloth/Tiny-8B-bnb-4bit", "tiny-8b"),
        ("unsloth/Tiny-8B-unsloth-bnb-4bit", "tiny-8b"),
        ("/data/models/Tiny-8B/", "tiny-8b"),
        ("C:\\models\\Tiny-8B", "tiny-8b"),
        ("models--org--Tiny-8B", "tiny-8b"),
        ("..", ".."),
    ],
)
def test_bare_names(name: str, wanted: str) -> None:
    assert bare_name(name) == wanted


def test_tokenizer_mismatch(tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(TOKENIZERS / "chatml", changed)
    data = json.loads((changed / "tokenizer.json").read_text())
    data["normalizer"] = {"type": "Lowercase"}
    (changed / "tokenizer.json").write_text(json.dumps(data))
    base = base_folder(tmp_path / "base")
    raised = found(tmp_path / "a", "run.tokenizer_mismatch", tokenizer=changed, base=base)
    assert raised is not None
    assert raised.severity.value == "warning"
    assert "normalizer" in raised.title
    assert found(tmp_path / "b", "run.tokenizer_mismatch", tokenizer="chatml", base=base) is None


def test_another_eos_token_is_info_and_a_stated_one_is_none(tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(TOKENIZERS / "chatml", changed)
    config = json.loads((changed / "tokenizer_config.json").read_text())
    config = {**config, "eos_token": "<|endoftext|>", "pad_token": "<|im_end|>"}
    (changed / "tokenizer_config.json").write_text(json.dumps(config))
    base = base_folder(tmp_path / "base")
    raised = found(tmp_path / "a", "run.tokenizer_mismatch", tokenizer=changed, base=base)
    assert raised is not None
    assert raised.severity.value == "info"
    assert "pad_token" not in raised.title
    stated = {"settings": {"eos_token": "<|endoftext|>"}, "tokenizer": changed, "base": base}
    assert found(tmp_path / "b", "run.tokenizer_mismatch", **stated) is None


# Artefacts


def test_nothing_found(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("hello")
    result = diagnosed(tmp_path / "run", *[f"{family}." for family in MINE])
    assert ids(result) == {"run.not_found"}
    assert finding(result, "run.not_found").severity.value == "error"


def test_unknown_trainer(tmp_path: Path) -> None:
    write_adapter(tmp_path / "run")
    raised = finding(diagnosed(tmp_path / "run", "run."), "run.unknown_trainer")
    assert raised.severity.value == "info"
    assert ids(diagnosed(tmp_path / "run", "run.", trainer="trl==0.16.0")) == set()
    assert ids(diagnosed(write_run(tmp_path / "trl"), "run.unknown_trainer")) == set()


def test_unsafe_pickle(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    canary = tmp_path / "canary"
    (run / "training_args.bin").write_bytes(f"cposix\nmkdir\n(S'{canary}'\ntR.".encode())
    raised = finding(diagnosed(run, *[f"{family}." for family in MINE]), "run.unsafe_pickle")
    assert raised.severity.value == "warning"
    assert "posix.mkdir" in raised.title
    assert not canary.exists()


def test_unreadable(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "trainer_state.json").write_text('{"log_history": [')
    raised = finding(diagnosed(run, "run."), "run.unreadable")
    assert raised.severity.value == "warning"
    assert raised.title.startswith("trainer_state.json is not JSON")
    assert ids(diagnosed(write_run(tmp_path / "sound"), "run.unreadable")) == set()


def test_not_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(FIXTURES / "runs" / "axolotl-yaml" / "config.yml", run / "a.yml")
    shutil.copy(FIXTURES / "runs" / "llama-factory" / "train.yaml", run / "b.yaml")
    assert finding(diagnosed(run, "run.not_read"), "run.not_read").severity.value == "info"


def test_remote_code(tmp_path: Path) -> None:
    assert found(tmp_path / "a", "run.remote_code", settings={"trust_remote_code": True}) is not None
    assert found(tmp_path / "b", "run.remote_code") is None


def test_merged_and_adapter(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert ids(diagnosed(run, "run.merged_and_adapter")) == set()
    (run / "model.safetensors").write_bytes(b"")
    assert ids(diagnosed(run, "run.merged_and_adapter")) == {"run.merged_and_adapter"}


# Consistency


@pytest.mark.parametrize(
    ("rows", "steps", "epochs", "settings", "fires"),
    [
        (160, 40, 2, {}, False),  # 20 steps of 8
        (156, 40, 2, {}, False),  # the last step is short
        (640, 40, 2, {}, False),  # four devices
        (200, 40, 2, {}, True),  # 160 arrived
        (100, 40, 2, {}, True),  # 160 arrived: another file
        (200, 40, 2, {"gradient_accumulation_steps": ...}, False),  # not known
        (200, 40, 2, {"packing": True}, False),
        (200, 40, 2, {"auto_find_batch_size": True}, False),
        (200, 40, 2, {"val_size": 0.2}, False),  # a fifth was held out
        (200, 40, 2, {"streaming": True}, False),
    ],
)
def test_rows_mismatch(
    tmp_path: Path, rows: int, steps: int, epochs: int, settings: dict[str, Any], fires: bool
) -> None:
    lines = log_lines(falling(steps), epochs=epochs)
    raised = found(tmp_path, "run.rows_mismatch", lines=lines, settings=settings, rows=sound_rows(rows))
    assert (raised is not None) is fires
    if raised is not None:
        assert "160 rows" in raised.title
        assert raised.count == abs(rows - 160)


def test_rows_held_out_in_code_are_info(tmp_path: Path) -> None:
    lines = [*log_lines(falling(40), epochs=2), *eval_lines({20: 1.5, 40: 1.4})]
    state = {"epoch": 2.0}
    raised = found(tmp_path / "a", "run.rows_mismatch", lines=lines, state=state, rows=sound_rows(200))
    assert raised is not None
    assert raised.severity.value == "info"
    far = found(tmp_path / "b", "run.rows_mismatch", lines=lines, state=state, rows=sound_rows(400))
    assert far is not None
    assert far.severity.value == "warning"


def test_config_disagreement(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    config = (
        "model_name_or_path: org/base\nuse_peft: true\nmax_length: 1024\nlearning_rate: 1.0e-5\nlora_r: 4\n"
    )
    (run / "sft.yaml").write_text(config)
    raised = finding(diagnosed(run, "run.config_disagreement"), "run.config_disagreement")
    assert raised.severity.value == "warning"
    assert raised.title == "learning_rate is 2e-04 in training_args.bin; 1e-05 in sft.yaml"
    assert raised.fix is not None
    assert raised.fix.file == "sft.yaml"


@pytest.mark.parametrize("fixture", sorted(path.name for path in (FIXTURES / "runs").glob("[a-z]*[0-9a-z]")))
def test_real_runs_agree_with_themselves(fixture: str) -> None:
    assert ids(diagnosed(FIXTURES / "runs" / fixture, "run.config_disagreement", "logs.lr_mismatch")) == set()


def saved(run: Path, *steps: int) -> None:
    for step in steps:
        write_adapter(run / f"checkpoint-{step}")
        write_state(run / f"checkpoint-{step}", log_lines([1.0] * 3))


def test_last_not_best(tmp_path: Path) -> None:
    lines = [
        *log_lines(falling(40)),
        *eval_lines({10: 0.5, 20: 0.8, 30: 0.7, 40: 0.6}, name="eval_accuracy"),
    ]
    run = write_run(tmp_path / "run", lines=lines, settings={"metric_for_best_model": "accuracy"})
    saved(run, 20, 40)
    raised = finding(diagnosed(run, "run.last_not_best"), "run.last_not_best")
    assert raised.fix is not None
    assert raised.fix.text == "use checkpoint-20"
    rising = [*log_lines(falling(40)), *eval_lines({20: 0.6, 40: 0.8}, name="eval_accuracy")]
    fine = write_run(tmp_path / "fine", lines=rising, settings={"metric_for_best_model": "accuracy"})
    saved(fine, 20, 40)
    assert ids(diagnosed(fine, "run.last_not_best")) == set()


def test_overfitting_is_not_told_twice(tmp_path: Path) -> None:
    lines = [*log_lines(falling(40)), *eval_lines({10: 2.0, 20: 1.5, 30: 1.6, 40: 1.8})]
    run = write_run(tmp_path / "run", lines=lines)
    saved(run, 20, 40)
    assert ids(diagnosed(run, "logs.", "run.")) == {"logs.overfitting"}


def test_best_not_saved(tmp_path: Path) -> None:
    lines = [*log_lines(falling(40)), *eval_lines({10: 2.0, 20: 1.5, 30: 1.6, 40: 1.8})]
    run = write_run(tmp_path / "run", lines=lines)
    saved(run, 40)
    raised = finding(diagnosed(run, "run.best_not_saved"), "run.best_not_saved")
    assert raised.severity.value == "info"
    assert raised.values["best_step"] == 20
    saved(run, 20)
    assert ids(diagnosed(run, "run.best_not_saved")) == set()


def test_resume_gap(tmp_path: Path) -> None:
    lines = [*log_lines(falling(30)), *log_lines(falling(40))[20:]]
    raised = found(tmp_path / "a", "run.resume_gap", lines=lines)
    assert raised is not None
    assert raised.values["restarts"] == [21]
    jump = [*linear_rates(40)[:30], *[2e-4 * share / 30 for share in range(30, 0, -1)]]
    assert found(tmp_path / "b", "run.resume_gap", lines=log_lines(falling(60), rates=jump)) is not None
    assert (
        found(
            tmp_path / "c", "run.resume_gap", lines=log_lines(falling(40), rates=linear_rates(40, warmup=20))
        )
        is None
    )
    restarts = {"lr_scheduler_type": "cosine_with_restarts"}
    cosine = {"lines": log_lines(falling(60), rates=jump), "settings": restarts}
    assert found(tmp_path / "d", "run.resume_gap", **cosine) is None


# Known bugs


def test_the_table_of_known_bugs_is_sound() -> None:
    for bug in known_bugs():
        first, fixed = parse_version(bug["from"]), parse_version(bug["until"])
        assert first is not None
        assert fixed is not None
        assert first < fixed
        assert bug["sources"]
        assert bug["effect"].endswith(".")


@pytest.mark.parametrize(
    ("id", "trl", "transformers", "settings", "fires"),
    [
        ("gradient_accumulation", "0.9.6", "4.43.3", {}, True),
        ("gradient_accumulation", "0.9.6", "4.43.3", {"gradient_accumulation_steps": 1}, False),
        ("gradient_accumulation", "0.9.6", "4.46.0", {}, False),
        ("accumulated_loss_scale", "0.12.0", "4.46.0", {}, True),
        ("accumulated_loss_scale", "0.12.0", "4.48.0", {}, False),
        ("packing_splits_rows", "0.27.1", "4.57.0", {"packing": True, "packing_strategy": "bfd"}, True),
        ("packing_splits_rows", "0.29.0", "4.57.0", {"packing": True, "packing_strategy": "bfd"}, False),
        ("packing_splits_rows", "0.27.1", "4.57.0", {"packing": False, "packing_strategy": "bfd"}, False),
        ("eos_appended_to_chat", "0.16.0", "4.50.0", {}, True),
        ("eos_appended_to_chat", "0.17.0", "4.50.0", {}, False),
    ],
)
def test_known_bugs(
    tmp_path: Path, id: str, trl: str, transformers: str, settings: dict[str, Any], fires: bool
) -> None:
    rows = [chat(f"Question {number}?", f"Answer {number}.") for number in range(8)]
    raised = found(
        tmp_path,
        f"run.known_bug_{id}",
        trl=trl,
        transformers=transformers,
        settings=settings,
        rows=rows,
        lines=[],
    )
    assert (raised is not None) is fires
    if raised is not None:
        assert raised.severity.value == ("info" if id == "accumulated_loss_scale" else "warning")
        assert raised.locations[0].endswith("README.md")


@pytest.mark.parametrize(("words", "severity"), [([20] * 20, "info"), ([2, 60] * 10, "warning")])
def test_accumulation_harms_rows_of_different_lengths(
    tmp_path: Path, words: list[int], severity: str
) -> None:
    rows = [pair(f"Question {n}?", " word" * count) for n, count in enumerate(words)]
    old = {"trl": "0.9.6", "transformers": "4.43.3", "tokenizer": "chatml", "lines": []}
    settings = {"max_seq_length": 1024, "max_length": ...}
    raised = found(tmp_path, "run.known_bug_gradient_accumulation", rows=rows, settings=settings, **old)
    assert raised is not None
    assert raised.severity.value == severity


@pytest.mark.parametrize(
    ("id", "trl", "transformers", "model_type", "settings"),
    [
        ("gemma3_accumulated_loss", "0.16.1", "4.50.3", "gemma3_text", {}),
        ("qwen35_training_template", "1.7.0", "5.10.0", "qwen3_5_text", {"assistant_only_loss": True}),
    ],
)
def test_known_bugs_of_one_family(
    tmp_path: Path, id: str, trl: str, transformers: str, model_type: str, settings: dict[str, Any]
) -> None:
    run = {"trl": trl, "transformers": transformers, "settings": settings, "lines": []}
    affected = base_folder(tmp_path / "affected", model_type=model_type)
    assert found(tmp_path / "a", f"run.known_bug_{id}", base=affected, **run) is not None
    other = base_folder(tmp_path / "other", model_type="llama")
    assert found(tmp_path / "b", f"run.known_bug_{id}", base=other, **run) is None


def test_plain_text_rows_do_not_get_an_extra_eos(tmp_path: Path) -> None:
    rows = [pair(f"Question {number}?", f" Answer {number}.") for number in range(8)]
    assert found(tmp_path, "run.known_bug_eos_appended_to_chat", trl="0.16.0", rows=rows, lines=[]) is None


# The real run


@pytest.mark.parametrize(("run", "rows"), [("run", "train.jsonl"), ("control", "control.jsonl")])
def test_nothing_is_wrong_with_the_real_run(run: str, rows: str) -> None:
    """The TRL run of the end-to-end test, without its weights: its fault is in the rows, not in the setup."""
    folder = FIXTURES / "runs" / "json_formatting" / run
    result = diagnosed(
        folder, *[f"{family}." for family in MINE], dataset=str(FIXTURES / "json_formatting" / rows)
    )
    assert {raised.id for raised in result.findings} == {"adapter.missing"}
    assert len(result.checks_run) > 40


@pytest.mark.parametrize("fixture", ["axolotl-card", "axolotl-yaml", "llama-factory", "trl-yaml", "unsloth"])
def test_sound_runs_of_other_trainers_are_silent(tmp_path: Path, fixture: str) -> None:
    """Their own files, with an adapter and a log that fit them."""
    run = tmp_path / "run"
    shutil.copytree(FIXTURES / "runs" / fixture, run)
    shape = {
        "axolotl-card": (32, 16),
        "axolotl-yaml": (8, 16),
        "llama-factory": (8, 16),
        "trl-yaml": (16, 32),
    }
    rank, alpha = shape.get(fixture, (16, 16))
    name = {"unsloth": "unsloth/tiny-8b-bnb-4bit"}.get(fixture, "acme/tiny-8b")
    adapter = {"r": rank, "lora_alpha": alpha, "base_model_name_or_path": name}
    if fixture == "axolotl-card":
        adapter["lora_dropout"] = 0.05
    write_adapter(run, sound_tensors(rank=rank), **adapter)
    rate = 1e-4 if fixture in ("axolotl-yaml", "llama-factory") else 2e-4
    lines = log_lines(falling(60), epochs=3, rates=linear_rates(60, rate, warmup=6))
    (run / "trainer_log.jsonl").unlink(missing_ok=True)
    write_state(run, lines, num_train_epochs=3)
    result = diagnosed(run, *[f"{family}." for family in MINE])
    noisy = {raised.id for raised in result.findings if raised.severity.value != "info"}
    assert noisy == ({"config.packing_cross_contamination"} if fixture == "trl-yaml" else set())
