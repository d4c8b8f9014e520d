"""The audit for a terminal: a header, three lines a finding, one line of counts. Nothing about what is
fine."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradian.audit.finding import Finding, Severity
from gradian.audit.wording import listed, plural
from gradian.safe_text import one_line

if TYPE_CHECKING:
    from gradian.audit.runner import AuditResult

_LETTER = {Severity.ERROR: "E", Severity.WARNING: "W", Severity.INFO: "I"}
_COLOR = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.INFO: "36"}
_MARGIN = 12
#: Evidence beyond this is in the JSON; a report that is read has room for two or three lines of it.
EVIDENCE_CHARACTERS = 400
REASONS = 6


def render_text(result: AuditResult, *, width: int = 100, color: bool = False) -> str:
    """The audit as text.

    Args:
        width: columns; at least 40 are used.
        color: ANSI colours for the severity letters.
    """
    width = max(40, width)
    lines = _header(result, width)
    by_id = {finding.id: finding for finding in result.findings}
    for finding in result.headlines:
        lines.append("")
        lines += _finding_lines(finding, by_id, width, color)
    lines += ["", *textwrap.wrap(closing_line(result), width)]
    return "\n".join(lines) + "\n"


def header_facts(result: AuditResult) -> list[tuple[str, str]]:
    """What the audit looked at, as name and text."""
    profile = result.profile
    trainer = profile.reason or profile.trainer
    facts = [("trainer", f"{trainer}; assumed: {listed(profile.assumed)}" if profile.assumed else trainer)]
    for name, label in (("dataset", "rows"), ("eval_dataset", "eval")):
        if name in result.facts:
            facts.append((label, _set_line(result.facts[name], str(result.inputs[name]["path"]))))
    if "tokenizer" in result.facts:
        facts.append(("tokenizer", f"{result.facts['tokenizer']}, {result.facts['template']}"))
    facts += [("unread", problem) for problem in result.problems]
    return facts


def _set_line(facts: Mapping[str, Any], path: str) -> str:
    shapes = listed(
        f"{count:,} {shape}" if len(facts["shapes"]) > 1 else shape
        for shape, count in facts["shapes"].items()
    )
    parts = [f"{facts['rows']:,} of {path} ({shapes or 'none readable'})"]
    if tokens := facts["tokens"]:
        parts.append(
            f"tokens: median {tokens['median']:,}, p95 {tokens['p95']:,}, longest {tokens['longest']:,}"
        )
    left_out = {
        "cannot be read": facts["unreadable"],
        "make no conversation": facts["unusable"],
        "cannot be tokenised": facts["not_tokenised"],
    }
    parts += [f"{count:,} {what}" for what, count in left_out.items() if count]
    return "; ".join(parts)


def _header(result: AuditResult, width: int) -> list[str]:
    lines: list[str] = []
    for name, text in header_facts(result):
        lines += _labelled(name, text, width, indent="")
    return lines


def _labelled(name: str, text: str, width: int, indent: str = "  ") -> list[str]:
    lead = f"{indent}{name:<{_MARGIN - len(indent)}}"
    return textwrap.wrap(
        one_line(text), width, initial_indent=lead, subsequent_indent=" " * _MARGIN, break_long_words=True
    ) or [lead.rstrip()]


def _finding_lines(finding: Finding, by_id: Mapping[str, Finding], width: int, color: bool) -> list[str]:
    title = f"{finding.id}  {one_line(finding.title)}"
    wrapped = textwrap.wrap(title, width - 2, subsequent_indent="  ", break_on_hyphens=False)
    letter = _LETTER[finding.severity]
    if color:
        letter = f"\x1b[1;{_COLOR[finding.severity]}m{letter}\x1b[0m"
    lines = [f"{letter} {wrapped[0]}", *(f"  {line}" for line in wrapped[1:])]
    evidence = finding.message
    if finding.locations and finding.rows:
        first = finding.locations[0]
        evidence = f"{evidence} First: {first}" if evidence else f"First: {first}"
    elif finding.locations:
        evidence = (
            f"{evidence} In {listed(finding.locations[:3])}"
            if evidence
            else f"In {listed(finding.locations[:3])}"
        )
    if evidence:
        lines += _labelled("evidence", one_line(evidence, EVIDENCE_CHARACTERS), width)
    if finding.assumes:
        lines += _labelled("assumes", finding.assumes, width)
    if finding.fix is not None:
        where = f" (in {finding.fix.file})" if finding.fix.file else ""
        lines += _labelled("fix", f"{finding.fix.text}{where}", width)
    for id in finding.consequences:
        lines += _labelled("follows", f"{id}: {by_id[id].title}", width)
    return lines


def closing_line(result: AuditResult) -> str:
    """`2 errors, 1 warning. Checked 61 of 71 checks; skipped 10: no eval set (3), no adapter (7).`"""
    counts = Counter(finding.severity for finding in result.headlines)
    names = ((Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.INFO, "info"))
    found = [plural(counts[severity], name) for severity, name in names if counts[severity]]
    total = len(result.checks_run) + len(result.checks_skipped) + len(result.checks_deselected)
    text = f"{listed(found) or 'No findings'}. Checked {len(result.checks_run)} of {total} checks"
    if result.checks_skipped:
        reasons = Counter(
            "nothing to look at" if id in result.inapplicable else reason
            for id, reason in result.checks_skipped.items()
        )
        order = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        shown = [f"{one_line(reason, 60)} ({count})" for reason, count in order[:REASONS]]
        if len(order) > REASONS:
            shown.append(f"other reasons ({sum(count for _, count in order[REASONS:])})")
        text += f"; skipped {len(result.checks_skipped)}: {', '.join(shown)}"
    if result.checks_deselected:
        text += f"; left out by --select and --ignore: {len(result.checks_deselected)}"
    if result.known:
        text += f"; {plural(len(result.known), 'finding')} known from the baseline"
    return f"{text}."
