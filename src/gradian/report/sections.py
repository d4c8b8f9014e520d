"""From the report to its sections: what every rendering says, and in which order.

1 verdict, 2 evaluation, 3 findings, 4 lost items, 5 groups, 6 rows, 7 what to try, 8 what this does not show,
9 provenance. A section without anything to say is left out, except where the absence itself is the answer.
"""

from __future__ import annotations

from typing import Any

from gradian.audit.finding import Finding, Severity
from gradian.report.attribution_sections import groups_section, rows_section
from gradian.report.content import (
    Block,
    Bullets,
    Caps,
    Fact,
    Facts,
    Note,
    Notes,
    Prose,
    Section,
    Step,
    Steps,
    left_out,
)
from gradian.report.evaluation_sections import evaluation_section, items_section
from gradian.report.model import Provenance, Report, Verdict
from gradian.report.numbers import count, duration, magnitude
from gradian.report.text import truncate

PROSE_CHARACTERS = 2_000

SMOKE_TEST = (
    "SMOKE TEST: this run only shows that the tool works here. Too little was measured to believe anything "
    "it says about the model."
)
FORCED = (
    "FORCED: the evaluation did not show a regression; rows were attributed all the same because --force was "
    "given. Read the groups and rows as what would matter if there were one."
)
PARTIAL = "PARTIAL: only the first items of the eval file were used (--limit)."
WHY = {"high": "Why this sure", "medium": "Why not more sure", "low": "Why not more sure", "none": "Why"}
CAUSES = {
    "mechanical": "mechanical (damaged rows)",
    "content": "content (what the rows teach)",
    "setup": "setup (training configuration)",
    "diffuse": "diffuse (no group stands out)",
    "base_model": "base model (weak before tuning)",
    "none": "none named",
}


def sections(report: Report, caps: Caps) -> tuple[Section, ...]:
    """All sections that have something to say, in the order that every rendering keeps."""
    candidates = (
        verdict_section(report),
        evaluation_section(report.evaluation),
        findings_section(report.findings, caps),
        items_section(report, caps),
        groups_section(report, caps),
        rows_section(report, caps),
        steps_section(report.next_steps),
        limits_section(report.limits),
        provenance_section(report, caps),
    )
    return tuple(section for section in candidates if section.blocks)


def stamps(report: Report) -> tuple[str, ...]:
    """What must be read before anything else is believed."""
    partial = report.evaluation is not None and report.evaluation.partial
    flags = ((report.smoke_test, SMOKE_TEST), (report.verdict.forced, FORCED), (partial, PARTIAL))
    return tuple(text for flag, text in flags if flag)


def verdict_section(report: Report) -> Section:
    verdict = report.verdict
    blocks: list[Block] = [Prose(verdict.text, lead=True)]
    blocks += [Prose(stamp, tone="warning") for stamp in stamps(report)]
    blocks.append(Facts("", _verdict_facts(verdict), compact=True))
    if verdict.reasons:
        blocks.append(Bullets(WHY[verdict.confidence.value], verdict.reasons))
    if verdict.fixes:
        blocks.append(Bullets("What to change", verdict.fixes, numbered=True))
    return Section("verdict", "Verdict", tuple(blocks))


def _verdict_facts(verdict: Verdict) -> tuple[Fact, ...]:
    return (
        Fact("Outcome", verdict.outcome.value.replace("_", " ")),
        Fact("Cause", CAUSES[verdict.cause.value]),
        Fact("Confidence", verdict.confidence.value),
    )


def findings_section(findings: tuple[Finding, ...], caps: Caps) -> Section:
    """Errors first, then warnings, then infos; within one severity in the order of the model."""
    ordered = sorted(findings, key=lambda finding: finding.severity.rank)
    listed = [finding for finding in ordered if caps.infos or finding.severity is not Severity.INFO]
    shown = tuple(_note(finding, caps) for finding in listed[: caps.findings])
    more = left_out(len(ordered), len(shown), "finding")
    if not shown and ordered:
        return Section("findings", "What the audit found", (Prose(f"No fault. {more}", tone="muted"),))
    blocks: tuple[Block, ...] = (Notes(shown, more),) if shown else ()
    return Section("findings", "What the audit found", blocks)


