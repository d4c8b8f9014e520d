"""From what was found to the report: converts and sorts, decides nothing.

Text of rows and items goes in as it is, shortened; the renderings make it safe for their medium.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradian.attribution.groups import Grouping
from gradian.attribution.join import SharedFinding
from gradian.attribution.scoring import Scoring
from gradian.attribution.verdict import JudgedGroup, Judgement
from gradian.audit.finding import Finding
from gradian.evaluation.result import Counts, EvaluationResult, ItemEvaluation
from gradian.report.model import (
    Agreement,
    ArmCounts,
    Evaluation,
    Group,
    GroupFinding,
    ItemResult,
    Outcome,
    Provenance,
    Report,
    RowScore,
    Timings,
    Verdict,
)
from gradian.rows.training_set import TrainingSet

#: Characters of a prompt or an answer that a report carries.
TEXT_LIMIT = 2000
#: Rows whose text a report carries: the most harmful, and the most helpful.
HARMFUL_TEXTS, HELPFUL_TEXTS = 60, 10
#: Items that a report carries: every further one is in the evaluation's own file.
MOST_ITEMS = 200


@dataclass(frozen=True)
class Attributed:
    """An attribution's parts, rows by position in the training set."""

    rows: TrainingSet
    losses: Sequence[float]
    grouping: Grouping
    scoring: Scoring
    groups: Sequence[JudgedGroup]
    regression_nats: float | None


@dataclass(frozen=True)
class ReportParts:
    """Everything that a report is made of."""

    title: str
    judgement: Judgement
    capability: str
    provenance: Provenance
    evaluation: EvaluationResult | None = None
    attributed: Attributed | None = None
    findings: Sequence[Finding] = ()
    next_steps: Sequence[str] = ()
    limits: Sequence[str] = ()
    forced: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    reused: Sequence[str] = ()


def build_report(parts: ReportParts) -> Report:
    """The frozen report."""
    judgement = parts.judgement
    outcome = Outcome(parts.evaluation.comparison.outcome) if parts.evaluation else Outcome.NO_TARGET
    attributed = parts.attributed
    return Report(
        title=parts.title,
        smoke_test=parts.evaluation is None,
        verdict=Verdict(
            outcome=outcome,
            cause=judgement.cause,
            confidence=judgement.confidence,
            reasons=judgement.reasons,
            text=judgement.text,
            fixes=judgement.fixes,
            forced=parts.forced,
        ),
        evaluation=evaluation_of(parts.capability, parts.evaluation) if parts.evaluation else None,
        findings=tuple(parts.findings),
        items=tuple(items_of(parts.evaluation)) if parts.evaluation else (),
        groups=tuple(_groups(attributed, judgement)) if attributed else (),
        rows=tuple(_rows(attributed, parts.findings)) if attributed else (),
        rows_total=len(attributed.rows) if attributed else 0,
        agreement=_agreement(attributed, judgement) if attributed else None,
        next_steps=tuple(parts.next_steps),
        limits=tuple(parts.limits),
        provenance=parts.provenance,
        timings=Timings(seconds=dict(parts.seconds), reused=tuple(parts.reused)),
    )


def evaluation_of(capability: str, result: EvaluationResult) -> Evaluation:
    """The evaluation section."""
    c = result.comparison
    return Evaluation(
        capability=capability,
        metric=result.metric,
        items=c.items,
        base=significant(c.base),
        tuned=significant(c.tuned),
        delta=significant(c.delta),
        ci=(significant(c.ci[0]), significant(c.ci[1])),
        ci_method=c.ci_method,
        resamples=c.resamples,
        seed=result.seed,
        kept=c.kept,
        lost=c.lost,
        gained=c.gained,
        both_wrong=c.both_wrong,
        mcnemar_p=_maybe(c.mcnemar_p),
        minimum_detectable_effect=_maybe(c.minimum_detectable_effect),
        equivalence_margin=c.margin,
        base_nll=significant(result.base_nll),
        tuned_nll=significant(result.tuned_nll),
        base_margin=_maybe(result.base_margin),
        tuned_margin=_maybe(result.tuned_margin),
        base_counts=_counts(result.base_counts),
        tuned_counts=_counts(result.tuned_counts),
        partial=result.partial,
        notes=result.notes,
    )


def items_of(result: EvaluationResult) -> list[ItemResult]:
    """The items that changed: lost ones first, then gained ones."""
    lost = [item for item in result.items if item.outcome == "lost"]
    gained = [item for item in result.items if item.outcome == "gained"]
    return [_item(item) for item in (lost + gained)[:MOST_ITEMS]]


