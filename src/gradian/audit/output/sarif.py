"""SARIF 2.1.0, for code scanning: rules from the registry, results with real lines of the data files.

Layout after the OASIS standard "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", sections
3.13 to 3.30. Consequences are results of their own with `kind: informational`, so that a viewer counts a
cause once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gradian.audit.finding import Finding, Severity
from gradian.audit.output.plain import plain
from gradian.audit.places import place_of
from gradian.audit.registry import Check, all_checks
from gradian.safe_text import visible
from gradian.version import __version__

if TYPE_CHECKING:
    from gradian.audit.runner import AuditResult

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
HELP = "https://github.com/gradian/gradian/blob/main/docs/checks.md"
#: Code scanning shows few places of a result and limits their number.
LOCATIONS = 20

_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render_sarif(result: AuditResult) -> str:
    """The audit as a SARIF log with one run."""
    checks = all_checks()
    index = {check.id: number for number, check in enumerate(checks)}
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "gradian",
                        "version": __version__,
                        "semanticVersion": __version__,
                        "informationUri": HELP,
                        "rules": [_rule(check) for check in checks],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": True}],
                "results": [_result(finding, index[finding.id]) for finding in result.findings],
                "properties": {
                    "skipped": [
                        {"id": id, "reason": reason} for id, reason in sorted(result.checks_skipped.items())
                    ]
                },
            }
        ],
    }
    return json.dumps(log, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def _rule(check: Check) -> dict[str, Any]:
    return {
        "id": check.id,
        "name": "".join(part.capitalize() for part in check.id.replace(".", "_").split("_")),
        "shortDescription": {"text": check.title},
        "fullDescription": {"text": check.explain.split("\n\n")[0].replace("\n", " ")},
        "help": {"text": check.explain, "markdown": check.explain},
        "helpUri": f"{HELP}#{check.id.replace('.', '').lower()}",
        "defaultConfiguration": {"level": _LEVEL[check.severity]},
        "properties": {"tags": [check.family]},
    }


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    texts = [finding.title, finding.message, f"Fix: {finding.fix.text}" if finding.fix else ""]
    result: dict[str, Any] = {
        "ruleId": finding.id,
        "ruleIndex": rule,
        "level": _LEVEL[finding.severity],
        "message": {"text": visible("\n".join(text for text in texts if text))},
        "locations": [_location(location) for location in finding.locations[:LOCATIONS]],
        "partialFingerprints": {"gradianFinding/v1": finding.fingerprint},
        "properties": {
            "rows": list(finding.rows),
            "count": finding.count,
            "of": finding.of,
            "values": plain(finding.values),
        },
    }
    if finding.follows_from is not None:
        result["kind"] = "informational"
        result["level"] = "none"  # 3.27.10: the level of a result that is not a failure
        result["properties"]["followsFrom"] = finding.follows_from
    return result


def _location(location: str) -> dict[str, Any]:
    place = place_of(location)
    physical: dict[str, Any] = {"artifactLocation": {"uri": place.uri}}
    if place.line is not None:
        physical["region"] = {"startLine": place.line}
    return {"physicalLocation": physical}
