"""GitHub workflow commands: annotations on the files of a pull request.

Escapes as the runner's toolkit defines them: `%`, carriage return and line feed in data; `:` and `,` too in
properties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradian.audit.finding import Severity
from gradian.audit.places import place_of
from gradian.safe_text import visible

if TYPE_CHECKING:
    from gradian.audit.finding import Finding
    from gradian.audit.runner import AuditResult

_COMMAND = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def render_github(result: AuditResult) -> str:
    """One command for each headline; empty when there is none."""
    by_id = {finding.id: finding for finding in result.findings}
    return "".join(f"{_command(finding, by_id)}\n" for finding in result.headlines)


def _command(finding: Finding, by_id: dict[str, Finding]) -> str:
    properties = []
    if finding.locations:
        place = place_of(finding.locations[0])
        properties.append(f"file={_property(visible(place.file))}")
        if place.line is not None:
            properties.append(f"line={place.line}")
    properties.append(f"title={_property(finding.id)}")
    lines = [finding.title, finding.message, f"fix: {finding.fix.text}" if finding.fix else ""]
    lines += [f"follows: {id}: {by_id[id].title}" for id in finding.consequences]
    text = visible("\n".join(line for line in lines if line))
    return f"::{_COMMAND[finding.severity]} {','.join(properties)}::{_data(text)}"