def _item(item: ItemEvaluation) -> ItemResult:
    return ItemResult(
        item=item.item,
        file=item.file,
        line=item.line,
        outcome=item.outcome,
        prompt=_short(item.prompt),
        wanted=_short(item.wanted),
        base_said=_short(item.base.text) if item.base else "",
        tuned_said=_short(item.tuned.text) if item.tuned else "",
        base_score=significant(item.base_score),
        tuned_score=significant(item.tuned_score),
    )


def _counts(counts: Counts) -> ArmCounts:
    return ArmCounts(
        empty=counts.empty, hit_token_limit=counts.hit_token_limit, not_extracted=counts.not_extracted
    )


def _groups(a: Attributed, judgement: Judgement) -> list[Group]:
    tokens = a.rows.loss_tokens
    total_tokens = max(1, sum(tokens))
    accused = {judged.group.id for judged in judgement.accused}
    ordered = sorted(a.groups, key=lambda judged: (judged.effect.removal, judged.group.rows[0]))
    return [
        Group(
            id=judged.group.id,
            label=judged.group.label,
            size=len(judged.group.rows),
            rows=tuple(a.rows.rows[index].row for index in judged.group.rows),
            share=significant(judged.effect.share),
            share_ci=None
            if judged.effect.share_ci is None
            else (significant(judged.effect.share_ci[0]), significant(judged.effect.share_ci[1])),
            row_share=significant(judged.row_share),
            token_share=significant(sum(tokens[index] for index in judged.group.rows) / total_tokens),
            first_order_effect=significant(judged.effect.first_order),
            removal_effect=significant(judged.effect.removal),
            removal_effects={
                f"{ratio:g}": significant(value) for ratio, value in judged.effect.sweep.items()
            },
            explained=_maybe(_explained(judged, a.regression_nats)),
            p_value=_maybe(judged.effect.p_value),
            accused=judged.group.id in accused,
            findings=tuple(_shared(shared) for shared in judged.shared),
            representative_rows=tuple(a.rows.rows[index].row for index in judged.group.representatives),
        )
        for judged in ordered
    ]


def _explained(judged: JudgedGroup, regression_nats: float | None) -> float | None:
    if regression_nats is None or regression_nats <= 0:
        return None
    return -judged.effect.removal / regression_nats


def _shared(shared: SharedFinding) -> GroupFinding:
    return GroupFinding(
        id=shared.finding.id,
        title=shared.finding.title,
        rows_with=shared.inside,
        rows_elsewhere=shared.outside,
        p_value=significant(shared.p_value),
        fix=shared.finding.fix.text if shared.finding.fix else None,
    )


def _rows(a: Attributed, findings: Sequence[Finding]) -> list[RowScore]:
    scores = a.scoring.scores
    order = sorted(range(len(a.rows)), key=lambda index: (significant(float(scores[index])), index))
    with_text = {*order[:HARMFUL_TEXTS], *order[len(order) - HELPFUL_TEXTS :]}
    with_text.update(index for judged in a.groups for index in judged.group.representatives)
    having: dict[int, list[str]] = {}
    for finding in findings:
        if finding.row_level and not finding.of_eval:
            for number in finding.rows:
                having.setdefault(number, []).append(finding.id)
    names = a.grouping.group_of(len(a.rows))
    harm = float(-scores[scores < 0].sum()) or 1.0
    helped = float(scores[scores > 0].sum()) or 1.0
    out = []
    for index in order:
        row, talk = a.rows.rows[index], a.rows.conversations[index]
        shown = index in with_text
        out.append(
            RowScore(
                row=row.row,
                file=row.file,
                line=row.line,
                score=significant(float(scores[index])),
                share=significant(float(scores[index]) / (harm if scores[index] < 0 else helped)),
                removal_effect=significant(float(a.scoring.row_effects[index])),
                group=names[index],
                tokens=a.rows.tokens[index].loss_tokens,
                loss=significant(float(a.losses[index])),
                findings=tuple(sorted(having.get(row.row, ()))),
                prompt=_short(talk.prompt_text) if shown else "",
                answer=_short(talk.answer_text) if shown else "",
            )
        )
    return out


def _agreement(a: Attributed, judgement: Judgement) -> Agreement:
    found = a.scoring.agreement
    accused = [index for index, judged in enumerate(a.groups) if judged in judgement.accused]
    return Agreement(
        engines=(found.main, found.check),
        rank_correlation=significant(found.rank_correlation),
        top_overlap=significant(found.top_overlap),
        top_k=found.top_k,
        same_top_group=found.supports(accused),
        length_correlation=significant(found.length_correlation),
    )


def significant(value: float, digits: int = 6) -> float:
    """Rounded to six significant digits: what is beyond them is rounding of the arithmetic, not a finding."""
    return float(f"{value:.{digits}g}")


def _maybe(value: float | None) -> float | None:
    return None if value is None else significant(value)


def _short(text: str) -> str:
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]} … +{len(text) - TEXT_LIMIT} chars"
