"""The runner and the streaming pass: the same result however it is carried out, and every skip has a
reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradian.audit import collect as collecting
from gradian.audit.collect import collect
from gradian.audit.context import AuditInputs
from gradian.audit.diagnosis import diagnose
from gradian.audit.output import render
from gradian.audit.registry import all_checks, selected_checks
from gradian.audit.runner import audit_rows, exit_code
from gradian.audit.source import FileSource
from gradian.errors import ConfigError, GradianError
from gradian.rows.files import read_rows
from gradian.rows.shapes import conversation_of
from gradian.rows.tokenizer import load_tokenizer
from gradian.rows.tokens import tokenize_many
from support.auditing import FIXTURES, TOKENIZERS, TRL, audited, chat, ids, pair, sound_rows, write_rows

CHATML = str(TOKENIZERS / "chatml")


def mixed_rows() -> list[Any]:
    return [
        *sound_rows(70),
        "{broken",
        chat("Is it open?", "Yes.", "And now?", "No."),
        {"messages": 3},
        pair("Why?", ""),
        pair("Who is it?", " It is me."),
        pair("who is it?", " it is me."),
        {"text": "Only a text with cafÃ©."},
    ]


@pytest.mark.parametrize("batch", [1, 3, 64, 10_000])
def test_the_batch_size_changes_nothing(tmp_path: Path, batch: int) -> None:
    path = write_rows(tmp_path / "train.jsonl", mixed_rows())
    scans = {check.id: check.scan for check in all_checks() if check.scan is not None}
    tokenizer = load_tokenizer(CHATML)
    usual = collect(FileSource(str(path)), tokenizer=tokenizer, profile=TRL, scans=scans)
    other = collect(FileSource(str(path)), tokenizer=tokenizer, profile=TRL, scans=scans, batch=batch)
    for name in (
        "line",
        "shape",
        "pair_hash",
        "prompt_hash",
        "form",
        "readable",
        "answer_chars",
        "templated",
    ):
        assert (getattr(usual, name) == getattr(other, name)).all(), name
    assert usual.tokens is not None
    assert other.tokens is not None
    for name in ("full", "kept", "kept_loss", "full_loss", "stop", "mismatch", "dropped"):
        assert (getattr(usual.tokens, name) == getattr(other.tokens, name)).all(), name
    assert {id: hits.kinds for id, hits in usual.hits.items()} == {
        id: hits.kinds for id, hits in other.hits.items()
    }
    assert [view.row.row for view in usual.sample] == [view.row.row for view in other.sample]


def test_reading_again_gives_the_same_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the text budget the rows are read a second time instead of being kept."""
    kept = audited(tmp_path, mixed_rows(), eval_rows=sound_rows(80)[60:])
    monkeypatch.setattr(collecting, "TEXT_BUDGET", 100)
    again = audited(tmp_path, mixed_rows(), eval_rows=sound_rows(80)[60:])
    assert kept.findings == again.findings
    assert {"eval.contamination_exact", "data.duplicate_rows"} <= ids(again)


def test_the_sample_is_spread_over_the_whole_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "SAMPLE_FIRST", 10)
    monkeypatch.setattr(collecting, "SAMPLE_SPREAD", 50)
    path = write_rows(tmp_path / "train.jsonl", sound_rows(1000))
    facts = collect(FileSource(str(path)), tokenizer=None, profile=TRL, scans={})
    numbers = [view.row.row for view in facts.sample]
    assert numbers[:10] == list(range(10))
    assert len(numbers) == 60
    assert numbers == sorted(set(numbers))
    assert 300 < float(np.mean(numbers[10:])) < 700


def test_rows_in_memory_give_the_same_findings_as_the_file(tmp_path: Path) -> None:
    rows = [row for row in mixed_rows() if isinstance(row, dict) and row.get("messages") != 3]
    path = write_rows(tmp_path / "train.jsonl", rows)
    tokenizer = load_tokenizer(CHATML)
    data = read_rows(str(path))
    tokens = tokenize_many([conversation_of(row) for row in data.rows], tokenizer, TRL)
    inside = audit_rows(data.rows, tokens, path=str(path), profile=TRL, tokenizer=tokenizer, select=["data."])
    outside = audited(tmp_path, rows, select=["data."])
    assert inside.findings == outside.findings


