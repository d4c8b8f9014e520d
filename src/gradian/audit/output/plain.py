"""A result as plain JSON values: what every machine-readable format is made of."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from gradian.audit.finding import Finding, Severity
from gradian.audit.registry import find_check
from gradian.version import __version__

if TYPE_CHECKING:
    from gradian.audit.runner import AuditResult

SCHEMA_VERSION = 1


def plain(value: Any) -> Any:
    """JSON values only: numpy scalars and tuples turned, NaN and infinities written as text (JSON has
    none)."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [plain(item) for item in items]
    if hasattr(value, "item"):  # a numpy scalar
        return plain(value.item())
    return str(value) if isinstance(value, PurePath) else repr(value)


def finding_dict(finding: Finding) -> dict[str, Any]:
    """A finding with the keys of the JSON schema."""
    fields = finding.model_dump(mode="python", by_alias=True)
    fields["severity"] = finding.severity.value
    aliases = find_check(finding.id).aliases
    if aliases:
        fields["aliases"] = list(aliases)
    return {key: plain(value) for key, value in fields.items()}


def summary(result: AuditResult) -> dict[str, Any]:
    """Counts of the headlines by severity, of the consequences, and of the rows."""
    counts = Counter(finding.severity for finding in result.headlines)
    return {
        "errors": counts[Severity.ERROR],
        "warnings": counts[Severity.WARNING],
        "infos": counts[Severity.INFO],
        "consequences": len(result.findings) - len(result.headlines),
        "known": len(result.known),
        "rows": result.rows,
        "eval_items": result.eval_items,
        "checks_run": len(result.checks_run),
        "checks_skipped": len(result.checks_skipped),
    }


def result_dict(result: AuditResult) -> dict[str, Any]:
    """The whole result. Holds no time and no absolute path of its own: the same inputs give the same
    bytes."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "gradian", "version": __version__},
        "inputs": plain(result.inputs),
        "profile": plain(dataclasses.asdict(result.profile)),
        "summary": summary(result),
        "facts": plain(result.facts),
        "checks": {
            "run": list(result.checks_run),
            "skipped": [
                {"id": id, "reason": reason, "applicable": id not in result.inapplicable}
                for id, reason in sorted(result.checks_skipped.items())
            ],
            "deselected": list(result.checks_deselected),
        },
        "problems": list(result.problems),
        "findings": [finding_dict(finding) for finding in result.findings],
    }
