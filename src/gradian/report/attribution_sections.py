"""The sections of the attribution: which groups of training rows, and which rows."""

from __future__ import annotations

from gradian.report.content import (
    Block,
    Caps,
    Cell,
    Column,
    Fact,
    Facts,
    Prose,
    Section,
    Table,
    Tone,
    left_out,
)
from gradian.report.model import Agreement, Group, Report, RowScore
from gradian.report.numbers import count, decimal, effect, magnitude, p_value, percent, percent_interval
from gradian.rows.row import location

UNCLUSTERED = "unclustered"
GROUP_CHARACTERS = 60
GROUPS_CAPTION = (
    "Groups and their shares of the harm, the rows and the tokens; ● is named by the verdict. "
    "Effect: by exact removal"
)
SIGN = (
    "Hurt: training on the rows moved the model away from the wanted answers; helped: towards them. "
    "In nats of loss(wanted) - loss(said), averaged over the lost items."
)


def groups_section(report: Report, caps: Caps) -> Section:
    if not report.groups:
        return Section("groups", "Which groups of rows did it", ())
    shown = _shown_groups(report.groups, caps.groups)
    detailed = _detailed_groups(shown, caps.detailed_groups)
    blocks: list[Block] = [
        Prose(SIGN, tone="muted"),
        _groups_table(report.groups, shown),
        _sweep_table(detailed, len(report.groups)),
    ]
    findings = _group_findings_table(shown)
    if findings.rows:
        blocks.append(findings)
    if report.agreement is not None:
        blocks += _agreement_blocks(report.agreement)
    return Section("groups", "Which groups of rows did it", tuple(blocks))


def _shown_groups(groups: tuple[Group, ...], cap: int) -> tuple[Group, ...]:
    """The first `cap` groups; those that the verdict names and the unclustered rows are never left out."""
    return tuple(
        group for index, group in enumerate(groups) if index < cap or group.accused or group.id == UNCLUSTERED
    )


def _detailed_groups(shown: tuple[Group, ...], cap: int) -> tuple[Group, ...]:
    """Those that the verdict names, then the worst of the others, in the order of the model."""
    first = sorted(shown, key=lambda group: not group.accused)[:cap]
    return tuple(group for group in shown if group in first)


def group_name(group: Group) -> str:
    """`invoice, total, currency (3)`: the label, and the id where it says something else."""
    if group.id == UNCLUSTERED:
        return "(unclustered rows)"
    return group.label if group.label == group.id or not group.id else f"{group.label} ({group.id})"


def _groups_table(groups: tuple[Group, ...], shown: tuple[Group, ...]) -> Table:
    columns = (
        Column("group", flexible=True, least=28, limit=GROUP_CHARACTERS),
        Column("size", numeric=True, rank=2),
        Column("harm", numeric=True),
        Column("harm, 95% interval", numeric=True, rank=5),
        Column("rows", numeric=True),
        Column("tokens", numeric=True, rank=6),
        Column("effect, nats", numeric=True, rank=1),
        Column("explains", numeric=True, rank=4),
        Column("p", numeric=True, rank=3),
    )
    rest = left_out(len(groups), len(shown), "group")
    return Table("groups", GROUPS_CAPTION, columns, tuple(_group_row(group) for group in shown), rest)


def _group_row(group: Group) -> tuple[Cell, ...]:
    name = group_name(group)
    return (
        Cell(f"● {name}" if group.accused else name, None, "bad" if group.accused else "plain"),
        Cell(f"{group.size:,}", float(group.size)),
        Cell(percent(group.share), group.share),
        Cell(percent_interval(group.share_ci), None if group.share_ci is None else group.share_ci[0]),
        Cell(percent(group.row_share), group.row_share),
        Cell(percent(group.token_share), group.token_share),
        Cell(effect(group.removal_effect), group.removal_effect, _effect_tone(group.removal_effect)),
        Cell(percent(group.explained), group.explained),
        Cell(p_value(group.p_value), group.p_value),
    )


def _effect_tone(value: float) -> Tone:
    return "bad" if value < 0 else "good" if value > 0 else "plain"


def _sweep_table(groups: tuple[Group, ...], total: int) -> Table:
    """Does the effect survive another damping? One column for each, in the order of the model."""
    dampings = list(dict.fromkeys(damping for group in groups for damping in group.removal_effects))
    columns = (
        Column("group", flexible=True, least=28, limit=GROUP_CHARACTERS),
        Column("first order", numeric=True),
        *(
            Column(f"damping {damping}", numeric=True, rank=index + 1)
            for index, damping in enumerate(dampings)
        ),
        Column("typical rows", rank=len(dampings) + 1),
    )
    rows = tuple(
        (
            Cell(group_name(group)),
            Cell(
                effect(group.first_order_effect),
                group.first_order_effect,
                _effect_tone(group.first_order_effect),
            ),
            *(_sweep_cell(group.removal_effects.get(damping)) for damping in dampings),
            Cell(", ".join(str(row) for row in group.representative_rows) or "n/a"),
        )
        for group in groups
    )
    rest = left_out(total, len(rows), "group")
    return Table("sweep", "The effect to first order and at other dampings", columns, rows, rest)


