"""Long verbatim passages that two sets of texts share: eval prompts inside training rows.

A window is 50 characters of normalised text (the length of the substring test in the GPT-4 report, arXiv
2303.08774, appendix C). Windows are hashed at every position, so that a passage is found wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradian.audit.near import blocks

WINDOW = 50
_BASE = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


def window_hashes(codes: NDArray[np.uint64], window: int) -> NDArray[np.uint64]:
    """A polynomial hash of every run of `window` code points, uint64 `[len(codes) - window + 1]`.

    Doubling: the hash of 2k characters is made of two of k, so that 50 need six passes over the array.
    """
    if len(codes) < window:
        return np.empty(0, np.uint64)
    power, size = codes * np.uint64(_BASE) + np.uint64(1), 1
    factor = _BASE * _BASE & _MASK
    result: NDArray[np.uint64] | None = None
    done = 0
    remaining = window
    while remaining:
        if remaining & 1:
            piece = power
            if result is None:
                result = piece
            else:
                length = min(len(result), len(piece) - done)
                result = result[:length] * np.uint64(factor) + piece[done : done + length]
            done += size
        remaining >>= 1
        if remaining:
            power = power[: len(power) - size] * np.uint64(factor) + power[size:]
            power ^= power >> np.uint64(29)
            size *= 2
            factor = (factor * factor + 2) & _MASK
    assert result is not None, "a window has at least one character"
    return result[: len(codes) - window + 1]


def code_points(text: str) -> NDArray[np.uint64]:
    """The code points of a text, uint64 `[characters]`."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)


@dataclass(frozen=True, slots=True)
class Overlap:
    """How much of an item stands verbatim in a training row: `covered` characters of `characters`."""

    item: int
    row: int
    covered: int
    characters: int

    @property
    def share(self) -> float:
        return self.covered / self.characters


def shared_passages(
    items: Mapping[int, str], rows: Iterable[tuple[int, str]], *, common_rows: int, window: int = WINDOW
) -> list[Overlap]:
    """For each item, the row that holds the largest part of it in passages of at least `window` characters.

    Args:
        items: number -> normalised text.
        rows: normalised texts, streamed.
        common_rows: a passage in more rows than this is a frame and does not count.
    """
    hashes, item_of, place_of = [], [], []
    for item, text in sorted(items.items()):
        found = window_hashes(code_points(text), window)
        hashes.append(found)
        item_of.append(np.full(len(found), item, dtype=np.int64))
        place_of.append(np.arange(len(found), dtype=np.int64))
    if not hashes or not any(len(found) for found in hashes):
        return []
    all_hashes = np.concatenate(hashes)
    owner, place = np.concatenate(item_of), np.concatenate(place_of)
    unique, inverse = np.unique(all_hashes, return_inverse=True)
    matches = _matches(unique, rows, window)
    if len(matches) == 0:
        return []
    counts = np.bincount(matches[:, 0], minlength=len(unique))
    matches = matches[counts[matches[:, 0]] <= common_rows]
    order = np.argsort(inverse, kind="stable")
    starts = np.searchsorted(inverse[order], np.arange(len(unique) + 1))
    covered: dict[tuple[int, int], set[int]] = {}
    for index, row in matches.tolist():
        for at in order[starts[index] : starts[index + 1]].tolist():
            covered.setdefault((int(owner[at]), row), set()).add(int(place[at]))
    best: dict[int, Overlap] = {}
    for (item, row), places in sorted(covered.items()):
        overlap = Overlap(item, row, _characters(sorted(places), window), len(items[item]))
        if item not in best or overlap.covered > best[item].covered:
            best[item] = overlap
    return [best[item] for item in sorted(best)]


def _matches(unique: NDArray[np.uint64], rows: Iterable[tuple[int, str]], window: int) -> NDArray[np.int64]:
    """Pairs (index into `unique`, row) of every window that a row has, each once, int64 `[pairs, 2]`."""
    # A table of 20 bits settles nearly every window of every row without a search.
    table = np.zeros(1 << 20, dtype=bool)
    table[(unique >> np.uint64(44)).astype(np.int64)] = True
    found = []
    for numbers, texts in blocks(rows):
        points = [code_points(text) for text in texts]
        lengths = np.array([len(codes) for codes in points], dtype=np.int64)
        hashes = window_hashes(np.concatenate(points), window)
        start = np.flatnonzero(table[(hashes >> np.uint64(44)).astype(np.int64)])
        at = np.minimum(np.searchsorted(unique, hashes[start]), len(unique) - 1)
        start, at = start[unique[at] == hashes[start]], at[unique[at] == hashes[start]]
        ends = np.cumsum(lengths)
        text = np.searchsorted(ends, start, side="right")
        inside = start + window <= ends[text]  # windows that reach into the next text belong to none
        pairs = np.stack([at[inside], np.array(numbers, dtype=np.int64)[text[inside]]], axis=1)
        found.append(np.unique(pairs, axis=0))
    return np.concatenate(found) if found else np.empty((0, 2), np.int64)


def _characters(places: list[int], window: int) -> int:
    """Characters that windows at these ascending places cover."""
    covered, end = 0, 0
    for place in places:
        covered += place + window - max(place, end)
        end = place + window
    return covered
