"""The query: what the model should have said against what it said.

`L_q = loss(wanted) - loss(said)`, both summed over tokens and both after the same prompt. Where the two answers begin
alike, their shared tokens cancel exactly, which they would not with mean reduction. The gradient of `L_q` is the wanted
answer's minus the said one's. Without a generation to contrast with, `L_q = loss(wanted)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradian.gradients.batch import TokenSequence


@dataclass(frozen=True)
class Contrast:
    """One item's query, as tokens.

    Attributes:
        item: 0-based number of the eval item.
        prompt: prompt ids, the generation prompt included.
        wanted: ids of the wanted answer, its stop token included.
        said: ids of what the tuned model said, with the stop token when it stopped by itself; None for the plain query.
    """

    item: int
    prompt: tuple[int, ...]
    wanted: tuple[int, ...]
    said: tuple[int, ...] | None


def answer_sequence(prompt: Sequence[int], answer: Sequence[int]) -> TokenSequence:
    """A prompt with an answer, the answer's tokens being the targets."""
    ids = np.asarray([*prompt, *answer], dtype=np.int32)
    mask = np.zeros(len(ids), dtype=bool)
    mask[len(prompt) :] = True
    return TokenSequence(ids, mask)


def contrast_sequences(contrasts: Sequence[Contrast]) -> tuple[list[TokenSequence], list[tuple[int, float]]]:
    """The sequences to differentiate, and for each the contrast it belongs to with its sign (+1 wanted, -1 said)."""
    sequences = []
    terms: list[tuple[int, float]] = []
    for index, contrast in enumerate(contrasts):
        sequences.append(answer_sequence(contrast.prompt, contrast.wanted))
        terms.append((index, 1.0))
        if contrast.said:
            sequences.append(answer_sequence(contrast.prompt, contrast.said))
            terms.append((index, -1.0))
    return sequences, terms
