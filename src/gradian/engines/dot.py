"""Engines without curvature: the cross-check that always runs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gradian.engines.blocks import BlockPair, Float64


def graddot(blocks: Iterable[BlockPair]) -> Float64:
    """Scores `q . g_k` (TracIn at one checkpoint, arXiv 2002.08484, eq. 1), [n, m]."""
    total: Float64 | None = None
    for rows, queries in blocks:
        part = (rows @ queries.T).astype(np.float64)
        total = part if total is None else total + part
    assert total is not None, "there is no block to score"
    return total


def gradcos(blocks: Iterable[BlockPair]) -> Float64:
    """Cosine of the angle between q and g_k over all blocks together, [n, m]; 0 where either is zero.

    Length cannot dominate it: a long row's gradient is larger, not more alike.
    """
    total: Float64 | None = None
    row_squares: Float64 = np.zeros(())
    query_squares: Float64 = np.zeros(())
    for rows, queries in blocks:
        part = (rows @ queries.T).astype(np.float64)
        total = part if total is None else total + part
        row_squares = row_squares + np.einsum("nd,nd->n", rows, rows, dtype=np.float64)
        query_squares = query_squares + np.einsum("md,md->m", queries, queries, dtype=np.float64)
    assert total is not None, "there is no block to score"
    norms = np.sqrt(np.outer(row_squares, query_squares))
    return np.divide(total, norms, out=np.zeros_like(total), where=norms > 0)
