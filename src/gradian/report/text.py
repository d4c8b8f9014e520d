"""Hostile text made safe for each medium: `gradian.safe_text`, which the audit uses too."""

from gradian.safe_text import (
    code_spans,
    encodable,
    excerpt,
    markdown,
    markdown_code,
    markdown_fence,
    markdown_prose,
    one_line,
    truncate,
    visible,
)

__all__ = [
    "code_spans",
    "encodable",
    "excerpt",
    "markdown",
    "markdown_code",
    "markdown_fence",
    "markdown_prose",
    "one_line",
    "truncate",
    "visible",
]
