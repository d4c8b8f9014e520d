"""Renderings of an audit: text, JSON, JSON lines, SARIF, GitHub annotations, Markdown."""

from gradian.audit.output.render import FORMATS, render

__all__ = ["FORMATS", "render"]
