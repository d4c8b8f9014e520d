"""What a comparison of the two arms found, and the sentences that keep a reader from over-reading it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["regression", "equivalent", "inconclusive"]
ItemOutcome = Literal["kept", "lost", "gained", "both_wrong"]
Scale = Literal["unit", "nats"]

LEVEL = 0.95
# Below a few hundred items bootstrap and normal intervals under-cover (arXiv 2503.01747); said from here
# down.
FEW_ITEMS = 100
# The share of unseen items that may differ when none of n did is at most 3 / n (95 %, Hanley and Lippman-Hand
# 1983, JAMA 249:1743).
RULE_OF_THREE = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the two arrays of scores say.

    Attributes:
        items: number of items; clusters: number of clusters when whole clusters were resampled, else None.
        base, tuned: mean score. delta: tuned - base.
        ci: 95 % interval of delta. ci_method: how it was made, in words.
        resamples: bootstrap resamples drawn (0 when none were needed).
        outcomes: one of kept, lost, gained, both_wrong for each item.
        kept, lost, gained, both_wrong: their counts.
        graded: scores are no plain 0 or 1; lost then means that the score fell.
        mcnemar_p: exact two-sided McNemar p-value; None for a graded metric.
        minimum_detectable_effect: smallest |delta| that this many items would show with 80 % power; None when
            the differences have no spread.
        items_needed: items that would show the observed delta with 80 % power; None when delta is 0 or the
            differences have no spread.
        margin: the largest |delta| that does not matter to the user; None when none was given.
        outcome: `regression` when the interval lies below 0; `equivalent` when it lies above 0 (see
            `improved`) or inside +-margin; else `inconclusive`.
        improved: the interval lies above 0.
        weak: the interval excludes 0 but McNemar's test does not.
        notes: sentences that belong beside the numbers.
    """

    items: int
    clusters: int | None
    base: float
    tuned: float
    delta: float
    ci: tuple[float, float]
    ci_method: str
    resamples: int
    outcomes: tuple[ItemOutcome, ...]
    kept: int
    lost: int
    gained: int
    both_wrong: int
    graded: bool
    mcnemar_p: float | None
    minimum_detectable_effect: float | None
    items_needed: int | None
    margin: float | None
    outcome: Outcome
    improved: bool
    weak: bool
    notes: tuple[str, ...]


def notes_on(result: Comparison, scale: Scale) -> tuple[str, ...]:
    """The sentences that keep a reader from over-reading the numbers."""
    notes = []
    changed = result.lost + result.gained
    low, _ = result.ci
    if changed == 0 and scale == "unit":
        share = min(1.0, RULE_OF_THREE / (result.clusters or result.items))
        notes.append(
            f"No score changed on any of the {result.items} items. Up to {share:.1%} of such items may still"
            " change (rule of three, 95 %), and the interval says no more than that."
        )
    elif result.ci_method in ("rule of three", "no spread"):
        notes.append(
            "Every item changed alike, so there is no spread to make an interval of; it is set wide instead."
        )
    if result.weak:
        notes.append(
            f"Weak evidence: only {changed} items changed, and the exact McNemar test does not rule out"
            f" chance (p = {result.mcnemar_p:.3f}) although the interval excludes 0."
        )
    if result.improved:
        notes.append(
            f"Improved: the whole interval lies above 0 ({result.gained} items gained, {result.lost} lost)."
            " There is no regression to explain."
        )
    if result.outcome == "regression" and result.margin is not None and -result.margin <= low:
        notes.append(
            f"The loss is real but small: all of the interval lies within the margin of {result.margin:g}."
        )
    if result.outcome == "inconclusive":
        notes.append(_on_power(result))
    if result.clusters is not None and result.mcnemar_p is not None:
        notes.append("McNemar's test takes every item as independent; the interval resamples whole clusters.")
    if result.items < FEW_ITEMS and changed:
        notes.append(
            f"{result.items} items are few: intervals of so small a sample are somewhat too narrow"
            " (arXiv 2503.01747)."
        )
    return tuple(notes)


def _on_power(result: Comparison) -> str:
    sentence = "Inconclusive does not mean unchanged."
    if result.minimum_detectable_effect is not None:
        sentence += (
            f" {result.items} items with this much change would show a difference of about"
            f" {result.minimum_detectable_effect:.3f} (four times in five)"
        )
        if result.items_needed is not None and result.items_needed > result.items:
            sentence += (
                f"; to resolve the observed {result.delta:+.3f} needs about {result.items_needed:,} items"
            )
        sentence += "."
    if result.margin is None:
        sentence += " No margin was given, so the arms cannot be called equivalent either."
    return sentence
