"""Which groups the verdict names. "No group did this" is an answer, so each condition can refuse.

A group is accused when removing it helps, when chance does not make groups this bad, when it explains a part of the
regression worth acting on, and when it stands apart from the groups that are not accused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradian.attribution.effects import GroupEffect

#: Largest family-wise p-value of an accused group.
LARGEST_P = 0.05
#: Smallest part of the regression (in nats of the query loss) that an accused group explains. Below it, taking
#: the group out would leave nine tenths of the damage.
SMALLEST_EXPLAINED = 0.10
#: The last accused group's effect is at least this many times the next group's. Real groups share a direction
#: and spread smoothly (methods: on a run without a culprit the worst three groups were within 1.5 of each
#: other).
STANDS_OUT = 2.0
#: More groups than this are no culprit but the training set.
MOST_ACCUSED = 3


#: A group with this part of all harm, and this many times its share of the rows, is a suspect even where its
#: removal effect does not confirm it: once rows are fitted, their gradients cancel and the effect of removing
#: them loses its sign.
SUSPECT_SHARE, SUSPECT_LIFT = 0.5, 2.0


@dataclass(frozen=True)
class Accusation:
    """The accused groups, worst first, as positions in the list of groups; `why_none` when there are none.

    `suspect` is a group on which the row scores concentrate although it is not accused.
    """

    groups: tuple[int, ...]
    why_none: str | None = None
    suspect: int | None = None


def find_suspect(effects: Sequence[GroupEffect], row_shares: Sequence[float]) -> int | None:
    """The group on which the harm of single rows concentrates, or None."""
    order = sorted(range(len(effects)), key=lambda index: (-effects[index].share, index))
    for index in order[:1]:
        effect = effects[index]
        if effect.p_value is not None and effect.share >= max(
            SUSPECT_SHARE, SUSPECT_LIFT * row_shares[index]
        ):
            return index
    return None


def accuse(effects: Sequence[GroupEffect], regression_nats: float | None) -> Accusation:
    """Decide which groups to name.

    Args:
        effects: of all groups; those without a p-value (rows in no cluster) cannot be accused.
        regression_nats: how far the query loss rose from base to tuned, nats; None when it is not known.
    """
    order = sorted(
        (index for index, effect in enumerate(effects) if effect.p_value is not None),
        key=lambda index: (effects[index].removal, index),
    )
    if not order:
        return Accusation((), "the rows form no groups")
    worst = effects[order[0]]
    if worst.removal >= 0:
        return Accusation((), "removing no group would help")
    assert worst.p_value is not None, "only groups with a p-value are ordered"
    if worst.p_value > LARGEST_P:
        return Accusation(
            (), f"random groups of the same sizes are as bad as the worst one (p = {worst.p_value:.2f})"
        )
    candidates = [
        index
        for index in order
        if (effects[index].p_value or 1.0) <= LARGEST_P and _explains(effects[index], regression_nats)
    ]
    if not candidates:
        return Accusation(
            (),
            f"the worst group explains {_share(worst, regression_nats):.0%} of the regression, too little to name it",
        )
    for size in range(1, min(MOST_ACCUSED, len(candidates)) + 1):
        named = candidates[:size]
        next_effect = min((effects[index].removal for index in order if index not in named), default=0.0)
        if effects[named[-1]].removal <= STANDS_OUT * min(next_effect, 0.0) and _consistent(effects, named):
            return Accusation(tuple(named))
    return Accusation((), "no group stands apart from the others")


def _consistent(effects: Sequence[GroupEffect], named: Sequence[int]) -> bool:
    """Removing the named groups helps at every damping: a sign that depends on the damping accuses nobody."""
    return all(value < 0 for index in named for value in effects[index].sweep.values())


def _explains(effect: GroupEffect, regression_nats: float | None) -> bool:
    return regression_nats is None or _share(effect, regression_nats) >= SMALLEST_EXPLAINED


def _share(effect: GroupEffect, regression_nats: float | None) -> float:
    return 0.0 if not regression_nats or regression_nats <= 0 else -effect.removal / regression_nats
