"""Does an engine without curvature see the same? Said in the report, never averaged away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradian.attribution.effects import negative_shares, spearman
from gradian.engines.blocks import Float64


@dataclass(frozen=True)
class EngineAgreement:
    """Two engines on the same rows.

    Attributes:
        main, check: names of the engines.
        rank_correlation: Spearman's over all rows, in [-1, 1].
        top_overlap: part of the `top_k` most harmful rows that both name, in [0, 1].
        same_top_group: the group that concentrates the harm most is the same under both.
        length_correlation: Spearman's between the main score's size and the row's targets: how far length alone ranks.
    """

    main: str
    check: str
    rank_correlation: float
    top_overlap: float
    top_k: int
    same_top_group: bool
    length_correlation: float


def compare_engines(
    main: tuple[str, Float64],
    check: tuple[str, Float64],
    groups: Sequence[Sequence[int]],
    loss_tokens: Sequence[int],
) -> EngineAgreement:
    """Compare two engines' scores [n], averaged over items.

    Args:
        groups: the groups that are judged (not the unclustered rows), as row positions.
        loss_tokens: targets of each row.
    """
    (main_name, a), (check_name, b) = main, check
    top_k = max(1, min(len(a), max(10, len(a) // 20)))
    order_a, order_b = (np.lexsort((np.arange(len(s)), s))[:top_k] for s in (a, b))
    return EngineAgreement(
        main=main_name,
        check=check_name,
        rank_correlation=spearman(a, b),
        top_overlap=len(set(order_a.tolist()) & set(order_b.tolist())) / top_k,
        top_k=top_k,
        same_top_group=most_concentrated(a, groups) == most_concentrated(b, groups),
        length_correlation=spearman(np.abs(a), np.asarray(loss_tokens, dtype=np.float64)),
    )


def most_concentrated(scores: Float64, groups: Sequence[Sequence[int]]) -> int | None:
    """The group with the largest share of the negative score relative to its share of the rows; None without groups."""
    if not groups:
        return None
    shares = negative_shares(scores, groups)
    lifts = [share / len(rows) for share, rows in zip(shares, groups, strict=True)]
    return max(range(len(groups)), key=lambda index: (lifts[index], -index))