def _note(finding: Finding, caps: Caps) -> Note:
    evidence = [truncate(finding.message, PROSE_CHARACTERS)] if finding.message else []
    if finding.count or finding.of:
        affected = f"{finding.count:,} of {finding.of:,}" if finding.of else f"{finding.count:,}"
        if finding.rows:
            affected += " rows"
        shown = finding.locations[: caps.locations]
        if shown:
            rest = max(finding.count, len(finding.locations)) - len(shown)
            affected += f" ({', '.join(shown)}{f' and {rest:,} more' if rest > 0 else ''})"
        evidence.append(f"{affected}.")
    if finding.values and caps.finding_values:
        evidence.append("; ".join(f"{name} {_value(value)}" for name, value in finding.values.items()) + ".")
    if finding.assumes:
        evidence.append(f"Assumes: {finding.assumes.rstrip('.')}.")
    if finding.consequences:
        evidence.append(f"Also explains: {', '.join(finding.consequences)}.")
    fix = finding.fix
    text = "" if fix is None else fix.text
    if fix is not None and fix.file and fix.file not in text:
        text += f" (in {fix.file})"
    if fix is not None and not fix.safe:
        text += " (this loses data: look at the rows first)"
    title = truncate(finding.title, 300)
    return Note(finding.severity.value, finding.id, title, " ".join(evidence), text)


def _value(value: Any) -> str:
    """A value of a finding or of the configuration, in one line."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return magnitude(value)
    if isinstance(value, (list, tuple)):
        shown = ", ".join(_value(entry) for entry in value[:8])
        return f"[{shown}{f', and {len(value) - 8:,} more' if len(value) > 8 else ''}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(entry)}" for key, entry in value.items()) + "}"
    return truncate(str(value), 300)


def steps_section(next_steps: tuple[str, ...]) -> Section:
    blocks: tuple[Block, ...] = (Steps(tuple(_step(text) for text in next_steps)),) if next_steps else ()
    return Section("next", "What to try", blocks)


def _step(text: str) -> Step:
    """A step's indented lines, and those that start with `$ ` or `gradian `, are commands."""
    prose: list[str] = []
    commands: list[str] = []
    for line in text.split("\n"):
        is_command = line.startswith(("  ", "\t", "$ ", "gradian "))
        (commands if is_command else prose).append(line.strip().removeprefix("$ "))
    return Step(" ".join(line for line in prose if line), tuple(command for command in commands if command))


def limits_section(limits: tuple[str, ...]) -> Section:
    blocks: tuple[Block, ...] = (Bullets("", limits),) if limits else ()
    return Section("limits", "What this does not show", blocks)


def provenance_section(report: Report, caps: Caps) -> Section:
    """What the report rests on; timings are the only thing here that two equal runs do not share."""
    provenance = report.provenance
    facts = _provenance_facts(provenance)
    blocks: list[Block] = [Facts("", facts, compact=True)] if facts else []
    lists = (
        ("Left out", (*provenance.rows_left_out, *provenance.not_attributed)),
        ("Assumed (no file of the run says it)", provenance.profile_assumed),
        ("Read from an earlier run", report.timings.reused),
    )
    blocks += [Bullets(heading, entries, compact=True) for heading, entries in lists if entries]
    tables = (
        (
            "Configuration",
            tuple(Fact(name, _value(value)) for name, value in provenance.config.items())
            if caps.configuration
            else (),
        ),
        ("Versions", tuple(Fact(name, version) for name, version in provenance.versions.items())),
        ("Seeds", tuple(Fact(name, str(seed)) for name, seed in provenance.seeds.items())),
        (
            "Time taken",
            tuple(Fact(name, duration(seconds)) for name, seconds in report.timings.seconds.items()),
        ),
    )
    blocks += [Facts(heading, facts, compact=True) for heading, facts in tables if facts]
    return Section("provenance", "Provenance", tuple(blocks))


def _provenance_facts(provenance: Provenance) -> tuple[Fact, ...]:
    revision = f"revision {provenance.revision}" if provenance.revision else ""
    projection = "none, exact gradients" if provenance.projection is None else f"to {provenance.projection:,}"
    rows = f"{provenance.rows:,}" if provenance.rows else ""
    damping = "" if provenance.damping is None else magnitude(provenance.damping)
    candidates = (
        Fact("Index", provenance.index_id or ""),
        Fact("Evaluation", provenance.evaluation_id or ""),
        Fact("Base model", provenance.base_model or "", revision),
        Fact("Adapter", provenance.adapter or "", _sha(provenance.adapter_sha256)),
        Fact("Training rows", rows, _sha(provenance.dataset_sha256)),
        Fact("Eval file", _sha(provenance.eval_dataset_sha256)),
        Fact("Trainer", provenance.profile),
        Fact("Engine for rows", provenance.engine or ""),
        Fact("Engine for groups", provenance.group_engine or ""),
        Fact("Damping", damping, "relative to the mean squared row norm"),
        Fact("Projection", projection if provenance.engine else ""),
        Fact("LoRA sites", "" if provenance.sites is None else count(provenance.sites, "site")),
        Fact("Computed in", " on ".join(part for part in (provenance.dtype, provenance.device) if part)),
    )  # fmt: skip
    return tuple(fact for fact in candidates if fact.value)


def _sha(digest: str | None) -> str:
    """The first 16 digits: enough to tell two files apart; report.json has all."""
    return f"sha256 {digest[:16]}" if digest else ""
