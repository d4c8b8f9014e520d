"""Run the checks: which can run, what they saw, one headline per cause.

It knows nothing of files and formats beyond the context, and prints nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradian.audit.causes import attach_consequences
from gradian.audit.collect import collect
from gradian.audit.context import AuditContext, AuditInputs, Progress, first_missing
from gradian.audit.facts import SAMPLES, SHAPES, DatasetFacts, TokenFacts
from gradian.audit.finding import Finding, Severity
from gradian.audit.places import place_of
from gradian.audit.registry import Check, NotApplicableError, Observation, checked_thresholds, selected_checks
from gradian.audit.source import MemorySource
from gradian.errors import ConfigError
from gradian.rows.profile import TrainerProfile
from gradian.rows.row import Row, TokenizedRow

if TYPE_CHECKING:
    from gradian.rows.tokenizer import Tokenizer
    from gradian.run.folder import Run


@dataclass(frozen=True)
class AuditResult:
    """What an audit found.

    Attributes:
        profile: the trainer behaviour that was assumed.
        findings: sorted: errors first, then by the share affected, then by id. Consequences are in it too.
        checks_run: ids. checks_skipped: id -> why.
        inapplicable: those of the skipped checks that had their inputs and nothing to look at in them.
        checks_deselected: ids that `--select` and `--ignore` left out.
        inputs: what was read: name -> path, sha256, bytes.
        rows, eval_items: numbers of records; None when none were given.
        facts: short statements about the rows for the header (tokens, template, left out).
        problems: what is there and could not be read.
        known: findings that a baseline took out of `findings`.
    """

    profile: TrainerProfile
    findings: tuple[Finding, ...]
    checks_run: tuple[str, ...]
    checks_skipped: Mapping[str, str]
    checks_deselected: tuple[str, ...] = ()
    inapplicable: frozenset[str] = frozenset()
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: int | None = None
    eval_items: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    known: tuple[Finding, ...] = ()

    @property
    def headlines(self) -> tuple[Finding, ...]:
        """The findings that do not follow from another one."""
        return tuple(finding for finding in self.findings if finding.follows_from is None)


def run_audit(
    inputs: AuditInputs,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    thresholds: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Diagnose a data set, a run, or both.

    Raises:
        ConfigError: nothing was given, or `select`, `ignore` or a threshold names no check.
        InputError, ModelError: something that was given cannot be read.
    """
    if not (inputs.dataset or inputs.run or inputs.eval_dataset or inputs.base_model):
        raise ConfigError("nothing to diagnose", fix="give --dataset train.jsonl, --run RUN_FOLDER, or both")
    checks = selected_checks(select, ignore)
    context = AuditContext(
        inputs=inputs,
        thresholds=checked_thresholds(thresholds or {}),
        scans={check.id: check.scan for check in checks if check.scan is not None},
        progress=progress,
    )
    return audit(context, checks)


def audit_rows(
    rows: Sequence[Row],
    tokenized: Sequence[TokenizedRow],
    *,
    path: str,
    profile: TrainerProfile,
    tokenizer: Tokenizer,
    run: Run | None = None,
    base_model: str | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    thresholds: Mapping[str, float] | None = None,
) -> AuditResult:
    """The same audit over rows that another lane has read and tokenised, without doing either again.

    Args:
        rows: all rows of the data set, in order. tokenized: their tokens, one for each row.
        path: what to call the data set.
        profile, tokenizer, run: as they were used for the tokens.

    Raises:
        ConfigError: `select`, `ignore` or a threshold names no check.
    """
    assert len(rows) == len(tokenized), "every row has its tokens"
    checks = selected_checks(select, ignore)
    scans = {check.id: check.scan for check in checks if check.scan is not None}
    inputs = AuditInputs(dataset=path, run=str(run.path) if run is not None else None, base_model=base_model)
    context = AuditContext(inputs=inputs, thresholds=checked_thresholds(thresholds or {}), scans=scans)
    facts = collect(
        MemorySource(rows, path), tokenizer=tokenizer, profile=profile, scans=scans, tokenized=tokenized
    )
    context.preset(dataset=facts, profile=profile, tokenizer=tokenizer, run=run)
    return audit(context, checks)


def audit(context: AuditContext, checks: Sequence[Check]) -> AuditResult:
    """Carry out these checks in this context."""
    from gradian.audit.registry import all_checks

    findings: list[Finding] = []
    ran: list[str] = []
    skipped: dict[str, str] = {}
    inapplicable: set[str] = set()
    for check in checks:
        reason = first_missing(context, check.needs)
        if reason is None:
            try:
                findings += _carry_out(check, context)
                ran.append(check.id)
            except NotApplicableError as not_applicable:
                reason = str(not_applicable)
                inapplicable.add(check.id)
        if reason is not None:
            skipped[check.id] = reason
    chosen = {check.id for check in checks}
    return AuditResult(
        profile=context.profile,
        findings=tuple(attach_consequences(sorted(findings, key=_order))),
        checks_run=tuple(ran),
        checks_skipped=skipped,
        inapplicable=frozenset(inapplicable),
        checks_deselected=tuple(check.id for check in all_checks() if check.id not in chosen),
        inputs=_inputs(context),
        rows=context.dataset.rows if context.dataset is not None else None,
        eval_items=context.eval.rows if context.eval is not None else None,
        facts=_facts(context),
        problems=_problems(context),
    )


