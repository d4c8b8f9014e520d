"""The sections of the evaluation: how much was lost beyond noise, and on which items."""

from __future__ import annotations

from gradian.report.content import (
    Block,
    Bullets,
    Caps,
    Cell,
    Column,
    Comparison,
    Comparisons,
    Fact,
    Facts,
    Prose,
    Section,
    Table,
    Tone,
    left_out,
)
from gradian.report.model import ArmCounts, Evaluation, ItemResult, Report
from gradian.report.numbers import count, decimal, interval, p_value, signed
from gradian.rows.row import location

LOG_PROBABILITY_METRIC = "nll"  # the one metric that is in nats and not in [0, 1]


def evaluation_section(evaluation: Evaluation | None) -> Section:
    """Empty when nothing was evaluated."""
    if evaluation is None:
        return Section("evaluation", "What was lost", ())
    blocks: list[Block] = [
        Facts("", (*_score_facts(evaluation), *_strength_facts(evaluation), *_loss_facts(evaluation))),
        _outcome_table(evaluation),
        _arm_table(evaluation.base_counts, evaluation.tuned_counts),
    ]
    if evaluation.notes:
        blocks.append(Bullets("To keep in mind", evaluation.notes))
    return Section("evaluation", "What was lost", tuple(blocks))


def _score_facts(evaluation: Evaluation) -> tuple[Fact, ...]:
    in_nats = evaluation.metric == LOG_PROBABILITY_METRIC
    unit = "nats per item" if in_nats else ""
    items = count(evaluation.items, "item") + (", the first only (--limit)" if evaluation.partial else "")
    method = f"{evaluation.ci_method}, {evaluation.resamples:,} resamples, seed {evaluation.seed}"
    low, high = evaluation.ci
    tone: Tone = "bad" if high < 0 else "good" if low > 0 else "plain"
    return (
        Fact("Capability", evaluation.capability, f"{evaluation.metric} on {items}"),
        Fact("Base → tuned", f"{decimal(evaluation.base)} → {decimal(evaluation.tuned)}", unit),
        Fact("Change", signed(evaluation.delta), f"95% interval {interval(evaluation.ci)}: {method}", tone),
    )


def _strength_facts(evaluation: Evaluation) -> tuple[Fact, ...]:
    changed = f"{count(evaluation.lost, 'item')} lost, {evaluation.gained:,} gained"
    facts = []
    if evaluation.mcnemar_p is not None:
        facts.append(Fact("Exact McNemar test", p_value(evaluation.mcnemar_p), changed))
    if evaluation.minimum_detectable_effect is not None:
        smallest = decimal(evaluation.minimum_detectable_effect)
        facts.append(
            Fact("Smallest visible change", smallest, "found with 80% power at this number of items")
        )
    if evaluation.equivalence_margin is not None:
        margin = decimal(evaluation.equivalence_margin)
        facts.append(Fact("Equivalence margin", margin, "an interval within ± this is no change"))
    return tuple(facts)


def _loss_facts(evaluation: Evaluation) -> tuple[Fact, ...]:
    facts = []
    if evaluation.base_nll is not None or evaluation.tuned_nll is not None:
        losses = f"{decimal(evaluation.base_nll)} → {decimal(evaluation.tuned_nll)}"
        facts.append(Fact("Loss of wanted answers", losses, "nats per item; lower is better"))
    if evaluation.base_margin is not None or evaluation.tuned_margin is not None:
        margins = f"{decimal(evaluation.base_margin)} → {decimal(evaluation.tuned_margin)}"
        note = "nats on the lost items: log p(wanted) - log p(said)"
        facts.append(Fact("Margin", margins, note))
    return tuple(facts)


def _outcome_table(evaluation: Evaluation) -> Table:
    """The 2x2 table; for a graded metric (no McNemar test) the four counts with what they mean there."""
    caption = "Items, base against tuned"
    if evaluation.mcnemar_p is None:
        counts = (
            ("kept (score held)", evaluation.kept),
            ("lost (fell)", evaluation.lost),
            ("gained (rose)", evaluation.gained),
            ("both wrong", evaluation.both_wrong),
        )
        columns = (Column("items"), *(Column(name, numeric=True) for name, _ in counts))
        row = (Cell("base to tuned"), *(Cell(f"{number:,}", float(number)) for _, number in counts))
        return Table("outcomes", caption, columns, (row,), small=True)
    kept, lost = _tally("kept", evaluation.kept), _tally("lost", evaluation.lost, bad=True)
    gained, both_wrong = _tally("gained", evaluation.gained), _tally("both wrong", evaluation.both_wrong)
    columns = (Column("items"), Column("tuned right", numeric=True), Column("tuned wrong", numeric=True))
    rows = ((Cell("base right"), kept, lost), (Cell("base wrong"), gained, both_wrong))
    return Table("outcomes", caption, columns, rows, small=True)


def _tally(word: str, number: int, *, bad: bool = False) -> Cell:
    return Cell(f"{word} {number:,}", float(number), "bad" if bad and number else "plain")


def _arm_table(base: ArmCounts, tuned: ArmCounts) -> Table:
    names = (
        ("empty", "empty"),
        ("hit_token_limit", "hit the token limit"),
        ("not_extracted", "no answer found"),
    )
    rows = tuple(
        (Cell(arm), *(_ending(getattr(counts, field), getattr(base, field)) for field, _ in names))
        for arm, counts in (("base", base), ("tuned", tuned))
    )
    columns = (Column("answers"), *(Column(title, numeric=True) for _, title in names))
    return Table("endings", "How the answers ended, in items", columns, rows, small=True)


def _ending(number: int, of_base: int) -> Cell:
    return Cell(f"{number:,}", float(number), "bad" if number > of_base else "plain")


def items_section(report: Report, caps: Caps) -> Section:
    """The lost items side by side; that none was lost is said, where items were compared."""
    lost = [item for item in report.items if item.outcome == "lost"]
    blocks: tuple[Block, ...] = ()
    if lost:
        shown = tuple(_comparison(item) for item in lost[: caps.items])
        rest = left_out(len(lost), len(shown), "lost item")
        blocks = (Comparisons(shown, caps.item_characters, rest),)
    elif report.evaluation is not None and report.evaluation.lost:
        blocks = (
            Prose(f"The text of the {count(report.evaluation.lost, 'lost item')} is not in this report."),
        )
    elif report.evaluation is not None:
        blocks = (Prose("No item was lost: wherever the base model was right, the tuned model is too."),)
    return Section("items", "The lost items", blocks)


def _comparison(item: ItemResult) -> Comparison:
    return Comparison(
        where=location(item.file, item.line, item.item),
        scores=f"{decimal(item.base_score)} → {decimal(item.tuned_score)}",
        prompt=item.prompt,
        wanted=item.wanted,
        base_said=item.base_said,
        tuned_said=item.tuned_said,
    )
