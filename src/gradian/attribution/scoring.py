"""From an index and query vectors to the scores of rows and the effects of groups."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradian.attribution.agreement import EngineAgreement, compare_engines
from gradian.attribution.effects import GroupEffect, affordable_permutations, group_effects
from gradian.attribution.groups import UNCLUSTERED, Grouping
from gradian.engines.blocks import BlockPair, Float64
from gradian.engines.fisher import HEADLINE_DAMPING, solve
from gradian.engines.table import ENGINES
from gradian.errors import IndexStoreError
from gradian.index.store import IndexStore

#: The curvature-free engine that checks the main one. The cosine, so that a difference is not one of length alone.
CHECK_ENGINE = "gradcos"
#: Matrices of rows by rows, float64, that are alive at once while groups are judged.
MATRICES_HELD = 5


@dataclass(frozen=True)
class Scoring:
    """Scores and effects, rows by position in the index.

    Attributes:
        engine: that ranks rows. item_scores: [n, m], one column an item, all items weighed alike; scores: their
            mean [n], in the engine's own unit.
        row_effects: exact effect of removing each row alone, nats [n].
        effects: one for each group of the grouping, in its order.
        permutations: random partitions behind the p-values.
        agreement: against the curvature-free engine.
    """

    engine: str
    item_scores: Float64
    scores: Float64
    row_effects: Float64
    effects: tuple[GroupEffect, ...]
    permutations: int
    agreement: EngineAgreement


def score_rows(
    store: IndexStore,
    queries: NDArray[np.float32],
    grouping: Grouping,
    loss_tokens: Sequence[int],
    *,
    question: str,
    engine: str,
    seed: int,
    permutations: int,
) -> Scoring:
    """Score every row with the row engine and the check engine, and judge every group with the exact Fisher.

    Args:
        queries: [m, dimension].
        question: names these queries; the engines' raw scores are kept in the index under it.
        engine: name in the table of engines.
        loss_tokens: targets of each row.
    """
    check = CHECK_ENGINE if engine != CHECK_ENGINE else "graddot"
    dots = _raw_scores(store, queries, question, "graddot")
    balance = balancing_weights(queries)
    gram = store.array("gram")
    if gram is None or gram.shape != (store.count, store.count):
        gram = _gram(store)
        store.keep_array("gram", gram)

    def score(name: str) -> Float64:
        # Every engine is linear in the query (the cosine up to its norm), so items are weighed afterwards.
        if name == "graddot":
            return dots * balance
        if name == "fisher":
            return solve(gram, dots, HEADLINE_DAMPING).scores * balance
        plain = _raw_scores(store, queries, question, name)
        return plain if name == "gradcos" else plain * balance

    item_scores = score(engine)
    means = item_scores.mean(axis=1)
    members = [group.rows for group in grouping.groups]
    judged = [group.id != UNCLUSTERED for group in grouping.groups]
    dealt = affordable_permutations(
        permutations, [rows for rows, is_group in zip(members, judged, strict=True) if is_group]
    )
    effects, row_effects = group_effects(
        item_scores, gram, dots, members, judged, np.random.default_rng(seed), permutations=dealt
    )
    agreement = compare_engines(
        (engine, means),
        (check, score(check).mean(axis=1)),
        members,
        judged,
        loss_tokens,
    )
    return Scoring(
        engine=engine,
        item_scores=item_scores,
        scores=means,
        row_effects=row_effects,
        effects=tuple(effects),
        permutations=dealt,
        agreement=agreement,
    )


def _raw_scores(store: IndexStore, queries: NDArray[np.float32], question: str, name: str) -> Float64:
    kept_as = f"queries/{question}-{name}-{ENGINES[name].revision}"
    kept = store.array(kept_as)
    if kept is not None and kept.shape == (store.count, len(queries)):
        return np.asarray(kept, dtype=np.float64)
    scores = ENGINES[name].score(_blocks(store, queries))
    store.keep_array(kept_as, scores)
    return scores


def check_memory(rows: int) -> None:
    """Judging groups holds a few matrices of rows by rows; say so before hours of gradients, not after.

    Raises:
        IndexStoreError: they would not fit into this machine's memory.
    """
    needed = MATRICES_HELD * 8 * rows**2
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return  # a system that does not say
    if needed > memory:
        raise IndexStoreError(
            f"judging groups of {rows:,} rows needs {needed / 1e9:.0f} GB of memory, "
            f"this machine has {memory / 1e9:.0f}",
            why="the exact effect of removing a group takes matrices of rows by rows",
            fix="give a random part of the rows as --dataset, or a larger machine",
        )


def balancing_weights(queries: NDArray[np.float32]) -> Float64:
    """Weights [m] that give every lost item the same say in the ranking of rows: `mean |q| / |q_i|`.

    One lost item is one lost item. Without the weights the few whose answers are longest or furthest off
    decide, since their gradients are several times larger. (Groups are judged in nats, and there an item counts
    by its nats.)
    """
    norms = np.linalg.norm(queries.astype(np.float64), axis=1)
    return np.asarray(np.divide(norms.mean(), norms, out=np.zeros_like(norms), where=norms > 0))


def _blocks(store: IndexStore, queries: NDArray[np.float32]) -> Iterator[BlockPair]:
    for block, rows in zip(store.layout.blocks, store.blocks(), strict=True):
        yield BlockPair(rows, queries[:, block.offset : block.stop])


def _gram(store: IndexStore) -> Float64:
    from gradian.engines.fisher import gram

    nothing = np.zeros((0, store.layout.dimension), dtype=np.float32)
    return gram(_blocks(store, nothing))
