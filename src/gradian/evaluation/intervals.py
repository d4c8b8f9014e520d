"""Confidence intervals of a mean paired difference. Pure functions over arrays; know nothing of scores.

All resample *units* with replacement: the items, or whole clusters of items that are not independent of each
other (paraphrases, questions about one text). A unit is `(sum, count)` of its differences, the estimate the
ratio of the sums of both (Miller 2024, arXiv 2411.00640, sections 2 and 3, for paired differences and
clusters).
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit

Method = Literal["percentile", "bca", "t"]
METHODS: tuple[str, ...] = get_args(Method)

# Numbers drawn at once: 32 MiB of float64. Part of the result only through the order of the draws, so it is
# fixed.
_DRAWS_AT_ONCE = 4_194_304
# With few distinct differences (0/1 metrics have three) counting how often each is drawn is exact and much
# faster.
_MOST_DISTINCT_COUNTED = 64

Array = NDArray[np.float64]


def bootstrap_means(sums: Array, counts: Array, resamples: int, rng: np.random.Generator) -> Array:
    """Means of resamples of the units, float64 `[resamples]`.

    Args:
        sums: sum of the differences of each unit, `[units]`.
        counts: number of items of each unit, `[units]`.
        resamples: how many to draw.
        rng: the source of randomness; the same state gives the same means.
    """
    units = len(sums)
    kinds, how_many = np.unique(np.stack([sums, counts], axis=1), axis=0, return_counts=True)
    means = np.empty(resamples)
    counted = len(kinds) <= _MOST_DISTINCT_COUNTED
    step = max(1, _DRAWS_AT_ONCE // (len(kinds) if counted else units))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        if counted:
            drawn = rng.multinomial(units, how_many / units, size=size)  # [size, kinds]
            top, bottom = drawn @ kinds[:, 0], drawn @ kinds[:, 1]
        else:
            chosen = rng.integers(0, units, size=(size, units))  # [size, units]
            top, bottom = sums[chosen].sum(axis=1), counts[chosen].sum(axis=1)
        means[start : start + size] = top / bottom
    return means


def percentile(means: Array, level: float) -> tuple[float, float]:
    """The middle `level` of the resampled means (Efron 1979)."""
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def bca(sums: Array, counts: Array, means: Array, level: float) -> tuple[float, float]:
    """Bias-corrected and accelerated interval (Efron 1987, JASA 82:171, equations 2.3 and 6.6).

    Under-covers the mean in small samples (Owen 2025, arXiv 2508.10083), which is why it is not the default.
    """
    estimate = sums.sum() / counts.sum()
    share_below = ((means < estimate).mean() + (means <= estimate).mean()) / 2
    bias = ndtri(np.clip(share_below, 1 / (2 * len(means)), 1 - 1 / (2 * len(means))))
    left_out = (sums.sum() - sums) / (counts.sum() - counts)  # jackknife over the units
    spread = left_out.mean() - left_out
    acceleration = (spread**3).sum() / (6 * (spread**2).sum() ** 1.5)
    tail = (1 - level) / 2
    shift = bias + ndtri(np.array([tail, 1 - tail]))
    low, high = np.quantile(means, ndtr(bias + shift / (1 - acceleration * shift)))
    return float(low), float(high)


def standard_error(sums: Array, counts: Array) -> float:
    """Standard error of the mean difference, robust to dependence inside a unit; 0 for a single unit.

    `sqrt(G / (G - 1) * sum_g (sum_{i in g} (d_i - mean))^2) / n`: with units of one item the textbook `s /
    sqrt(n)`.
    """
    units, items = len(sums), counts.sum()
    if units < 2:
        return 0.0
    residuals = sums - counts * (sums.sum() / items)
    return float(np.sqrt(units / (units - 1) * (residuals**2).sum()) / items)


def student(sums: Array, counts: Array, level: float) -> tuple[float, float]:
    """Mean plus and minus Student's t times the standard error, with units - 1 degrees of freedom."""
    estimate = sums.sum() / counts.sum()
    reach = stdtrit(len(sums) - 1, (1 + level) / 2) * standard_error(sums, counts)
    return float(estimate - reach), float(estimate + reach)


def interval(
    sums: Array, counts: Array, *, method: Method, level: float, resamples: int, rng: np.random.Generator
) -> tuple[float, float]:
    """The interval of the mean difference by one of the three methods; at least two units that differ.

    Args:
        sums, counts: see `bootstrap_means`.
        level: of confidence, in (0, 1).
    """
    assert len(sums) >= 2, "one unit has no spread: the caller says what is known without an interval"
    if method == "t":
        return student(sums, counts, level)
    means = bootstrap_means(sums, counts, resamples, rng)
    return bca(sums, counts, means, level) if method == "bca" else percentile(means, level)
