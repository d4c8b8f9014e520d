"""The verdict: outcome, cause, confidence, and the sentences that say so. Every number is computed.

Decides and words; measures nothing. The order of causes follows what users meet most: a mechanical fault in the accused
rows, what those rows say, the training set-up, the base model, and else many small pushes from everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradian.attribution.accuse import Accusation
from gradian.attribution.agreement import EngineAgreement
from gradian.attribution.cause import Cause, Confidence
from gradian.attribution.effects import GroupEffect
from gradian.attribution.groups import RowGroup
from gradian.attribution.join import SharedFinding
from gradian.audit.finding import Finding, Severity
from gradian.evaluation.comparison import Comparison

#: A base model that preferred the wanted answer by less than this many nats hardly held the capability.
THIN_BASE_MARGIN = 1.0
#: Families of findings that speak of the training set-up rather than of rows.
SETUP_FAMILIES = ("config.", "logs.", "template.", "token.", "adapter.", "run.")


@dataclass(frozen=True)
class JudgedGroup:
    """A group with its effect, its rows' share of the rows, and the findings that it shares."""

    group: RowGroup
    effect: GroupEffect
    row_share: float
    shared: tuple[SharedFinding, ...] = ()

    @property
    def name(self) -> str:
        prefix = "Cluster" if self.group.id.isdigit() else "Group"
        return f"{prefix} {self.group.id} ({self.group.label})"


@dataclass(frozen=True)
class Evidence:
    """All that the verdict rests on.

    Attributes:
        capability: its name. comparison: None without an eval set.
        groups: worst first or in any order; accusation points into them. None when no attribution was made.
        regression_nats: rise of the query loss from base to tuned, nats. base_margin: median margin of the base, nats.
        items_explained: how many lost items were queried.
    """

    capability: str
    comparison: Comparison | None
    findings: Sequence[Finding] = ()
    groups: Sequence[JudgedGroup] = ()
    accusation: Accusation | None = None
    agreement: EngineAgreement | None = None
    regression_nats: float | None = None
    base_margin: float | None = None
    items_explained: int = 0
    forced: bool = False


@dataclass(frozen=True)
class Judgement:
    """The verdict in its parts."""

    cause: Cause
    confidence: Confidence
    text: str
    reasons: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    accused: tuple[JudgedGroup, ...] = field(default=())


def judge(evidence: Evidence) -> Judgement:
    """Word the verdict."""
    comparison = evidence.comparison
    if comparison is None:
        return _without_target(evidence)
    opening = _opening(evidence.capability, comparison)
    if comparison.outcome != "regression" and not evidence.forced:
        return Judgement(
            Cause.NONE,
            Confidence.NONE,
            f"{opening} {_not_diagnosed(comparison)}",
            fixes=_needed_items(comparison),
        )
    cause, sentences, fixes, accused = _cause(evidence)
    confidence, reasons = _confidence(evidence, cause, accused)
    stamp = (
        "FORCED: the evaluation shows no regression, so there may be nothing to explain. "
        if comparison.outcome != "regression"
        else ""
    )
    text = " ".join([stamp + opening, *sentences, *(_as_sentence(fix) for fix in fixes[:1])])
    return Judgement(cause, confidence, text, reasons, fixes, accused)


def judge_outcome(evidence: Evidence) -> Judgement:
    """The verdict of an evaluation alone: what was lost, not why."""
    comparison = evidence.comparison
    assert comparison is not None, "an evaluation has a comparison"
    opening = _opening(evidence.capability, comparison)
    if comparison.outcome == "regression":
        return Judgement(
            Cause.NONE,
            Confidence.NONE,
            f"{opening} What caused it was not asked.",
            fixes=("gradian attribute with the same flags and --dataset says what caused it",),
        )
    fixes = _needed_items(comparison)
    return Judgement(Cause.NONE, Confidence.NONE, f"{opening} {_not_diagnosed(comparison)}", fixes=fixes)


def _opening(capability: str, c: Comparison) -> str:
    low, high = c.ci
    numbers = f"{c.base:.3f} to {c.tuned:.3f} ({c.delta:+.3f}, 95% CI [{low:+.3f}, {high:+.3f}]) over {c.items} items."
    if c.outcome == "regression":
        graded = "scored lower" if c.graded else "flipped from right to wrong"
        gained = f", {c.gained} {'scored higher' if c.graded else 'from wrong to right'}" if c.gained else ""
        return f"{capability} regressed {numbers} {_count(c.lost, 'item')} {graded}{gained}."
    if c.improved:
        return f"{capability} improved {numbers}"
    return f"{capability} went {numbers}"


