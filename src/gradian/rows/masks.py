"""Masks over tokens: pure functions over ids, offsets and bool arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tokenizers
from numpy.typing import NDArray

from gradian.rows.tokenizer import Tokenizer


def runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The `[start, end)` runs of True, ascending."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def mask_of_encoding(encoding: tokenizers.Encoding, spans: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """`mask_of_spans` without a Python object for every token: only the ends of the spans are looked up."""
    mask = np.zeros(len(encoding), dtype=np.bool_)
    for start, end in spans:
        if start == end:
            continue
        first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1)
        if first is None or last is None:  # a character that no token covers
            return mask_of_spans(encoding.offsets, spans)
        # One character may be several tokens, all with its offsets; the look-up gives the first of them.
        while last + 1 < len(mask) and (encoding.token_to_chars(last + 1) or (end, end))[0] < end:
            last += 1
        mask[first : last + 1] = True
    return mask


def mask_of_spans(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """True where a token overlaps a span: bool `[tokens]`, as `return_assistant_tokens_mask` has it.

    An empty span holds no character, so no token overlaps it.
    """
    spans = [span for span in spans if span[0] < span[1]]
    mask = np.zeros(len(offsets), dtype=np.bool_)
    current = 0
    for index, (start, end) in enumerate(offsets):
        while current < len(spans) and start >= spans[current][1]:
            current += 1
        if current == len(spans):
            break
        mask[index] = end > spans[current][0]
    return mask


def common_prefix_length(ids: Sequence[int], other: Sequence[int]) -> int:
    length = min(len(ids), len(other))
    if ids[:length] == other[:length]:
        return length
    return next((i for i in range(length) if ids[i] != other[i]), length)


def surplus_bos(ids: Sequence[int], bos_id: int | None) -> int:
    """How many leading BOS ids are followed by another."""
    if bos_id is None:
        return 0
    leading = next((i for i, token_id in enumerate(ids) if token_id != bos_id), len(ids))
    return max(leading - 1, 0)


def ends_with_stop(
    ids: Sequence[int], loss: NDArray[np.bool_], stop_ids: frozenset[int], tokenizer: Tokenizer
) -> bool:
    """The last target, white space aside, ends the answer."""
    for index in np.flatnonzero(loss)[::-1].tolist():
        if ids[index] in stop_ids:
            return True
        if tokenizer.decode([ids[index]]).strip():
            return False
    return False


def without_turn_ends(
    loss: NDArray[np.bool_], ids: Sequence[int], stop_ids: frozenset[int], tokenizer: Tokenizer
) -> NDArray[np.bool_]:
    """The mask without the stop token, and what follows it, at the end of every trained turn."""
    result: NDArray[np.bool_] = loss.copy()
    for start, end in runs(loss):
        last = end - 1
        while last >= start and ids[last] not in stop_ids and not tokenizer.decode([ids[last]]).strip():
            last -= 1
        if last >= start and ids[last] in stop_ids:
            result[last:end] = False
    return result
