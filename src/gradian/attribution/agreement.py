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
        main_top, check_top: the group on which either concentrates the harm, as a position; None without groups.
        length_correlation: Spearman's between the main score's size and the row's targets: how far length alone ranks.
    """

    main: str
    check: str
    rank_correlation: float
    top_overlap: float
    top_k: int
    main_top: int | None
    check_top: int | None
    length_correlation: float

    def supports(self, accused: Sequence[int]) -> bool:
        """The check engine's group is among the accused ones; without any, both engines name the same group."""
        return self.check_top in accused if accused else self.main_top == self.check_top


def compare_engines(
    main: tuple[str, Float64],
    check: tuple[str, Float64],
    groups: Sequence[Sequence[int]],
    judged: Sequence[bool],
    loss_tokens: Sequence[int],
) -> EngineAgreement:
    """Compare two engines' scores [n], averaged over items.

    Args:
        groups: all groups, as row positions. judged: False for the rows that are in no cluster.
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
        main_top=most_concentrated(a, groups, judged),
        check_top=most_concentrated(b, groups, judged),
        length_correlation=spearman(np.abs(a), np.asarray(loss_tokens, dtype=np.float64)),
    )


def most_concentrated(scores: Float64, groups: Sequence[Sequence[int]], judged: Sequence[bool]) -> int | None:
    """The group whose share of the negative score exceeds its share of the rows by most; None without groups.

    The difference, not the ratio: by ratio the smallest groups would win.
    """
    shares = negative_shares(scores, groups)
    excess = {
        index: shares[index] - len(groups[index]) / len(scores)
        for index, is_group in enumerate(judged)
        if is_group
    }
    return max(excess, key=lambda index: (excess[index], -index), default=None)