def test_two_processes_print_the_same_bytes(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", mixed_rows())
    code = (
        "import sys\nfrom gradian.audit.context import AuditInputs\nfrom gradian.audit.diagnosis import "
        "diagnose\nfrom gradian.audit.output import render\n"
        f"result = diagnose(AuditInputs(dataset='train.jsonl', base_model={CHATML!r}))\n"
        "[sys.stdout.buffer.write(render(result, f).encode()) for f in ('json', 'text', 'sarif')]"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]


def test_appended_sound_rows_keep_the_fingerprints(tmp_path: Path) -> None:
    before = {f.id: f.fingerprint for f in audited(tmp_path, mixed_rows()).findings}
    after = {f.id: f.fingerprint for f in audited(tmp_path, mixed_rows() + sound_rows(200)[100:]).findings}
    shared = before.keys() & after.keys()
    assert {"data.parse_error", "data.empty_completion", "data.duplicate_rows"} <= shared
    assert all(before[id] == after[id] for id in shared if id != "data.parse_error")


def test_skipped_checks_have_a_reason(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "train.jsonl", sound_rows(20))
    result = diagnose(AuditInputs(dataset=str(path)))
    assert result.checks_skipped["token.missing_eos"] == "no tokenizer"
    assert result.checks_skipped["eval.too_small"] == "no eval set"
    assert result.checks_skipped["adapter.zero_b"] == "no run"
    assert len(result.checks_run) + len(result.checks_skipped) == len(all_checks())
    run_only = diagnose(AuditInputs(run=str(FIXTURES / "cases" / "13-adapter-never-trained" / "run")))
    assert run_only.checks_skipped["data.duplicate_rows"] == "no dataset"
    assert "adapter.zero_b" in run_only.checks_run
    assert run_only.rows is None


def test_deselected_checks_are_not_run(tmp_path: Path) -> None:
    result = audited(tmp_path, [pair("Why?", "")], select=["data.duplicate"])
    assert result.checks_run == ("data.duplicate_rows",)
    assert len(result.checks_deselected) == len(all_checks()) - 1
    assert result.findings == ()


def test_exit_codes(tmp_path: Path) -> None:
    error = audited(tmp_path, [pair("Why?", "")])
    assert [exit_code(error, level) for level in ("error", "warning", "info", "never")] == [1, 1, 1, 0]
    info = audited(tmp_path, sound_rows(20))
    assert [exit_code(info, level) for level in ("error", "warning", "info", "never")] == [0, 0, 1, 0]
    with pytest.raises(ConfigError):
        exit_code(info, "fatal")


def test_bad_input_is_one_clear_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for inputs in (
        AuditInputs(),
        AuditInputs(dataset=str(tmp_path / "absent.jsonl")),
        AuditInputs(dataset=str(empty)),
        AuditInputs(dataset=str(tmp_path)),
        AuditInputs(run=str(tmp_path / "absent")),
        AuditInputs(
            dataset=str(write_rows(tmp_path / "t.jsonl", sound_rows(2))), base_model=str(tmp_path / "no")
        ),
        AuditInputs(dataset=str(tmp_path / "t.jsonl"), trainer="nonsense==1"),
    ):
        with pytest.raises(GradianError):
            diagnose(inputs)


def test_a_damaged_tokenizer_in_the_run_is_named_and_not_fatal(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "tokenizer.json").write_text("{broken")
    path = write_rows(tmp_path / "train.jsonl", sound_rows(20))
    result = diagnose(AuditInputs(dataset=str(path), run=str(run), base_model=CHATML))
    assert any("tokenizer" in problem for problem in result.problems)
    assert "data.truncated_completion" in result.checks_run
    assert "tokenizer" in render(result)


def test_progress_is_told(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "train.jsonl", sound_rows(20))
    told: list[tuple[str, int]] = []
    diagnose(AuditInputs(dataset=str(path)), progress=lambda name, rows: told.append((name, rows)))
    assert told == [(str(path), 20)]


def test_hub_names_that_only_the_run_states_are_not_fatal(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "acme/none", "r": 4}))
    path = write_rows(tmp_path / "train.jsonl", sound_rows(20))
    result = diagnose(AuditInputs(dataset=str(path), run=str(run)))
    assert result.checks_skipped["data.truncated_completion"] == "no tokenizer"


def test_scans_of_deselected_checks_do_not_run(tmp_path: Path) -> None:
    chosen = selected_checks(["data.duplicate"])
    assert all(check.scan is None for check in chosen)
