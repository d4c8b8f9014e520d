"""DataInf: the default for ranking rows.

Kwon et al., arXiv 2310.00902, eq. 5: in each block the inverse of the average of rank-one Fisher terms is replaced by
the average of their inverses, each of which Sherman-Morrison gives in closed form:

    H_l^-1 v  ~  1/n sum_i (lambda_l I + g_i g_i^T)^-1 v
              =  1/(n lambda_l) sum_i ( v - (g_i . v) / (lambda_l + |g_i|^2) g_i )

It does not split the blame among near copies of a row, which is what ranking wants.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gradian.engines.blocks import BlockPair, Float64

#: lambda_l = 0.1 x the mean squared *entry* of the block's gradients (Grosse et al., arXiv 2308.03296, and the
#: DataInf authors' code). The mean squared norm would be d_l times larger and turn the method into
#: a plain dot product.
DAMPING_FACTOR = 0.1


def datainf(blocks: Iterable[BlockPair], damping_factor: float = DAMPING_FACTOR) -> Float64:
    """Scores `q . H^-1 g_k` summed over blocks, [n, m].

    With `k = G v`, `D = diag(1/(lambda + |g_i|^2))` and `t = D k`, a block's scores are
    `(k - G (G^T t) / n) / lambda`. Blocks without any gradient are left out.
    """
    total: Float64 | None = None
    for rows, queries in blocks:
        count, dimension = rows.shape
        squares = np.einsum("nd,nd->n", rows, rows, dtype=np.float64)
        if total is None:
            total = np.zeros((count, len(queries)))
        mean_entry = float(squares.mean()) / dimension
        if mean_entry == 0:
            continue  # B = 0 at the start of training makes every A gradient zero, and the damping with it
        damping = damping_factor * mean_entry
        dots = (rows @ queries.T).astype(np.float64)
        weighted = dots / (damping + squares)[:, None]
        shared = rows.T @ weighted.astype(rows.dtype)  # [d, m]
        total += (dots - (rows @ shared).astype(np.float64) / count) / damping
    assert total is not None, "there is no block to score"
    return total
