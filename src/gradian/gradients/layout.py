"""Where each LoRA block lies in a row's gradient vector, before and after projection.

A vector is the concatenation over sites, sorted by path, of the A block and then the B block, each flattened row by
row. Projection is one-sided: only the wide side of a block is reduced, `A: [r, in] -> [r, k]`, `B: [out, r] -> [k, r]`
(LoGra, arXiv 2405.13954, specialised: the other side of a LoRA block is already r wide). So everything that acts on the
rank side alone, such as a change of gauge, is left exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Block:
    """One of the two matrices of a site.

    Attributes:
        site: module path. side: "A" or "B".
        rows, columns: shape of its gradient, [r, in] for A and [out, r] for B.
        k: width of the wide side after projection; equal to the wide side when nothing is projected.
        offset: where it starts in the vector.
    """

    site: str
    side: Literal["A", "B"]
    rows: int
    columns: int
    k: int
    offset: int

    @property
    def wide(self) -> int:
        return self.columns if self.side == "A" else self.rows

    @property
    def rank(self) -> int:
        return self.rows if self.side == "A" else self.columns

    @property
    def size(self) -> int:
        """Values that it takes in the vector."""
        return self.k * self.rank

    @property
    def stop(self) -> int:
        return self.offset + self.size

    @property
    def projected(self) -> bool:
        return self.k < self.wide


@dataclass(frozen=True)
class Layout:
    """The blocks of a vector, in order, and how they are projected.

    Attributes:
        blocks: in the order of the vector.
        k: largest width of a projected side; None for exact vectors.
        seed: seed of the projection matrices.
    """

    blocks: tuple[Block, ...]
    k: int | None
    seed: int

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self.blocks[-1].stop if self.blocks else 0

    def projection(self, block: Block) -> NDArray[np.float32] | None:
        """The matrix P [k, wide] of a block, entries N(0, 1/k), so that E[P^T P] = I; None when nothing is projected.

        Seeded by the layout's seed and the block's name alone: the same for every dataset, order and batch.
        """
        if not block.projected:
            return None
        name = f"{self.seed}:{block.site}:{block.side}:{block.k}".encode()
        digest = hashlib.blake2b(name, digest_size=16).digest()
        generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))
        matrix = generator.standard_normal((block.k, block.wide), dtype=np.float32)
        return np.asarray(matrix / np.sqrt(block.k), dtype=np.float32)

    def as_json(self) -> dict[str, Any]:
        """What an index manifest keeps."""
        return {
            "k": self.k,
            "seed": self.seed,
            "blocks": [[b.site, b.side, b.rows, b.columns, b.k, b.offset] for b in self.blocks],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Layout:
        """Inverse of `as_json`."""
        return cls(tuple(Block(*entry) for entry in data["blocks"]), data["k"], data["seed"])


def make_layout(shapes: Sequence[tuple[str, int, int, int]], k: int | None, seed: int = 0) -> Layout:
    """Lay out the blocks of the given sites.

    Args:
        shapes: (site, rank, in_features, out_features), sorted by site.
        k: width to which wide sides are projected; None for exact vectors. A side no wider than k stays exact.
    """
    blocks = []
    offset = 0
    for site, rank, wide_in, wide_out in shapes:
        for side, wide in (("A", wide_in), ("B", wide_out)):
            width = wide if k is None else min(k, wide)
            rows, columns = (rank, wide) if side == "A" else (wide, rank)
            block = Block(site, "A" if side == "A" else "B", rows, columns, width, offset)
            blocks.append(block)
            offset = block.stop
    return Layout(tuple(blocks), k, seed)


#: Widths that `auto` tries, widest first. Below 16 the inner products are mostly noise.
PROJECTION_WIDTHS = (512, 256, 128, 64, 32, 16)


def choose_projection(
    shapes: Sequence[tuple[str, int, int, int]], rows: int, budget_bytes: int, bytes_per_value: int = 4
) -> int | None:
    """The widest projection whose vectors fit the budget; None when exact vectors do.

    Returns the narrowest width when none fits: the caller says what it costs and that it is over the budget.
    """
    for k in (None, *PROJECTION_WIDTHS):
        if make_layout(shapes, k).dimension * rows * bytes_per_value <= budget_bytes:
            return k
    return PROJECTION_WIDTHS[-1]
