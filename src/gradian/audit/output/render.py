"""The table of formats: one pure function of the result each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gradian.audit.output.github import render_github
from gradian.audit.output.json_format import render_json, render_jsonl
from gradian.audit.output.markdown import render_markdown
from gradian.audit.output.sarif import render_sarif
from gradian.audit.output.text import render_text
from gradian.errors import ConfigError

if TYPE_CHECKING:
    from gradian.audit.runner import AuditResult

FORMATS: dict[str, Callable[[AuditResult], str]] = {
    "text": render_text,
    "json": render_json,
    "jsonl": render_jsonl,
    "sarif": render_sarif,
    "github": render_github,
    "markdown": render_markdown,
}


def render(result: AuditResult, format: str = "text", *, width: int = 100, color: bool = False) -> str:
    """An audit in one of `FORMATS`, ending with a line break unless it is empty.

    Args:
        width, color: for `text` only: columns, and ANSI colours for the severities.

    Raises:
        ConfigError: there is no such format.
    """
    if format not in FORMATS:
        raise ConfigError(
            f"there is no format {format!r}", where="--format", fix=f"one of {', '.join(FORMATS)}"
        )
    if format == "text":
        return render_text(result, width=width, color=color)
    return FORMATS[format](result)
