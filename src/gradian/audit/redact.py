"""An audit without the text of rows, for sharing.

What is left: ids, severities, counts, row numbers, locations, numbers that fired, and fixes that are numbers or rows
to leave out. Checks of files that hold no rows (configuration, logs, adapter, run) keep everything they say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradian.audit.finding import Finding, Fix
from gradian.audit.registry import find_check
from gradian.audit.wording import plural, some
from gradian.errors import ConfigError

if TYPE_CHECKING:
    from gradian.audit.runner import AuditResult

#: Families whose checks read rows: what they write may quote any part of them.
FAMILIES_THAT_QUOTE = frozenset({"data", "eval", "template", "token"})
LEFT_OUT = "[redacted]"
#: Values that stay when they are numbers. Any other name may itself be a word of a row (a role, a label, an answer
#: that is counted), and token ids are text in another spelling.
NUMBERS = frozenset({
    "byte_offset", "characters_median", "characters_total", "contradicting", "differing", "epochs", "error_share",
    "expected_runs", "half_width_points", "high_share", "info_ratio", "items", "json_share", "longest",
    "longest_characters", "loss_tokens", "lost_tokens", "low_share", "max_length", "max_position_embeddings",
    "median", "median_characters", "nothing_masked", "occurrences", "p5", "p50", "p95", "p99", "p99_characters",
    "pairs", "passes", "row_share", "rows_with_it", "runs", "runs_share", "share", "similarity", "surplus",
    "surplus_share", "texts", "threshold", "token_share", "tokens", "top_share", "train_rows", "usual_share",
    "warning_ratio", "warning_share",
})  # fmt: skip


def redacted_result(result: AuditResult) -> AuditResult:
    """The same audit with nothing in it that a row may have put there."""
    return replace(
        result,
        findings=tuple(redacted_finding(finding) for finding in result.findings),
        known=tuple(redacted_finding(finding) for finding in result.known),
    )


def redacted_finding(finding: Finding) -> Finding:
    """The finding under its check's own title, without message and without texts in values and fix."""
    if not quotes_rows(finding.id):
        return finding
    fix = None if finding.fix is None else _redacted_fix(finding.fix, finding.id)
    return finding.model_copy(
        update={
            "title": redacted_title(finding.id),
            "message": "",
            "values": {
                key: value for key, value in finding.values.items() if key in NUMBERS and _is_number(value)
            },
            "fix": fix,
        }
    )


def quotes_rows(id: str) -> bool:
    """True when a finding of this id may quote a row."""
    return id.partition(".")[0] in FAMILIES_THAT_QUOTE


def redacted_title(id: str) -> str:
    """What the check looks for, in place of what it found; the id for a check of another version."""
    try:
        return find_check(id).title
    except ConfigError:
        return id


def _redacted_fix(fix: Fix, id: str) -> Fix:
    """The fix as far as it consists of numbers; where it does not, what to read instead."""
    if fix.key is not None and fix.to is not None and _is_number(fix.to) and _is_number(fix.from_):
        text = f"{fix.key} {fix.from_} -> {fix.to}"
    elif fix.remove_rows:
        text = f"leave out {plural(len(fix.remove_rows), 'row')} ({some(fix.remove_rows)})"
    else:
        text = f"see gradian explain {id}"
    return fix.model_copy(
        update={
            "text": text,
            "from_": fix.from_ if _is_number(fix.from_) else LEFT_OUT,
            "to": fix.to if _is_number(fix.to) else LEFT_OUT,
        }
    )


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float)
