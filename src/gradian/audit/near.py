"""Rows that are nearly the same, and eval items that are nearly in the training set.

Works on normalised texts, in time linear in their number: candidates come from equal bands of MinHash
    signatures and
each is verified. What a template wrote around the texts (shingles in more than a fifth of them) does not
count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradian.audit.shingles import BINS, bands, jaccard, shingle_hashes, signatures, without

#: Shingles in more than this share of the texts are the frame.
FRAME_SHARE = 0.20
#: Texts shorter than this are only compared exactly: a few letters decide too much of their similarity.
MIN_CHARACTERS = 60
#: Texts hashed at a time: bounds memory; the result does not depend on it.
BLOCK = 512
BLOCK_CHARACTERS = 2_000_000
#: Earlier members of its bucket that a text is compared with, and pairs that are verified in all.
BUCKET_WINDOW = 32
MAX_PAIRS = 400_000

DUPLICATE_BAND = 8  # 14 bands of 8
CONTAMINATION_BAND = 4  # 28 bands of 4: finds 0.8 with probability 0.999996; the eval set is small


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts and their Jaccard similarity, in [0, 1]."""

    left: int
    right: int
    similarity: float


@dataclass(frozen=True, slots=True)
class Candidates:
    """Pairs to verify, ascending, and whether the cap cut their number."""

    pairs: list[tuple[int, int]]
    capped: bool


def blocks(texts: Iterable[tuple[int, str]]) -> Iterator[tuple[list[int], list[str]]]:
    """Numbered texts in blocks of at most `BLOCK` texts and about `BLOCK_CHARACTERS`."""
    numbers: list[int] = []
    block: list[str] = []
    characters = 0
    for number, text in texts:
        numbers.append(number)
        block.append(text)
        characters += len(text)
        if len(block) >= BLOCK or characters >= BLOCK_CHARACTERS:
            yield numbers, block
            numbers, block, characters = [], [], 0
    if block:
        yield numbers, block


class BandTable:
    """The bands of many texts.

    Args:
        width: bins per band.
        frame: shingles that do not count, sorted uint64.
    """

    def __init__(self, width: int, frame: NDArray[np.uint64]) -> None:
        self.width = width
        self.frame = frame
        self._numbers: list[NDArray[np.int64]] = []
        self._bands: list[NDArray[np.uint64]] = []

    def add(self, texts: Iterable[tuple[int, str]]) -> None:
        """Take in numbered texts; those that are too short without the frame are left out."""
        for numbers, block in blocks(texts):
            hashes, starts = without(*shingle_hashes(block), self.frame)
            long_enough = np.diff(starts) >= MIN_CHARACTERS - 4
            signature = signatures(hashes, starts)[long_enough]
            self._numbers.append(np.array(numbers, dtype=np.int64)[long_enough])
            self._bands.append(bands(signature, self.width))

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The numbers of the texts, int64 `[texts]`."""
        return np.concatenate(self._numbers) if self._numbers else np.empty(0, np.int64)

    @property
    def bands(self) -> NDArray[np.uint64]:
        """uint64 `[texts, 112 / width]`."""
        if not self._bands:
            return np.empty((0, BINS // self.width), np.uint64)
        return np.concatenate(self._bands)


def within(table: BandTable) -> Candidates:
    """Pairs of texts of one table that share a band."""
    numbers, values = table.numbers, table.bands
    found: set[tuple[int, int]] = set()
    capped = False
    for column in range(values.shape[1]):
        order = np.argsort(values[:, column], kind="stable")
        ordered = values[order, column]
        for distance in range(1, BUCKET_WINDOW + 2):
            same = np.flatnonzero(ordered[distance:] == ordered[:-distance])
            if len(same) == 0:
                break
            if distance > BUCKET_WINDOW:
                capped = True
                break
            left, right = numbers[order[same]], numbers[order[same + distance]]
            low, high = np.minimum(left, right), np.maximum(left, right)
            found.update(zip(low.tolist(), high.tolist(), strict=True))
            if len(found) > MAX_PAIRS:
                return Candidates(sorted(found)[:MAX_PAIRS], True)
    return Candidates(sorted(found), capped)


def between(small: BandTable, texts: Iterable[tuple[int, str]]) -> Candidates:
    """Pairs of a text of `small` and one of `texts` that share a band; `texts` is streamed."""
    found: set[tuple[int, int]] = set()
    numbers, values = small.numbers, small.bands
    if len(numbers) == 0:
        return Candidates([], False)
    orders = [np.argsort(values[:, column], kind="stable") for column in range(values.shape[1])]
    for block_numbers, block in blocks(texts):
        table = BandTable(small.width, small.frame)
        table.add(zip(block_numbers, block, strict=True))
        theirs, their_bands = table.numbers, table.bands
        for column, order in enumerate(orders):
            ordered = values[order, column]
            first = np.searchsorted(ordered, their_bands[:, column], side="left")
            last = np.searchsorted(ordered, their_bands[:, column], side="right")
            for index in np.flatnonzero(last > first).tolist():
                for place in order[first[index] : last[index]].tolist():
                    found.add((int(numbers[place]), int(theirs[index])))
        if len(found) > MAX_PAIRS:
            return Candidates(sorted(found)[:MAX_PAIRS], True)
    return Candidates(sorted(found), False)


def shingle_sets(texts: Mapping[int, str], frame: NDArray[np.uint64]) -> dict[int, NDArray[np.uint64]]:
    """Number -> sorted set of the text's shingles without the frame."""
    sets: dict[int, NDArray[np.uint64]] = {}
    for numbers, block in blocks(sorted(texts.items())):
        hashes, starts = without(*shingle_hashes(block), frame)
        for place, number in enumerate(numbers):
            sets[number] = np.unique(hashes[starts[place] : starts[place + 1]])
    return sets


def verified(
    pairs: Sequence[tuple[int, int]],
    left: Mapping[int, NDArray[np.uint64]],
    right: Mapping[int, NDArray[np.uint64]],
    threshold: float,
) -> list[Pair]:
    """The pairs whose true Jaccard similarity is at least the threshold."""
    kept = []
    for a, b in pairs:
        x, y = left[a], right[b]
        if min(len(x), len(y)) >= threshold * max(len(x), len(y)):  # else it cannot be reached
            similarity = jaccard(x, y)
            if similarity >= threshold:
                kept.append(Pair(a, b, similarity))
    return kept


def clusters(pairs: Iterable[Pair]) -> list[list[int]]:
    """The connected groups, each ascending, the largest first, ties by their first member."""
    parent: dict[int, int] = {}

    def root(number: int) -> int:
        parent.setdefault(number, number)
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    for pair in pairs:
        a, b = root(pair.left), root(pair.right)
        if a != b:
            parent[max(a, b)] = min(a, b)
    groups: dict[int, list[int]] = {}
    for number in sorted(parent):
        groups.setdefault(root(number), []).append(number)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0]))
