"""Base against tuned on the same items: how much worse, beyond noise or not. Pure statistics over two arrays.

The gate is the interval of the mean paired difference, tuned - base. Everything else stands beside it and
never decides. What is assumed: items are independent of each other (or of other clusters) and stand for the
capability.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binomtest  # type: ignore[attr-defined]  # scipy's own __all__ is not typed

from gradian.errors import ConfigError
from gradian.evaluation.comparison import (
    LEVEL,
    RULE_OF_THREE,
    Comparison,
    ItemOutcome,
    Outcome,
    Scale,
    notes_on,
)
from gradian.evaluation.intervals import METHODS, Array, Method, interval, standard_error

# z(0.975) + z(0.80): a two-sided test at 5 % finds this many standard errors four times in five.
DETECTABLE_ERRORS = 2.80
# Differences nearer to zero than rounding can make them are no difference.
_ROUNDING = 1e-12
WEAK_P = 0.05

_METHOD_NAMES = {"percentile": "percentile bootstrap", "bca": "BCa bootstrap", "t": "Student's t"}


def compare(
    base: ArrayLike,
    tuned: ArrayLike,
    *,
    graded: bool = False,
    rng: np.random.Generator,
    resamples: int = 10_000,
    method: Method = "percentile",
    margin: float | None = None,
    clusters: Sequence[Hashable] | None = None,
    change: float = 0.0,
    scale: Scale = "unit",
) -> Comparison:
    """Compare two arms item by item.

    Args:
        base, tuned: scores `[items]` of the same items in the same order; higher is better.
        graded: scores may lie between 0 and 1. Otherwise each is 0 or 1.
        rng: the source of the resamples.
        resamples: at least 1,000; the ends of the interval are noise below that.
        method: of the interval.
        margin: differences up to this one do not matter; needed for the outcome `equivalent`.
        clusters: a key for each item; items with equal keys are resampled together.
        change: a graded score that moved by no more than this did not change.
        scale: `unit` for scores in [0, 1]; `nats` for log-probabilities, which have no lower bound.

    Raises:
        ConfigError: a method, a margin or a number of resamples that cannot be used.
    """
    before, after = np.asarray(base, dtype=np.float64), np.asarray(tuned, dtype=np.float64)
    _check(before, after, graded, scale, clusters)
    _check_options(resamples, method, margin)
    deltas: Array = after - before
    deltas[np.abs(deltas) <= max(change, _ROUNDING)] = 0.0
    outcomes = item_outcomes(before, deltas, scale)
    lost, gained = outcomes.count("lost"), outcomes.count("gained")
    sums, counts = units_of(deltas, clusters)

    delta = float(deltas.mean())
    if np.all(sums / counts == sums[0] / counts[0]):
        ci, drawn = without_spread(delta, len(sums), scale), 0
        ci_method = "rule of three" if scale == "unit" else "no spread"
    else:
        ci = interval(sums, counts, method=method, level=LEVEL, resamples=resamples, rng=rng)
        ci_method = f"{_METHOD_NAMES[method]} over {'items' if clusters is None else 'clusters of items'}"
        drawn = 0 if method == "t" else resamples

    p_value = None if graded else mcnemar(lost, gained)
    spread = spread_per_item(deltas, sums, counts, graded=graded, clustered=clusters is not None)
    outcome, improved = judge(ci, margin)
    result = Comparison(
        items=len(deltas),
        clusters=None if clusters is None else len(sums),
        base=float(before.mean()),
        tuned=float(after.mean()),
        delta=delta,
        ci=ci,
        ci_method=ci_method,
        resamples=drawn,
        outcomes=outcomes,
        kept=outcomes.count("kept"),
        lost=lost,
        gained=gained,
        both_wrong=outcomes.count("both_wrong"),
        graded=graded,
        mcnemar_p=p_value,
        minimum_detectable_effect=DETECTABLE_ERRORS * spread / math.sqrt(len(deltas)) if spread else None,
        items_needed=items_needed(spread, delta),
        margin=margin,
        outcome=outcome,
        improved=improved,
        weak=p_value is not None and p_value > WEAK_P and (outcome == "regression" or improved),
        notes=(),
    )
    return replace(result, notes=notes_on(result, scale))


def _check(
    before: Array, after: Array, graded: bool, scale: str, clusters: Sequence[Hashable] | None
) -> None:
    assert before.ndim == 1, "scores are one number an item"
    assert before.shape == after.shape, "both arms are scored on the same items"
    assert len(before) > 0, "an empty eval file is refused where it is read"
    assert clusters is None or len(clusters) == len(before), "every item has a cluster key"
    both = np.concatenate([before, after])
    assert np.isfinite(both).all(), "a score is a finite number: the arms refuse a model that returns NaN"
    assert scale == "nats" or ((both >= 0) & (both <= 1)).all(), "a score lies in [0, 1]"
    assert graded or np.isin(both, (0.0, 1.0)).all(), "a metric that is not graded scores 0 or 1"


def _check_options(resamples: int, method: str, margin: float | None) -> None:
    if method not in METHODS:
        raise ConfigError(
            f"unknown interval method {method!r}", where="ci_method", fix=f"one of {', '.join(METHODS)}"
        )
    if not 1_000 <= resamples <= 10_000_000:
        raise ConfigError(
            f"{resamples} resamples cannot be used",
            where="resamples",
            why="below 1,000 the ends of the interval are noise, above 10,000,000 nothing is gained",
            fix="10000 is the default",
        )
    if margin is not None and not 0 < margin < math.inf:
        raise ConfigError(
            f"the equivalence margin {margin} cannot be used",
            where="margin",
            fix="a positive number: the largest change of the score that does not matter (0.05: 5 points)",
        )


def item_outcomes(base: Array, deltas: Array, scale: Scale = "unit") -> tuple[ItemOutcome, ...]:
    """What became of each item.

    `lost` when its score fell, `gained` when it rose; else `both_wrong` at a score of 0 and `kept` above it
    (in nats, where no score means wrong, always `kept`).
    """

    def outcome(score: float, delta: float) -> ItemOutcome:
        if delta != 0:
            return "lost" if delta < 0 else "gained"
        return "both_wrong" if scale == "unit" and score <= _ROUNDING else "kept"

    return tuple(outcome(score, delta) for score, delta in zip(base.tolist(), deltas.tolist(), strict=True))


def units_of(deltas: Array, clusters: Sequence[Hashable] | None) -> tuple[Array, Array]:
    """Sum of the differences and number of items of each unit, `[units]`, in order of first appearance."""
    if clusters is None:
        return deltas, np.ones(len(deltas))
    numbers: dict[Hashable, int] = {}
    unit = np.array([numbers.setdefault(key, len(numbers)) for key in clusters], dtype=np.intp)
    sums: Array = np.bincount(unit, weights=deltas).astype(np.float64)
    return sums, np.bincount(unit).astype(np.float64)


def mcnemar(lost: int, gained: int) -> float:
    """Exact two-sided McNemar p-value: how likely so uneven a split of the changed items is by chance.

    The binomial test of `lost` among `lost + gained` at 1/2 (McNemar 1947, Psychometrika 12:153). 1 when no
    item changed.
    """
    changed = lost + gained
    return float(binomtest(lost, changed, 0.5).pvalue) if changed else 1.0


def without_spread(delta: float, units: int, scale: Scale) -> tuple[float, float]:
    """What is known of the mean difference when every unit has the same one: resamples have no spread.

    By the rule of three at most a share `r = 3 / units` of unseen units differs (95 %, Hanley and
    Lippman-Hand 1983, JAMA 249:1743); those may lie anywhere in [-1, 1]. In nats there is no such bound: the
    interval reaches from 0 to the difference and so decides nothing.
    """
    if scale == "nats":
        return min(delta, 0.0), max(delta, 0.0)
    differing = min(1.0, RULE_OF_THREE / units)
    return delta * (1 - differing) - differing, delta * (1 - differing) + differing


def spread_per_item(deltas: Array, sums: Array, counts: Array, *, graded: bool, clustered: bool) -> float:
    """Standard deviation of the paired difference for the power formulas, per item.

    `sqrt(p_disc)` for 0/1 scores, p_disc the share of changed items: the standard deviation at no mean
    difference (Miller 2024, arXiv 2411.00640, section 5). For graded scores that of the differences; with
    clusters the robust standard error times `sqrt(n)`, so that the design effect is in it.
    """
    if clustered:
        return standard_error(sums, counts) * math.sqrt(len(deltas))
    if not graded:
        return math.sqrt(np.count_nonzero(deltas) / len(deltas))
    return float(deltas.std(ddof=1)) if len(deltas) > 1 else 0.0


def items_needed(spread: float, delta: float) -> int | None:
    """Items that show a true difference of `delta` with 80 % power, `(2.80 * spread / delta)^2`."""
    if spread == 0 or abs(delta) <= _ROUNDING:
        return None
    return math.ceil((DETECTABLE_ERRORS * spread / delta) ** 2)


def judge(ci: tuple[float, float], margin: float | None) -> tuple[Outcome, bool]:
    """The outcome that an interval means, and whether it is an improvement."""
    low, high = ci
    if high < -_ROUNDING:
        return "regression", False
    if low > _ROUNDING:
        return "equivalent", True
    if margin is not None and -margin <= low and high <= margin:
        return "equivalent", False
    return "inconclusive", False
