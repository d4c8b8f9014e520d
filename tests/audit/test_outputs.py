"""Every rendering: complete, valid in its medium, and safe against hostile rows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gradian.audit.context import AuditInputs
from gradian.audit.diagnosis import diagnose
from gradian.audit.output import FORMATS, render
from gradian.audit.places import place_of
from gradian.audit.registry import all_checks
from gradian.audit.runner import AuditResult
from gradian.errors import ConfigError
from support.auditing import FIXTURES, audited, chat, pair, sound_rows

HOSTILE = (
    "\x1b[31mred\x1b[0m \x00\x07 \u202egnp.exe \u200b | pipe | ``` [link](http://evil) "
    "<script>alert(1)</script> ::error file=x,line=1::pwned %0A\r\n::warning::again {{ 7*7 }}"
)


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AuditResult:
    monkeypatch.chdir(FIXTURES / "cases" / "02-all-labels-masked-loss-zero")
    return diagnose(AuditInputs(dataset="train.jsonl", run="run", base_model="../_tokenizers/chatml"))


@pytest.fixture
def hostile(tmp_path: Path) -> AuditResult:
    rows = [
        *sound_rows(30),
        pair(HOSTILE, HOSTILE),
        pair(HOSTILE, "other " + HOSTILE),
        {"messages": [{"role": HOSTILE, "content": HOSTILE}, {"role": "assistant", "content": ""}]},
        chat(HOSTILE, HOSTILE, system=HOSTILE),
        {HOSTILE: HOSTILE},
        pair("As JSON?", '{"' + HOSTILE.replace('"', "")),
        "{" + HOSTILE,
        pair("half \ud83d", HOSTILE),
    ]
    return audited(tmp_path, rows, eval_rows=[pair(HOSTILE, HOSTILE)])


@pytest.mark.parametrize("format", FORMATS)
def test_every_headline_is_in_every_format(result: AuditResult, format: str) -> None:
    text = render(result, format)
    for finding in result.headlines:
        assert finding.id in text.replace("\\", "")
    assert render(result, format) == text


@pytest.mark.parametrize("format", FORMATS)
def test_hostile_rows_write_nothing_of_their_own(hostile: AuditResult, format: str) -> None:
    text = render(hostile, format)
    assert len(hostile.findings) >= 8
    for character in ("\x1b", "\x00", "\x07", "\u202e", "\u200b", "\ud83d", "\r"):
        assert character not in text, repr(character)
    text.encode()  # a lone surrogate would raise
    if format == "markdown":
        assert "<script" not in text
        assert not re.search(r"(?<!\\)\]\(", text)
    if format == "github":
        assert all(re.match(r"::(error|warning|notice) ", line) for line in text.splitlines())
        assert len(text.splitlines()) == len(hostile.headlines)
    if format == "text":
        assert not [line for line in text.splitlines() if line.startswith("::")]


def test_text_lists_a_consequence_under_its_cause(result: AuditResult) -> None:
    text = render(result)
    assert text.count("adapter.zero_b") == 1
    assert "  follows   adapter.zero_b: 14 of 14" in text
    assert text.index("E data.no_trainable_tokens") < text.index("follows   logs.loss_zero")
    assert "fix       max_length 128 -> 256" in text
    assert text.splitlines()[0].startswith("trainer     TRL 1.8.0")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_asked(result: AuditResult, hostile: AuditResult, width: int) -> None:
    for audit in (result, hostile):
        assert max(len(line) for line in render(audit, width=width).splitlines()) <= width


def test_colour_is_only_on_demand(result: AuditResult) -> None:
    assert "\x1b" not in render(result)
    assert "\x1b[1;31mE\x1b[0m data.no_trainable_tokens" in render(result, color=True)


def test_the_last_line_counts_and_gives_reasons(tmp_path: Path) -> None:
    last = render(audited(tmp_path, sound_rows(120), profile=None), width=4000).splitlines()[-1]
    total = len(all_checks())
    assert re.match(rf"No findings\. Checked \d+ of {total} checks; skipped \d+: ", last)
    assert "no eval set (" in last
    assert "no run (" in last


def test_silence_when_all_is_well(tmp_path: Path) -> None:
    text = render(audited(tmp_path, sound_rows(120)), width=300)  # room for the longest temporary folder
    assert not re.search(r"(?i)\bok\b|passed|✓|✔", text)
    assert len(text.splitlines()) <= 8


def test_json_has_the_promised_keys(result: AuditResult) -> None:
    content = json.loads(render(result, "json"))
    assert content["schema_version"] == 1
    assert {"profile", "summary", "checks", "findings", "inputs", "tool"} <= content.keys()
    assert {"run", "skipped"} <= content["checks"].keys()
    assert all({"id", "reason"} <= entry.keys() for entry in content["checks"]["skipped"])
    first = content["findings"][0]
    assert {
        "id",
        "severity",
        "title",
        "rows",
        "count",
        "of",
        "values",
        "assumes",
        "fix",
        "fingerprint",
    } <= first.keys()
    by_id = {finding["id"]: finding for finding in content["findings"]}
    cause = by_id["data.no_trainable_tokens"]
    assert cause["fix"]["key"] == "max_length"
    assert (cause["fix"]["from"], cause["fix"]["to"]) == (128, 256)
    assert by_id["adapter.zero_b"]["follows_from"] == "data.no_trainable_tokens"
    assert cause["rows"] == list(range(48))
    assert content["summary"]["errors"] == 1
    assert content["inputs"]["dataset"]["sha256"]


def test_json_lines_are_the_findings(result: AuditResult) -> None:
    lines = [json.loads(line) for line in render(result, "jsonl").splitlines()]
    assert lines == json.loads(render(result, "json"))["findings"]


def test_sarif_structure(result: AuditResult) -> None:
    log = json.loads(render(result, "sarif"))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [check.id for check in all_checks()]
    assert all(
        {"shortDescription", "fullDescription", "help", "helpUri", "defaultConfiguration"} <= rule.keys()
        for rule in rules
    )
    levels = {"error", "warning", "note", "none"}
    for entry in run["results"]:
        assert rules[entry["ruleIndex"]]["id"] == entry["ruleId"]
        assert entry["level"] in levels
        assert entry["message"]["text"]
        assert entry["partialFingerprints"]["gradianFinding/v1"]
        assert len(entry["locations"]) <= 20
        assert (entry.get("kind") == "informational") is ("followsFrom" in entry["properties"])
    cause = next(entry for entry in run["results"] if entry["ruleId"] == "data.no_trainable_tokens")
    physical = cause["locations"][2]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "train.jsonl"
    assert physical["region"] == {"startLine": 3}


def test_github_annotations_point_at_lines(result: AuditResult) -> None:
    first = render(result, "github").splitlines()[0]
    assert first.startswith("::error file=train.jsonl,line=1,title=data.no_trainable_tokens::48 of 48 rows")
    assert "%0A" in first


@pytest.mark.parametrize(
    ("location", "file", "line", "uri"),
    [
        ("train.jsonl:812", "train.jsonl", 812, "train.jsonl"),
        ("a b/train.jsonl:1", "a b/train.jsonl", 1, "a%20b/train.jsonl"),
        ("train.parquet[811]", "train.parquet", None, "train.parquet"),
        ("run/train.yaml: learning_rate", "run/train.yaml", None, "run/train.yaml"),
        ("/data/x.jsonl:3", "/data/x.jsonl", 3, "file:///data/x.jsonl"),
    ],
)
def test_places(location: str, file: str, line: int | None, uri: str) -> None:
    place = place_of(location)
    assert (place.file, place.line, place.uri) == (file, line, uri)


def test_an_unknown_format_is_an_error(result: AuditResult) -> None:
    with pytest.raises(ConfigError, match="sarif"):
        render(result, "xml")
