"""What each group did: its share of the negative score, and the exact effect of removing it.

Everything here works on small arrays (n x n, n x m) and knows nothing of models or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradian.engines.blocks import Float64
from gradian.engines.fisher import DAMPING_SWEEP, HEADLINE_DAMPING, FisherSolution, solve

#: Multiplications that the permutations of one report may take: minutes on two cores.
PERMUTATION_WORK = 5e12
#: With fewer no p-value could be as small as 0.05.
FEWEST_PERMUTATIONS = 19


@dataclass(frozen=True)
class GroupEffect:
    """What one group did, in nats of the query loss averaged over items (negative: it hurt).

    Attributes:
        share: its part of all negative row scores, in [0, 1]; share_ci the 95 % bootstrap interval over items.
        first_order: sum of its rows' scores over n, at the headline damping.
        removal: exact effect of removing it, at the headline damping; sweep the same at every damping.
        p_value: share of random partitions with groups of these sizes whose worst group is at least as bad; None for
            rows that are in no cluster.
    """

    share: float
    share_ci: tuple[float, float] | None
    first_order: float
    removal: float
    sweep: dict[float, float]
    p_value: float | None


def negative_shares(scores: Float64, groups: Sequence[Sequence[int]]) -> list[float]:
    """Each group's part of the sum of all negative scores [n]; zeros when no score is negative."""
    harm = np.maximum(-scores, 0.0)
    total = harm.sum()
    return [float(harm[list(rows)].sum() / total) if total > 0 else 0.0 for rows in groups]


def share_intervals(
    item_scores: Float64,
    groups: Sequence[Sequence[int]],
    generator: np.random.Generator,
    resamples: int = 1000,
) -> list[tuple[float, float] | None]:
    """95 % percentile bootstrap over items of each group's share; None for fewer than two items.

    Args:
        item_scores: [n, m], one column an item.
    """
    count, items = item_scores.shape
    if items < 2:
        return [None] * len(groups)
    member = np.zeros((len(groups), count))
    for index, rows in enumerate(groups):
        member[index, list(rows)] = 1.0
    shares = np.empty((resamples, len(groups)))
    for start in range(0, resamples, 100):
        weights = (
            generator.multinomial(items, np.full(items, 1 / items), size=min(100, resamples - start)) / items
        )
        harm = np.maximum(-(item_scores @ weights.T), 0.0)  # [n, resamples of this chunk]
        total = harm.sum(axis=0)
        part = np.divide(member @ harm, total, out=np.zeros((len(groups), harm.shape[1])), where=total > 0)
        shares[start : start + part.shape[1]] = part.T
    low, high = np.quantile(shares, [0.025, 0.975], axis=0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def permutation_p_values(
    solution: FisherSolution,
    groups: Sequence[Sequence[int]],
    generator: np.random.Generator,
    permutations: int,
) -> list[float]:
    """How often chance alone makes a group this bad, corrected for looking at all groups.

    The rows are dealt at random into groups of the same sizes and the *worst* effect is kept (max-statistic, Westfall &
    Young 1993). Random groups are a weak null, since real groups share a direction: a small p-value is needed for an
    accusation, not enough for one.
    """
    sizes = [len(rows) for rows in groups]
    count = len(solution.scores)
    worst = np.empty(permutations)
    for index in range(permutations):
        order = generator.permutation(count)
        stops = np.cumsum(sizes)
        worst[index] = min(
            float(solution.removal_effect(np.sort(order[stop - size : stop]))[0])
            for size, stop in zip(sizes, stops, strict=True)
        )
    return [
        float((1 + (worst <= solution.removal_effect(rows)[0] * (1 - 1e-9)).sum()) / (1 + permutations))
        for rows in groups
    ]


def affordable_permutations(wanted: int, groups: Sequence[Sequence[int]]) -> int:
    """How many random partitions are dealt: as many as wanted, fewer where their solves would take minutes."""
    work = sum(2 * len(rows) ** 3 / 3 for rows in groups)
    return max(FEWEST_PERMUTATIONS, min(wanted, int(PERMUTATION_WORK / max(work, 1.0))))


def group_effects(
    item_scores: Float64,
    gram: Float64,
    dots: Float64,
    groups: Sequence[Sequence[int]],
    judged: Sequence[bool],
    generator: np.random.Generator,
    permutations: int = 199,
) -> tuple[list[GroupEffect], Float64]:
    """Shares, effects and p-values of all groups, and the exact effect of removing each row alone [n], nats.

    The dampings are solved one after the other: each takes a few matrices of rows by rows.

    Args:
        item_scores: scores of the row engine [n, m].
        gram, dots: K [n, n] and k = G V^T [n, m]; the query of groups is the mean over items.
        judged: False for the rows that are in no cluster: they have a share and an effect, but are no group.
    """
    shares = negative_shares(item_scores.mean(axis=1), groups)
    intervals = share_intervals(item_scores, groups, generator)
    candidates = [rows for rows, is_group in zip(groups, judged, strict=True) if is_group]
    query = dots.mean(axis=1, keepdims=True)
    sweeps: list[dict[float, float]] = [{} for _ in groups]
    first_order: list[float] = []
    p_values: list[float] = []
    row_effects = np.zeros(len(gram))
    for ratio in DAMPING_SWEEP:
        solution = solve(gram, query, ratio)
        for sweep, rows in zip(sweeps, groups, strict=True):
            sweep[ratio] = float(solution.removal_effect(rows)[0])
        if ratio == HEADLINE_DAMPING:
            first_order = [float(solution.first_order_effect(rows)[0]) for rows in groups]
            row_effects = solution.row_removal_effects()[:, 0]
            if candidates:
                p_values = permutation_p_values(solution, candidates, generator, permutations)
    remaining = iter(p_values)
    effects = [
        GroupEffect(
            share, interval, first, sweep[HEADLINE_DAMPING], sweep, next(remaining) if is_group else None
        )
        for share, interval, first, sweep, is_group in zip(
            shares, intervals, first_order, sweeps, judged, strict=True
        )
    ]
    return effects, row_effects


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Rank correlation; 0 when either side is constant."""
    from scipy.stats import rankdata

    ranks_a, ranks_b = rankdata(a), rankdata(b)
    if ranks_a.std() == 0 or ranks_b.std() == 0:
        return 0.0
    return float(np.corrcoef(ranks_a, ranks_b)[0, 1])
