"""Sets of character 5-shingles, their MinHash signatures, and pairs of texts that share most of them.

A signature has one value in each of 112 bins (one-permutation MinHash: Li, Owen and Zhang 2012, arXiv
1208.1259; an empty bin borrows from the next one, Shrivastava and Li 2014, arXiv 1406.4784). Bands of equal
values make candidates; every candidate is verified by the true Jaccard similarity of the two sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SHINGLE = 5
#: 14 bands of 8 values: texts with a Jaccard similarity of 0.8 become candidates with probability 0.92, those
#: with 0.6 with 0.21 (the setting of the FineWeb data).
BINS = 112

_BASE = np.uint64(0x100000001B3)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def shingle_hashes(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hashes of the 5-shingles of several texts.

    Returns:
        hashes: uint64 `[shingles]`, text after text, with repetitions. starts: int64 `[texts + 1]`, where
            each
        text begins; a text shorter than 5 characters has none.
    """
    encoded = [np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32) for text in texts]
    lengths = np.array([len(codes) for codes in encoded], dtype=np.int64)
    codes = np.concatenate(encoded).astype(np.uint64) if encoded else np.empty(0, np.uint64)
    counts = np.maximum(lengths - SHINGLE + 1, 0)
    starts = np.concatenate([[0], np.cumsum(counts)])
    if len(codes) < SHINGLE:
        return np.empty(0, np.uint64), starts
    windows = len(codes) - SHINGLE + 1
    hashes = np.zeros(windows, dtype=np.uint64)
    for offset in range(SHINGLE):
        hashes *= _BASE
        hashes += codes[offset : offset + windows]
    # Windows that reach over the end of a text belong to none.
    position = np.concatenate([[0], np.cumsum(lengths)])[:-1]
    keep = np.zeros(windows + 1, dtype=np.int64)
    used = counts > 0
    np.add.at(keep, position[used], 1)
    np.add.at(keep, position[used] + counts[used], -1)
    return _mixed(hashes[np.cumsum(keep[:-1]) > 0]), starts


def _mixed(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: neighbouring polynomials become unrelated numbers."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * _MIX[0]
    hashes = (hashes ^ (hashes >> np.uint64(27))) * _MIX[1]
    mixed: NDArray[np.uint64] = hashes ^ (hashes >> np.uint64(31))
    return mixed


def without(
    hashes: NDArray[np.uint64], starts: NDArray[np.int64], frame: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hashes that are not in `frame` (sorted), and where each text begins now."""
    if len(frame) == 0 or len(hashes) == 0:
        return hashes, starts
    # A table of the low 16 bits settles nearly all of them without a search.
    table = np.zeros(1 << 16, dtype=bool)
    table[(frame & np.uint64(0xFFFF)).astype(np.int64)] = True
    keep = ~table[(hashes & np.uint64(0xFFFF)).astype(np.int64)]
    doubtful = np.flatnonzero(~keep)
    place = np.minimum(np.searchsorted(frame, hashes[doubtful]), len(frame) - 1)
    keep[doubtful] = frame[place] != hashes[doubtful]
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    return hashes[keep], kept_before[starts]


def signatures(hashes: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One-permutation MinHash, uint64 `[texts, 112]`; all zero for a text without shingles."""
    texts = len(starts) - 1
    counts = np.diff(starts)
    out = np.full((texts, BINS), np.iinfo(np.uint64).max, dtype=np.uint64)
    if len(hashes):
        text = np.repeat(np.arange(texts, dtype=np.int64), counts)
        bins = (hashes % np.uint64(BINS)).astype(np.int64)
        np.minimum.at(out.reshape(-1), text * BINS + bins, hashes)
    empty = out == np.iinfo(np.uint64).max
    out[counts == 0] = 0
    empty[counts == 0] = False
    if empty.any():
        _densify(out, empty)
    return out


def _densify(values: NDArray[np.uint64], empty: NDArray[np.bool_]) -> None:
    """Fill empty bins, in place, from the next filled one to the right, marked by its distance: two texts
    agree in a borrowed bin only when they borrow from the same place."""
    column = np.arange(BINS)
    filled_at = np.where(empty, 4 * BINS, column)
    twice = np.concatenate([filled_at, filled_at + BINS], axis=1)
    following = np.minimum.accumulate(twice[:, ::-1], axis=1)[:, ::-1][:, :BINS]
    rows, columns = np.nonzero(empty)
    source = following[rows, columns]
    distance = (source - columns).astype(np.uint64)
    values[rows, columns] = values[rows, source % BINS] + distance * _MIX[0]


def bands(signature: NDArray[np.uint64], width: int) -> NDArray[np.uint64]:
    """One number for each run of `width` bins, uint64 `[texts, 112 / width]`."""
    texts = len(signature)
    grouped = signature.reshape(texts, BINS // width, width)
    combined = np.zeros((texts, BINS // width), dtype=np.uint64)
    for position in range(width):
        combined = combined * _MIX[1] + grouped[:, :, position]
    combined += np.arange(BINS // width, dtype=np.uint64)
    return _mixed(combined)


def frame_of(texts: Sequence[str], share: float, at_least: int = 5) -> NDArray[np.uint64]:
    """The shingles that more than `share` of these texts have, sorted: the frame that a template wrote around
    them.

    Fewer than `at_least` texts have no frame.
    """
    if len(texts) < at_least:
        return np.empty(0, np.uint64)
    # One text at a time: together, long texts would need hundreds of megabytes.
    sets = [np.unique(shingle_hashes([text])[0]) for text in texts]
    values, counts = np.unique(np.concatenate(sets), return_counts=True)
    framed: NDArray[np.uint64] = values[counts > share * len(texts)]
    return framed


def jaccard(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> float:
    """Jaccard similarity of two sorted sets, in [0, 1]; 0 when both are empty."""
    shared = len(np.intersect1d(left, right, assume_unique=True))
    union = len(left) + len(right) - shared
    return shared / union if union else 0.0
