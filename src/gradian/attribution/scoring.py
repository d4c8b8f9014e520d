"""From an index and query vectors to the scores of rows and the effects of groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradian.attribution.agreement import EngineAgreement, compare_engines
from gradian.attribution.effects import GroupEffect, group_effects, solve_sweep
from gradian.attribution.groups import UNCLUSTERED, Grouping
from gradian.engines.blocks import BlockPair, Float64
from gradian.engines.fisher import HEADLINE_DAMPING, solve
from gradian.engines.table import ENGINES
from gradian.index.store import IndexStore

#: The curvature-free engine that checks the main one. The cosine, so that a difference is not one of length alone.
CHECK_ENGINE = "gradcos"


@dataclass(frozen=True)
class Scoring:
    """Scores and effects, rows by position in the index.

    Attributes:
        engine: that ranks rows. item_scores: [n, m], one column an item, all items weighed alike; scores: their
            mean [n], in the engine's own unit.
        row_effects: exact effect of removing each row alone, nats [n].
        effects: one for each group of the grouping, in its order.
        agreement: against the curvature-free engine.
    """

    engine: str
    item_scores: Float64
    scores: Float64
    row_effects: Float64
    effects: tuple[GroupEffect, ...]
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
    solutions = solve_sweep(gram, dots)

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
    effects = group_effects(
        item_scores, solutions, members, judged, np.random.default_rng(seed), permutations=permutations
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
        row_effects=solutions[HEADLINE_DAMPING].row_removal_effects()[:, 0],
        effects=tuple(effects),
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