def _not_diagnosed(c: Comparison) -> str:
    if c.improved:
        return "Nothing was lost, so there is nothing to diagnose."
    if c.outcome == "equivalent":
        return f"The change is inside the margin of {c.margin:g} either way: nothing to diagnose."
    return "The interval includes zero: this may be noise, and it is explicitly not diagnosed."


def _needed_items(c: Comparison) -> tuple[str, ...]:
    if c.outcome != "inconclusive" or c.items_needed is None or c.items_needed <= c.items:
        return ()
    return (f"about {c.items_needed:,} items would show a difference of {abs(c.delta):.3f} with 80% power",)


def _cause(evidence: Evidence) -> tuple[Cause, list[str], tuple[str, ...], tuple[JudgedGroup, ...]]:
    accusation = evidence.accusation
    assert accusation is not None, "a diagnosed regression has been attributed"
    accused = tuple(evidence.groups[index] for index in accusation.groups)
    if accused:
        return _accused_cause(evidence, accused)
    if accusation.suspect is not None:
        suspect = evidence.groups[accusation.suspect]
        fault = next((shared for shared in suspect.shared if shared.mechanical), None)
        if fault is not None:
            return _suspected_cause(suspect, fault)
    why = f"No group of training rows stands out: {accusation.why_none}."
    setup = _setup_finding(evidence.findings)
    if setup is not None:
        fix = (setup.fix.text,) if setup.fix else ()
        sentence = f"The training set-up points to a cause: {_lower_first(setup.title)}."
        return Cause.SETUP, [why, sentence], fix, ()
    if evidence.base_margin is not None and evidence.base_margin < THIN_BASE_MARGIN:
        sentence = (
            f"The base model itself hardly held this capability (it preferred the wanted answers by "
            f"{evidence.base_margin:.1f} nats at the median), so small changes of any kind flip its answers."
        )
        return (
            Cause.BASE_MODEL,
            [why, sentence],
            ("use a stronger base model, or train this capability too",),
            (),
        )
    sentence = (
        "The cause is diffuse: many rows push a little in the same direction, which is the narrowing that any "
        "fine-tune brings, and no row is to blame for it."
    )
    fixes = (
        "train for fewer steps, or use an earlier checkpoint (evaluate each saved one)",
        "mix 5-20% general instruction data, or rows of this capability, into the training set",
        "lower the learning rate or the rank",
    )
    return Cause.DIFFUSE, [why, sentence], fixes, ()


def _accused_cause(
    evidence: Evidence, accused: tuple[JudgedGroup, ...]
) -> tuple[Cause, list[str], tuple[str, ...], tuple[JudgedGroup, ...]]:
    sentences = []
    for judged in accused:
        part = f"{judged.effect.share:.0%} of the negative influence with {judged.row_share:.0%} of the rows"
        effect = f"removing it is predicted to win back {-judged.effect.removal:.1f} nats an item"
        if evidence.regression_nats and evidence.regression_nats > 0:
            effect += f" of the {evidence.regression_nats:.1f} that were lost"
        sentences.append(f"{judged.name} accounts for {part}; {effect}.")
    mechanical = next(((j, s) for j in accused for s in j.shared if s.mechanical), None)
    if mechanical is not None:
        judged, shared = mechanical
        its = "its" if len(accused) == 1 else f"{judged.name}'s"
        sentences.append(
            f"{shared.inside} of {its} {shared.size} rows {_shared_predicate(shared.finding)}, which points to a "
            "mechanical cause rather than a content problem."
        )
        fixes = [shared.finding.fix.text] if shared.finding.fix else []
        fixes.append(
            f"then train again and compare; the {shared.inside} rows are listed under finding {shared.finding.id}"
        )
        return Cause.MECHANICAL, sentences, tuple(fixes), accused
    names = " and ".join(j.name for j in accused)
    sentences.append("No mechanical fault is common to these rows, so the cause is what they say.")
    fixes = [f"read the rows of {names} below, mend or drop them, train again and compare"]
    return Cause.CONTENT, sentences, tuple(fixes), accused