def _carry_out(check: Check, context: AuditContext) -> Iterable[Finding]:
    hits = None
    if check.scan is not None:
        assert context.dataset is not None, f"{check.id} scans rows and must need Need.ROWS"
        hits = context.dataset.hits[check.id]
    return [_finding(check, observation, context) for observation in check.run(context, hits)]


def _finding(check: Check, seen: Observation, context: AuditContext) -> Finding:
    rows = tuple(sorted({int(row) for row in seen.rows}))
    facts = context.eval if seen.of_eval else context.dataset
    locations = [_in_run(context, location) for location in seen.locations]
    if not locations and not rows and seen.fix is not None and seen.fix.file is not None:
        locations = [_in_run(context, seen.fix.file)]
    if facts is not None:
        locations += [facts.where(row) for row in rows[:SAMPLES]]
    of = seen.of if seen.of is not None else (facts.rows if rows and facts is not None else 0)
    return Finding(
        id=check.id,
        severity=seen.severity or check.severity,
        title=seen.title,
        message=seen.message,
        rows=rows,
        locations=tuple(locations),
        count=seen.count if seen.count is not None else len(rows),
        of=of,
        values=dict(seen.values),
        assumes=seen.assumes,
        fix=seen.fix,
        row_level=check.row_level if seen.row_level is None else seen.row_level,
        of_eval=seen.of_eval,
        fingerprint=_fingerprint(check, seen, facts, rows),
    )


def _in_run(context: AuditContext, location: str) -> str:
    """A file of the run, which checks name relative to its folder, as the user would open it."""
    if context.inputs.run is None or Path(location).is_absolute():
        return location
    file = place_of(location).file
    return (
        str(Path(context.inputs.run) / location) if (Path(context.inputs.run) / file).exists() else location
    )


def _fingerprint(check: Check, seen: Observation, facts: DatasetFacts | None, rows: Sequence[int]) -> str:
    """16 hex digits that stay when rows are appended, moved or counted anew.

    A finding about rows is known by its check, its severity and the content of its first row; any other one
    by its check, its severity and the key that its fix changes.
    """
    parts = [check.id, "eval" if seen.of_eval else "train"]
    if rows and facts is not None:
        parts.append(f"{int(facts.pair_hash[rows[0]]):016x}")
    elif seen.fix is not None and seen.fix.key is not None:
        parts.append(seen.fix.key)
    return hashlib.blake2b("\x00".join(parts).encode(), digest_size=8).hexdigest()


def _order(finding: Finding) -> tuple[int, float, str]:
    share = finding.count / finding.of if finding.of else 0.0
    return (finding.severity.rank, -share, finding.id)


def _inputs(context: AuditContext) -> dict[str, dict[str, Any]]:
    named: dict[str, dict[str, Any]] = {}
    for name, facts in (("dataset", context.dataset), ("eval_dataset", context.eval)):
        if facts is not None:
            named[name] = {"path": facts.path, "sha256": facts.sha256, "bytes": facts.bytes}
    if context.inputs.run is not None:
        named["run"] = {"path": context.inputs.run}
    if context.base_model_name is not None:
        tokenizer = context.base_tokenizer
        named["base_model"] = {
            "path": context.base_model_name,
            "tokenizer_sha256": tokenizer.sha256 if tokenizer is not None else None,
        }
    return named


def _problems(context: AuditContext) -> tuple[str, ...]:
    run = context.run.problems if context.run is not None else ()
    unreadable = (f"{problem.path}: {problem.why}" for problem in run if problem.kind == "unreadable")
    return (*unreadable, *context.problems)


def _facts(context: AuditContext) -> dict[str, Any]:
    """What the header of a report says about the rows."""
    said: dict[str, Any] = {}
    if context.tokenizer is not None:
        said["tokenizer"] = context.tokenizer.name_or_path
        said["template"] = context.template_source
    for name, facts in (("dataset", context.dataset), ("eval_dataset", context.eval)):
        if facts is None:
            continue
        said[name] = {
            "rows": facts.rows,
            "unreadable": len(facts.problems),
            "unusable": sum(len(failure.rows) for failure in facts.unusable),
            "not_tokenised": sum(len(failure.rows) for failure in facts.render_failures),
            "shapes": {SHAPES[code].value: count for code, count in _counted(facts.shape[facts.readable])},
            "tokens": _token_summary(facts.tokens) if facts.tokens is not None else None,
        }
    return said


def _token_summary(tokens: TokenFacts) -> dict[str, int] | None:
    known = tokens.full[tokens.known]
    if len(known) == 0:
        return None
    return {
        "total": int(np.sum(known, dtype=np.int64)),
        "median": int(np.percentile(known, 50, method="lower")),
        "p95": int(np.percentile(known, 95, method="higher")),
        "p99": int(np.percentile(known, 99, method="higher")),
        "longest": int(np.max(known)),
    }


def _counted(codes: NDArray[np.int8]) -> list[tuple[int, int]]:
    values, counts = np.unique(codes, return_counts=True)
    return sorted(zip(values.tolist(), counts.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))


def exit_code(result: AuditResult, fail_on: str = "error") -> int:
    """1 when a finding is at or above `fail_on` (`error`, `warning`, `info` or `never`), else 0.

    Raises:
        ConfigError: `fail_on` is none of these.
    """
    levels = ("error", "warning", "info", "never")
    if fail_on not in levels:
        raise ConfigError(f"--fail-on must be one of {', '.join(levels)}, not {fail_on!r}", where="--fail-on")
    if fail_on == "never":
        return 0
    limit = Severity(fail_on).rank
    return int(any(finding.severity.rank <= limit for finding in result.findings))
