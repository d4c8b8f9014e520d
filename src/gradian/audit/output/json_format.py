"""JSON for one program, JSON lines for a stream of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gradian.audit.output.plain import finding_dict, result_dict

if TYPE_CHECKING:
    from gradian.audit.runner import AuditResult


def render_json(result: AuditResult) -> str:
    """The whole result as one JSON object.

    Written in ASCII: lone surrogates, control characters and bidirectional marks of hostile rows are escapes.
    """
    return json.dumps(result_dict(result), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def render_jsonl(result: AuditResult) -> str:
    """One finding a line; empty when there is none."""
    lines = [
        json.dumps(finding_dict(finding), ensure_ascii=True, allow_nan=False) for finding in result.findings
    ]
    return "".join(f"{line}\n" for line in lines)
