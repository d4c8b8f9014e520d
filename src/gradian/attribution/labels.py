"""What sets a group apart, in three words, and its most typical rows.

Class-based TF-IDF (Grootendorst, arXiv 2203.05794, eq. 2): the rows of a group are one document; a term weighs
by its share in that document times `log(1 + A / f)`, A the mean number of words per group and f the term's
count over all groups. Terms that are no more frequent inside the group than outside do not label it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

_WORD = re.compile(r"[^\W\d_][\w'-]+")
LABEL_TERMS = 3
REPRESENTATIVES = 3
#: Too common in instructions and answers of any kind to tell groups apart.
_FRAME_WORDS = frozenset(
    [
        "user",
        "assistant",
        "system",
        "question",
        "answer",
        "text",
        "following",
        "please",
        "give",
        "write",
        "based",
        "given",
        "sentence",
        "true",
        "false",
        "none",
        "null",
    ]
)


def label_groups(texts: Sequence[str], groups: Sequence[Sequence[int]]) -> list[tuple[str, tuple[int, ...]]]:
    """Label and representative rows of each group, in the order of the groups."""
    if not groups:
        return []
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    stop = ENGLISH_STOP_WORDS | _FRAME_WORDS
    bags = [Counter(word for word in _WORD.findall(text.casefold()) if word not in stop) for text in texts]
    # The number of rows that hold a word, not of its occurrences: one long row must not name a group.
    held = [Counter(word for row in rows for word in bags[row]) for rows in groups]
    everywhere = sum(held, Counter())
    mean_words = sum(everywhere.values()) / len(groups)
    labels = []
    for rows, own in zip(groups, held, strict=True):
        weights = _weights(own, everywhere, len(rows), len(texts), mean_words)
        best = sorted(weights, key=lambda word: (-weights[word], word))[:LABEL_TERMS]
        labels.append((", ".join(best) or "no common words", _representatives(rows, bags, weights)))
    return labels


def _weights(
    own: Counter[str], everywhere: Counter[str], size: int, total: int, mean_words: float
) -> dict[str, float]:
    words = max(1, sum(own.values()))
    outside = max(1, total - size)
    weights = {}
    for word, count in own.items():
        inside_share = count / size
        outside_share = (everywhere[word] - count) / outside
        if (count >= 2 or size == 1) and (inside_share > outside_share or size == total):
            weights[word] = count / words * float(np.log1p(mean_words / everywhere[word]))
    return weights


def _representatives(
    rows: Sequence[int], bags: Sequence[Counter[str]], weights: dict[str, float]
) -> tuple[int, ...]:
    def typical(row: int) -> float:
        norm = float(np.sqrt(sum(count * count for count in bags[row].values()))) or 1.0
        return sum(weights.get(word, 0.0) for word in bags[row]) / norm

    return tuple(sorted(rows, key=lambda row: (-typical(row), row))[:REPRESENTATIVES])