def _sweep_cell(value: float | None) -> Cell:
    return Cell(effect(value), value, "plain" if value is None else _effect_tone(value))


def _group_findings_table(groups: tuple[Group, ...]) -> Table:
    columns = (
        Column("group", flexible=True, least=28, limit=GROUP_CHARACTERS),
        Column("finding", code=True),
        Column("rows with it", numeric=True),
        Column("elsewhere", numeric=True, rank=1),
        Column("p", numeric=True, rank=1),
        Column("what it is", rank=3),
        Column("fix", rank=4),
    )
    rows = tuple(
        (
            Cell(group_name(group)),
            Cell(finding.id),
            Cell(f"{finding.rows_with:,} of {group.size:,}", float(finding.rows_with)),
            Cell(f"{finding.rows_elsewhere:,}", float(finding.rows_elsewhere)),
            Cell(p_value(finding.p_value), finding.p_value),
            Cell(finding.title),
            Cell(finding.fix or "see the finding"),
        )
        for group in groups
        for finding in group.findings
    )
    return Table("group-findings", "Audit findings that the rows of a group share", columns, rows)


def _agreement_blocks(agreement: Agreement) -> list[Block]:
    length = agreement.length_correlation
    facts = [
        Fact("engines", " and ".join(agreement.engines)),
        Fact("rank correlation over rows", decimal(agreement.rank_correlation)),
        Fact(f"shared by their top {agreement.top_k:,}", percent(agreement.top_overlap)),
        Fact("same worst group", "yes" if agreement.same_top_group else "no"),
        *([Fact("correlation of score and length", decimal(length))] if length is not None else []),
    ]
    words: list[Block] = [Prose(agreement.text)] if agreement.text else []
    return [Facts("Agreement", tuple(facts), compact=True), *words]


def rows_section(report: Report, caps: Caps) -> Section:
    if not report.rows:
        return Section("rows", "Which rows did it", ())
    harmful = [row for row in report.rows if row.score < 0]
    helpful = [row for row in reversed(report.rows) if row.score > 0]
    names = {group.id: group_name(group) for group in report.groups}
    total = max(report.rows_total, len(report.rows))
    neither = len(report.rows) - len(harmful) - len(helpful)
    summary = (
        f"{count(total, 'row')} scored; this report holds {len(report.rows):,}: {len(harmful):,} hurt, "
        f"{len(helpful):,} helped{f', {neither:,} neither' if neither else ''}. "
        "Share: the row's part of all harm (or help). Alone: the exact effect of removing this row alone, which is "
        "small where others can take its place."
    )
    blocks: list[Block] = [Prose(summary, tone="muted")]
    for name, caption, rows, cap in (
        ("harmful-rows", "The rows that hurt most", harmful, caps.rows),
        ("helpful-rows", "The rows that helped most", helpful, caps.helpful_rows),
    ):
        if rows:
            blocks.append(_rows_table(name, caption, rows, cap, names, caps.row_characters))
    return Section("rows", "Which rows did it", tuple(blocks))


def _rows_table(
    name: str, caption: str, rows: list[RowScore], cap: int, groups: dict[str, str], characters: int
) -> Table:
    columns = (
        Column("where", code=True, keep_end=True),
        Column("share", numeric=True),
        Column("alone, nats", numeric=True, rank=2),
        Column("group", rank=1, least=16, limit=GROUP_CHARACTERS),
        Column("findings", code=True, rank=3, limit=120),
        Column("prompt", code=True, rank=6, limit=characters),
        Column("answer", code=True, rank=2, flexible=True, least=24, limit=characters),
        Column("tokens", numeric=True, rank=4),
        Column("loss", numeric=True, rank=4),
        Column("row", numeric=True, rank=5),
        Column("score", numeric=True, rank=7),
    )
    cells = tuple(
        (
            Cell(location(row.file, row.line, row.row), float(row.row)),
            Cell(percent(abs(row.share)), row.share),
            Cell(effect(row.removal_effect), row.removal_effect, _effect_tone(row.removal_effect)),
            Cell(groups.get(row.group, row.group)),
            Cell(", ".join(row.findings) or "none"),
            Cell(row.prompt),
            Cell(row.answer),
            Cell(f"{row.tokens:,}", float(row.tokens)),
            Cell(magnitude(row.loss), row.loss),
            Cell(f"{row.row:,}", float(row.row)),
            Cell(magnitude(row.score), row.score),
        )
        for row in rows[:cap]
    )
    rest = left_out(len(rows), len(cells), f"{name.split('-')[0]} row")
    return Table(name, caption, columns, cells, rest, filterable=True)
