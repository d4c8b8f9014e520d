"""`--redact`: nothing that a row or an item holds is printed or written, in any format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gradian
from gradian.audit.finding import Finding, Fix, Severity
from gradian.audit.redact import redacted_finding
from gradian.audit.registry import all_checks
from gradian.cli import main
from gradian.evaluation.compare import compare
from gradian.evaluation.redact import redacted_result
from gradian.evaluation.result import Answer, Counts, EvaluationResult, ItemEvaluation
from gradian.report.render import render
from gradian.verbs.evaluate import Evaluated
from support.reports import MECHANICAL

SECRET = "xylophonist"
FORMATS = ("text", "json", "jsonl", "sarif", "github", "markdown")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Rows with the secret wherever a check quotes: answers that repeat, are cut, contradict, use odd roles."""

    def pair(prompt: str, completion: str) -> dict[str, object]:
        return {"prompt": prompt, "completion": completion}

    records: list[dict[str, object]] = [pair(f"{SECRET} number {n}?", SECRET) for n in range(30)]
    records += [
        pair(f"the {SECRET} of {n}", f"I'm sorry, {SECRET}. As an AI, I cannot do {n}.") for n in range(9)
    ]
    records += [pair(f"one {SECRET}", f"{SECRET} {word}") for word in ("red", "blue", "green moon")]
    records += [pair(f"json {n}", f'{{"{SECRET}": "{SECRET}", "n": [{n}, {{"a": ') for n in range(6)]
    records += [pair(f"caf\u00c3\u00a9 {SECRET} {n}", f"caf\u00c3\u00a9 {SECRET} {n} ") for n in range(4)]
    records += [pair(f"again {n}", f"{SECRET} and then " * 40) for n in range(3)]
    records += [{"messages": [{"role": SECRET, "content": SECRET}, {"role": "assistant", "content": "yes"}]}]
    records += [{"messages": [{"role": "system", "content": f"{SECRET} {n % 2}"},
                              {"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}]}
                for n in range(4)]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(record) for record in records]
    path.write_text("\n".join([*lines, f'{{"prompt": "{SECRET}", {SECRET}']) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("format", FORMATS)
def test_diagnose_quotes_no_row(rows: Path, format: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["diagnose", "--dataset", str(rows), "--eval-dataset", str(rows), "--format", format, "-q"]
    main(arguments)
    told = capsys.readouterr().out
    assert SECRET in told, "what is hidden must be there without the flag"
    main([*arguments, "--redact"])
    hidden = capsys.readouterr().out
    assert SECRET not in hidden
    assert "data.parse_error" in hidden
    assert "rows.jsonl" in hidden


def test_diagnose_keeps_ids_rows_counts_and_places(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["diagnose", "--dataset", str(rows), "--eval-dataset", str(rows), "--json", "-q"]
    main(arguments)
    told = json.loads(capsys.readouterr().out)["findings"]
    main([*arguments, "--redact"])
    hidden = json.loads(capsys.readouterr().out)["findings"]
    assert len(told) == len(hidden) > 5
    for before, after in zip(told, hidden, strict=True):
        for key in ("id", "severity", "rows", "locations", "count", "of", "fingerprint", "consequences"):
            assert before[key] == after[key]
        assert (before["fix"] is None) == (after["fix"] is None)
        if before["fix"]:
            assert before["fix"]["remove_rows"] == after["fix"]["remove_rows"]


def test_a_baseline_and_the_python_api_are_redacted_too(rows: Path, tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    main(["diagnose", "--dataset", str(rows), "--write-baseline", str(known), "--redact", "-q"])
    assert SECRET not in known.read_text()
    assert SECRET not in str(gradian.diagnose(dataset=rows, redact=True).findings)
    assert SECRET in str(gradian.diagnose(dataset=rows).findings)


def test_every_check_of_rows_is_redacted_and_numbers_stay() -> None:
    quoting = [check for check in all_checks() if check.family in ("data", "eval", "template", "token")]
    assert len(quoting) > 30
    for check in quoting:
        before = Finding(
            id=check.id,
            severity=Severity.WARNING,
            title=f"says {SECRET}",
            message=SECRET,
            rows=(4, 7),
            values={"share": 0.5, SECRET: 3, "samples": {"4": SECRET}, "role": SECRET, "ids": [1, 2]},
            fix=Fix.change("max_length", 512, 1024, text=f"for {SECRET}"),
        )
        after = redacted_finding(before)
        assert SECRET not in after.model_dump_json()
        assert after.values == {"share": 0.5}
        assert after.fix is not None
        assert after.fix.text == "max_length 512 -> 1024"
        removing = before.model_copy(update={"fix": Fix(text=SECRET, remove_rows=(4, 7))})
        assert redacted_finding(removing).fix == Fix(text="leave out 2 rows (rows 4, 7)", remove_rows=(4, 7))
    config = Finding(id="config.lr_high", severity=Severity.ERROR, title="learning rate 1", message="why")
    assert redacted_finding(config) == config


def evaluation() -> EvaluationResult:
    """Two items, the secret in every text of both."""

    def answer(text: str) -> Answer:
        return Answer(ids=(71, 72, 73), stop_id=2, text=text, extracted=text, reason=f"not {SECRET}")

    items = tuple(
        ItemEvaluation(
            item=n,
            file="eval.jsonl",
            line=n + 1,
            group=None,
            outcome="lost",
            prompt=f"{SECRET}?",
            prompt_ids=(71, 72),
            wanted=SECRET,
            wanted_ids=(71, 72, 2),
            base=answer(SECRET),
            tuned=answer(f"no {SECRET}"),
            base_score=1.0,
            tuned_score=0.0,
            base_wanted_nll=0.5,
            tuned_wanted_nll=3.0,
        )
        for n in range(2)
    )
    compared = compare([1, 1], [0, 0], rng=np.random.default_rng(0), resamples=1000)
    return EvaluationResult(
        metric="exact",
        graded=False,
        eval_dataset="eval.jsonl",
        eval_sha256="0" * 64,
        items_in_file=2,
        partial=False,
        max_new_tokens=8,
        token_limit_from="given",
        batch_size=2,
        seed=0,
        stop_ids=(2,),
        pad_id=0,
        arms="arms",
        items=items,
        comparison=compared,
        base_counts=Counts(),
        tuned_counts=Counts(),
        base_nll=0.5,
        tuned_nll=3.0,
        base_margin=None,
        tuned_margin=None,
        base_margin_median=None,
        base_fails=0,
    )


@pytest.mark.parametrize("format", ["text", "json", "markdown", "html"])
def test_evaluate_shows_no_item(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "gradian.verbs.evaluate.evaluate",
        lambda settings, listener=None: Evaluated(evaluation(), "id", False),
    )
    arguments = ["evaluate", "--base-model", "b", "--eval-dataset", "eval.jsonl", "--format", format, "-q"]
    assert main(arguments) == 0
    assert SECRET in capsys.readouterr().out
    assert main([*arguments, "--redact", "--out", str(tmp_path)]) == 0
    hidden = capsys.readouterr().out
    assert SECRET not in hidden
    assert f"{len(SECRET)} characters" in hidden
    written = [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()]
    assert len(written) == 4
    assert not any(SECRET in text for text in written)


def test_a_redacted_evaluation_keeps_its_numbers_and_is_read_back(tmp_path: Path) -> None:
    before, after = evaluation(), redacted_result(evaluation())
    path = tmp_path / "evaluation.json"
    after.save(path)
    assert EvaluationResult.load(path) == after
    assert "71" not in path.read_text(), "token ids are the text in another spelling"
    assert after.comparison == before.comparison
    first = after.items[0]
    assert first.wanted == f"[redacted: {len(SECRET)} characters, 3 tokens]"
    assert first.tuned is not None
    assert first.tuned.text == f"[redacted: {len(SECRET) + 3} characters, 3 tokens]"
    assert (first.base_score, first.tuned_score, first.line) == (1.0, 0.0, 1)


@pytest.mark.parametrize("format", ["text", "json", "markdown", "html"])
def test_a_report_s_findings_quote_no_row(format: str) -> None:
    said = Finding(
        id="data.label_imbalance",
        severity=Severity.ERROR,
        title=f"answers are {SECRET}",
        message=SECRET,
        fix=Fix(text=f"fewer {SECRET}"),
    )
    shared = MECHANICAL.groups[0].findings[0].model_copy(update={"title": SECRET, "fix": SECRET})
    group = MECHANICAL.groups[0].model_copy(update={"findings": (shared,)})
    report = MECHANICAL.model_copy(update={"findings": (said,), "groups": (group,)})
    assert SECRET in render(report, format, width=200)
    assert SECRET not in render(report, format, redact=True, width=200)
