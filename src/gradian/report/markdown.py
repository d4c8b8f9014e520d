"""The report as Markdown (GitHub's dialect), for pull requests, issues and model cards."""

from __future__ import annotations

from gradian.report.content import (
    MARKDOWN,
    Block,
    Bullets,
    Cell,
    Column,
    Comparisons,
    Facts,
    Notes,
    Prose,
    Steps,
    Table,
)
from gradian.report.model import Report
from gradian.report.sections import sections
from gradian.report.text import excerpt, markdown, markdown_code, markdown_fence, markdown_prose, visible


def render_markdown(report: Report) -> str:
    """The whole report; ends with a line break."""
    parts = [f"# {markdown(report.title)}"]
    for section in sections(report, MARKDOWN):
        if section.id != "verdict":
            parts.append(f"## {section.title}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Prose):
        return _prose(block)
    if isinstance(block, Bullets):
        return _bullets(block)
    if isinstance(block, Facts):
        return _facts(block)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Notes):
        return _notes(block)
    if isinstance(block, Comparisons):
        return _comparisons(block)
    return _steps(block)


def _prose(block: Prose) -> str:
    lines = [markdown_prose(line) for line in visible(block.text).split("\n") if line.strip()]
    text = "  \n".join(lines)  # two spaces: a line break inside the paragraph
    return f"> **{text}**" if block.tone == "warning" else text


def _bullets(block: Bullets) -> str:
    marker = "1." if block.numbered else "-"
    lines = [f"{marker} {markdown_prose(entry)}" for entry in block.entries]
    heading = f"**{block.heading}**\n\n" if block.heading else ""
    return heading + "\n".join(lines)


def _facts(block: Facts) -> str:
    lines = []
    for fact in block.facts:
        note = f" ({markdown_prose(fact.note)})" if fact.note else ""
        lines.append(f"- **{markdown(fact.name)}:** {markdown(fact.value)}{note}")
    heading = f"**{block.heading}**\n\n" if block.heading else ""
    return heading + "\n".join(lines)


def _table(block: Table) -> str:
    header = " | ".join(markdown(column.name) or "&nbsp;" for column in block.columns)
    rule = " | ".join("---:" if column.numeric else "---" for column in block.columns)
    lines = [f"| {header} |", f"| {rule} |"]
    for row in block.rows:
        cells = (_cell(cell, column) for cell, column in zip(row, block.columns, strict=True))
        lines.append(f"| {' | '.join(cells)} |")
    rest = f"\n\n{markdown(block.left_out)}" if block.left_out else ""
    return f"{markdown(block.caption)}\n\n" + "\n".join(lines) + rest


def _cell(cell: Cell, column: Column) -> str:
    text = (
        markdown_code(cell.text, column.limit) if column.code else markdown(excerpt(cell.text, column.limit))
    )
    return f"**{text}**" if cell.tone == "bad" and not column.code else text


def _notes(block: Notes) -> str:
    lines = []
    for note in block.notes:
        evidence = f"  \n  {markdown_prose(note.evidence)}" if note.evidence else ""
        fix = f"  \n  **Fix:** {markdown_prose(note.fix)}" if note.fix else ""
        lines.append(f"- **{note.severity}: {markdown(note.title)}** {markdown_code(note.id)}{evidence}{fix}")
    rest = f"\n\n{markdown(block.left_out)}" if block.left_out else ""
    return "\n".join(lines) + rest


def _comparisons(block: Comparisons) -> str:
    parts = []
    for entry in block.comparisons:
        parts.append(f"### {markdown(excerpt(entry.where, 200))}: {entry.scores}")
        answers = (
            ("Prompt", entry.prompt),
            ("Wanted", entry.wanted),
            ("Base said", entry.base_said),
            ("Tuned said", entry.tuned_said),
        )
        for name, text in answers:
            shown = markdown_fence(excerpt(text, block.characters)) if text else "(empty)"
            parts.append(f"{name}:\n\n{shown}")
    if block.left_out:
        parts.append(markdown(block.left_out))
    return "\n\n".join(parts)


def _steps(block: Steps) -> str:
    lines = []
    for step in block.steps:
        lines.append(f"1. {markdown_prose(step.text)}")
        if step.commands:
            fenced = markdown_fence("\n".join(step.commands))
            lines.append("\n" + "\n".join(f"   {line}" for line in fenced.splitlines()) + "\n")
    return "\n".join(lines)
