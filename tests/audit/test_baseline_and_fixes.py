"""Baselines that survive appended rows, and fixes as files that change nothing of the user's."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import yaml

from gradian.audit.baseline import apply_baseline, write_baseline
from gradian.audit.context import AuditInputs
from gradian.audit.diagnosis import diagnose
from gradian.audit.fixes import emit_fixes
from gradian.audit.output import render
from gradian.errors import InputError
from gradian.rows.files import read_rows
from support.auditing import FIXTURES, audited, ids, pair, sound_rows, write_rows

FAULTY = [*sound_rows(100), pair("Why?", ""), pair("Where?", " At the cafÃ©.")]


def test_what_is_known_is_not_reported_again(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    write_baseline(audited(tmp_path, FAULTY), baseline)
    again = apply_baseline(audited(tmp_path, [*FAULTY, *sound_rows(300)[200:]]), baseline)
    assert again.findings == ()
    assert {finding.id for finding in again.known} == {"data.empty_completion", "data.mojibake"}
    assert "2 findings known from the baseline" in render(again, width=1000)


def test_growth_is_reported(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    write_baseline(audited(tmp_path, FAULTY), baseline)
    grown = apply_baseline(audited(tmp_path, [*FAULTY, pair("Whence?", " ")]), baseline)
    assert ids(grown) == {"data.empty_completion"}
    assert "The baseline knows 1 of these 2." in grown.findings[0].message


def test_writing_twice_gives_the_same_bytes_and_keeps_what_is_known(tmp_path: Path) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    write_baseline(audited(tmp_path, FAULTY), first)
    write_baseline(apply_baseline(audited(tmp_path, FAULTY), first), second)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.json", "2.json", "train.jsonl"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"schema_version": 99}', '{"schema_version": 1, "findings": [{}]}']
)
def test_a_damaged_baseline_is_one_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(content)
    with pytest.raises(InputError):
        apply_baseline(audited(tmp_path, FAULTY), path)
    with pytest.raises(InputError):
        apply_baseline(audited(tmp_path, FAULTY), tmp_path / "absent.json")


def test_a_baseline_in_a_missing_folder_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_baseline(audited(tmp_path, FAULTY), tmp_path / "no" / "baseline.json")


# -- fixes --------------------------------------------------------------------------------------------------


def test_a_cleaned_copy_has_the_same_bytes_but_for_the_removed_lines(tmp_path: Path) -> None:
    rows = [*FAULTY, "{broken", sound_rows(1)[0]]
    result = audited(tmp_path, rows)
    source = (tmp_path / "train.jsonl").read_bytes()
    written = emit_fixes(result, tmp_path / "fixes")
    assert [path.name for path in written] == ["removed_rows.jsonl", "train.clean.jsonl"]
    assert (tmp_path / "train.jsonl").read_bytes() == source
    lines = source.splitlines(keepends=True)
    kept = [line for number, line in enumerate(lines) if number not in (100, 102, 103)]
    assert (tmp_path / "fixes" / "train.clean.jsonl").read_bytes() == b"".join(kept)
    removed = [
        json.loads(line) for line in (tmp_path / "fixes" / "removed_rows.jsonl").read_text().splitlines()
    ]
    assert [(entry["row"], entry["line"], entry["findings"]) for entry in removed] == [
        (100, 101, ["data.empty_completion"]),
        (102, 103, ["data.parse_error"]),
        (103, 104, ["data.duplicate_rows"]),
    ]
    clean = audited(tmp_path, dataset=str(tmp_path / "fixes" / "train.clean.jsonl"))
    assert ids(clean) == {"data.mojibake"}


@pytest.mark.parametrize("kind", ["train.json", "train.jsonl.gz", "train.csv"])
def test_other_kinds_become_json_lines(tmp_path: Path, kind: str) -> None:
    rows = [*sound_rows(20), pair("Why?", " ")]
    path = tmp_path / kind
    if kind.endswith(".gz"):
        path.write_bytes(gzip.compress(write_rows(tmp_path / "x", rows).read_bytes()))
    elif kind.endswith(".csv"):
        lines = ["prompt,completion", *(f'"{row["prompt"]}","{row["completion"]}"' for row in rows)]
        path.write_text("\n".join(lines))
    else:
        path.write_text(json.dumps(rows, indent=1))
    result = diagnose(AuditInputs(dataset=str(path)))
    emit_fixes(result, tmp_path / "fixes")
    clean = read_rows(str(tmp_path / "fixes" / "train.clean.jsonl"))
    assert [row.fields["prompt"] for row in clean.rows] == [row["prompt"] for row in sound_rows(20)]


def test_a_config_patch_is_yaml_with_the_new_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES / "cases" / "01-truncated-completion")
    result = diagnose(AuditInputs(dataset="train.jsonl", run="run", base_model="../_tokenizers/chatml"))
    emit_fixes(result, tmp_path / "fixes")
    patch = (tmp_path / "fixes" / "config_patch.yaml").read_text()
    assert yaml.safe_load(patch)["max_length"] == 1024
    assert "was 256" in patch


def test_nothing_to_fix_writes_nothing(tmp_path: Path) -> None:
    assert emit_fixes(audited(tmp_path, sound_rows(120)), tmp_path / "fixes") == []
    assert not (tmp_path / "fixes").exists()


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    result = audited(tmp_path, FAULTY)
    with pytest.raises(InputError, match="not empty"):
        emit_fixes(result, tmp_path)
    with pytest.raises(InputError):
        emit_fixes(result, tmp_path / "train.jsonl")
