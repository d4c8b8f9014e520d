"""What an engine works on: the vectors of rows and queries, one LoRA block at a time.

n rows, m queries, d the size of a block. Engines are pure functions over an iterable of these, so that they can stream
from a file that does not fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


class BlockPair(NamedTuple):
    """The same block of every row and of every query: `rows` [n, d] and `queries` [m, d], float32 or float64."""

    rows: Float32 | Float64
    queries: Float32 | Float64


def split_blocks(
    rows: Float32 | Float64, queries: Float32 | Float64, stops: Iterable[int]
) -> Iterator[BlockPair]:
    """Whole matrices [n, D] and [m, D] cut into blocks that end at `stops`."""
    start = 0
    for stop in stops:
        yield BlockPair(rows[:, start:stop], queries[:, start:stop])
        start = stop