def _suspected_cause(
    suspect: JudgedGroup, fault: SharedFinding
) -> tuple[Cause, list[str], tuple[str, ...], tuple[JudgedGroup, ...]]:
    sentences = [
        f"The harm of single rows concentrates on {suspect.name}: {suspect.effect.share:.0%} of the negative influence "
        f"with {suspect.row_share:.0%} of the rows.",
        f"{fault.inside} of its {fault.size} rows {_shared_predicate(fault.finding)}, which points to "
        f"a mechanical cause, "
        "although the exact effect of removing the group does not confirm it.",
    ]
    fixes = (fault.finding.fix.text,) if fault.finding.fix else ()
    return Cause.MECHANICAL, sentences, fixes, ()


#: Title fragments of the usual mechanical findings, as a predicate of rows.
_PREDICATES = {
    "data.truncated_completion": "have completions cut at the length limit",
    "data.unfinished_completion": "have truncated completions",
    "data.json_unparseable": "have JSON that does not parse",
    "data.empty_completion": "have an empty completion",
    "data.no_trainable_tokens": "have no token to learn from",
    "data.duplicate_rows": "are duplicates of others",
    "data.mojibake": "have text in the wrong encoding",
    "data.degenerate_repetition": "repeat themselves over and over",
    "token.missing_eos": "end without a stop token",
    "template.content_dropped": "lose text in the chat template",
}


def _shared_predicate(finding: Finding) -> str:
    return _PREDICATES.get(finding.id, f"share a fault ({finding.id}: {_lower_first(finding.title)})")


def _setup_finding(findings: Sequence[Finding]) -> Finding | None:
    candidates = [
        f
        for f in findings
        if f.severity is not Severity.INFO and f.follows_from is None and f.id.startswith(SETUP_FAMILIES)
    ]
    return min(candidates, key=lambda f: (f.severity.rank, f.id), default=None)


def _confidence(
    evidence: Evidence, cause: Cause, accused: tuple[JudgedGroup, ...]
) -> tuple[Confidence, tuple[str, ...]]:
    """High needs agreement and a clear accusation; each doubt is named and costs a step."""
    assert evidence.accusation is not None, "a diagnosed regression has been attributed"
    comparison, agreement = evidence.comparison, evidence.agreement
    doubts = []
    if evidence.forced and comparison is not None and comparison.outcome != "regression":
        return Confidence.LOW, ("the evaluation shows no regression",)
    if comparison is not None and comparison.weak:
        doubts.append("few items changed: McNemar's exact test does not confirm the regression")
    if accused:
        if agreement is not None and not agreement.supports(evidence.accusation.groups):
            return Confidence.LOW, (
                f"{agreement.check}, an engine without curvature, does not concentrate the harm on the accused rows",
                *doubts,
            )
        if cause is Cause.CONTENT:
            doubts.append(
                "no finding of the audit supports it; only training without the group would prove it"
            )
        share = -min(j.effect.removal for j in accused) / (evidence.regression_nats or float("inf"))
        if evidence.regression_nats and share < 0.25:
            doubts.append(f"the accused rows explain {share:.0%} of what was lost")
    elif cause is Cause.MECHANICAL:
        return Confidence.LOW, (
            "row scores and a shared fault point to the group, the exact effect of removing it does not; rows that are "
            "already fitted have this effect, so an earlier checkpoint may show more",
            *doubts,
        )
    elif cause is Cause.DIFFUSE:
        doubts.append("that nothing stands out is weaker evidence than something that does")
    elif cause is Cause.SETUP:
        doubts.append("a set-up fault was found, but not measured to be what hurt")
    if evidence.items_explained < 10:
        doubts.append(f"only {_count(evidence.items_explained, 'lost item')} could be explained")
    level = (Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW)[min(2, len(doubts))]
    support = []
    if accused and agreement is not None:
        support.append(
            f"{agreement.check}, an engine without curvature, concentrates the harm on the accused rows too"
        )
    return level, (*support, *doubts)


def _without_target(evidence: Evidence) -> Judgement:
    text = (
        "Smoke test: without --eval-dataset no capability was measured and nothing is known to be lost. The first "
        "training rows stood in for it, so the scores below show that the pipeline works, not what broke."
    )
    return Judgement(
        Cause.NONE,
        Confidence.NONE,
        text,
        fixes=("write 50 to 200 items with the answers you want, and pass them as --eval-dataset",),
    )


def _as_sentence(fix: str) -> str:
    return f"Fix: {fix}."


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
