"""Audits of rows that a test writes down, with a trainer profile of its choice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradian.audit.context import AuditContext, AuditInputs
from gradian.audit.finding import Finding
from gradian.audit.registry import checked_thresholds, selected_checks
from gradian.audit.runner import AuditResult, audit
from gradian.rows.profile import TrainerProfile
from gradian.rows.tokenizer import Tokenizer, load_tokenizer
from gradian.run.folder import Run
from gradian.run.settings import RunSettings, SettingsBuilder

FIXTURES = Path(__file__).parents[1] / "fixtures"
TOKENIZERS = FIXTURES / "tokenizers"

#: TRL of today, without a length limit: the profile of most tests.
TRL = TrainerProfile("trl", "1.9.0", reason="TRL 1.9.0", loss_on="completion", assistant_mask="markers")

Record = Mapping[str, Any] | str | bytes


def write_rows(path: Path, rows: Sequence[Record]) -> Path:
    """A JSON-lines file; text and bytes are written as they stand."""
    with path.open("wb") as opened:
        for row in rows:
            if isinstance(row, Mapping):
                opened.write(json.dumps(row).encode() + b"\n")
            else:
                opened.write((row.encode("utf-8", "surrogatepass") if isinstance(row, str) else row) + b"\n")
    return path


def chat(*turns: str, system: str | None = None) -> dict[str, Any]:
    """A `messages` row: user and assistant in turn."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    roles = ("user", "assistant")
    messages += [{"role": roles[index % 2], "content": text} for index, text in enumerate(turns)]
    return {"messages": messages}


def pair(prompt: str, completion: Any) -> dict[str, Any]:
    """A `prompt` + `completion` row."""
    return {"prompt": prompt, "completion": completion}


def sound_rows(count: int) -> list[dict[str, Any]]:
    """Rows that no check has anything to say about: every prompt and every answer is different."""
    nouns = (
        "harbour",
        "lantern",
        "violin",
        "orchard",
        "granite",
        "compass",
        "bakery",
        "meadow",
        "turbine",
        "kayak",
    )
    verbs = (
        "repairs",
        "paints",
        "inspects",
        "carries",
        "measures",
        "sells",
        "lifts",
        "cleans",
        "draws",
        "tests",
    )
    rows = []
    for index in range(count):
        noun, verb = nouns[index % 10], verbs[(index // 10) % 10]
        number = index * 37 + 11
        rows.append(
            pair(
                f"Who {verb} the {noun} at gate {number}?",
                f" The {noun} of gate {number} is a matter for team {number % 91}, which {verb} {index} of them a day.",
            )
        )
    return rows


def context_for(
    folder: Path,
    rows: Sequence[Record] | None = None,
    *,
    eval_rows: Sequence[Record] | None = None,
    profile: TrainerProfile | None = TRL,
    tokenizer: str | Tokenizer | None = "chatml",
    settings: RunSettings | Mapping[str, Any] | None = None,
    thresholds: Mapping[str, float] | None = None,
    select: Sequence[str] = (),
    **inputs: Any,
) -> tuple[AuditContext, Sequence[Any]]:
    """A context over rows written into `folder`, and the selected checks.

    `profile` None means that there is no run. `tokenizer` is a folder of the fixtures, or one made by the test.
    """
    if rows is not None:
        inputs["dataset"] = str(write_rows(folder / "train.jsonl", rows))
    if eval_rows is not None:
        inputs["eval_dataset"] = str(write_rows(folder / "eval.jsonl", eval_rows))
    checks = selected_checks(select)
    context = AuditContext(
        inputs=AuditInputs(**inputs),
        thresholds=checked_thresholds(thresholds or {}),
        scans={check.id: check.scan for check in checks if check.scan is not None},
    )
    loaded = load_tokenizer(str(TOKENIZERS / tokenizer)) if isinstance(tokenizer, str) else tokenizer
    known: dict[str, Any] = {"tokenizer": loaded, "run_tokenizer": None, "base_tokenizer": loaded}
    if profile is None:
        known["run"] = None
    else:
        if not isinstance(settings, RunSettings):
            builder = SettingsBuilder()
            builder.add("train.yaml", dict(settings or {}))
            settings = builder.build()
        known["profile"] = profile
        known["run"] = Run(path=folder, profile=profile, settings=settings, artefacts=("train.yaml",))
    context.preset(**known)
    return context, checks


def audited(folder: Path, rows: Sequence[Record] | None = None, **options: Any) -> AuditResult:
    """The audit of rows; the options are those of `context_for`."""
    context, checks = context_for(folder, rows, **options)
    return audit(context, checks)


def finding(result: AuditResult, id: str) -> Finding:
    """The one finding of this id."""
    found = [finding for finding in result.findings if finding.id == id]
    assert len(found) == 1, f"{len(found)} findings of {id} among {[f.id for f in result.findings]}"
    return found[0]


def ids(result: AuditResult) -> set[str]:
    """The ids of all findings."""
    return {finding.id for finding in result.findings}
