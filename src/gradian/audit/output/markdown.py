"""The audit as Markdown, for a pull request or a run's notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradian.audit.finding import Finding
from gradian.audit.output.text import closing_line, header_facts
from gradian.safe_text import markdown, markdown_code

if TYPE_CHECKING:
    from gradian.audit.runner import AuditResult


def render_markdown(result: AuditResult) -> str:
    """The audit as Markdown: every text from rows and files is literal."""
    lines = ["# Gradian: diagnosis", ""]
    lines += [f"- **{name}**: {markdown(text)}" for name, text in header_facts(result)]
    by_id = {finding.id: finding for finding in result.findings}
    for finding in result.headlines:
        lines += ["", *_finding_lines(finding, by_id)]
    return "\n".join([*lines, "", markdown(closing_line(result)), ""])


def _finding_lines(finding: Finding, by_id: dict[str, Finding]) -> list[str]:
    lines = [f"## {finding.severity.value}: `{finding.id}`", "", markdown(finding.title)]
    if finding.message:
        lines += ["", markdown(finding.message)]
    details = []
    if finding.locations:
        more = len(finding.rows) - 5 if len(finding.rows) > 5 else 0
        shown = ", ".join(markdown_code(location) for location in finding.locations[:5])
        details.append(f"- at {shown}{f' and {more:,} more' if more else ''}")
    if finding.assumes:
        details.append(f"- assumes: {markdown(finding.assumes)}")
    if finding.fix is not None:
        details.append(f"- **fix**: {markdown(finding.fix.text)}")
    details += [f"- follows: `{id}`: {markdown(by_id[id].title)}" for id in finding.consequences]
    return [*lines, *([""] if details else []), *details]
