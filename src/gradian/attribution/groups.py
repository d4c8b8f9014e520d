"""Which rows are judged together: the user's own groups, else clusters found in the text.

Text -> TF-IDF -> truncated SVD -> unit length -> HDBSCAN. On unit vectors the Euclidean distance orders like
the cosine, so HDBSCAN can use its tree instead of all pairs. Rows are put into the order of their text before
anything is fitted, so the partition does not depend on the order of the file. Rows in no cluster stay visible
as one group of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradian.attribution.labels import label_groups
from gradian.rows.row import Conversation

UNCLUSTERED = "unclustered"
#: Characters of a prompt and of an answer that are read for clustering: the frame of a task shows in its beginning.
TEXT_LIMIT = 2000
#: Below this many rows clusters are guesses.
FEWEST_ROWS = 30
#: HDBSCAN on more rows than this takes minutes to hours; k-means takes its place.
MOST_ROWS_FOR_DENSITY = 20_000


@dataclass(frozen=True)
class RowGroup:
    """Rows that are judged together; `rows` are positions 0..n-1, ascending."""

    id: str
    label: str
    rows: tuple[int, ...]
    representatives: tuple[int, ...]


@dataclass(frozen=True)
class Grouping:
    """A partition of all rows.

    Attributes:
        groups: largest first, ties by the smallest row; `unclustered`, when there is one, last.
        source: how the groups came about, one clause for the report.
    """

    groups: tuple[RowGroup, ...]
    source: str

    def group_of(self, count: int) -> list[str]:
        """The group id of every row."""
        names = [UNCLUSTERED] * count
        for group in self.groups:
            for row in group.rows:
                names[row] = group.id
        return names


def text_of(conversation: Conversation) -> str:
    """What a row is clustered by: the beginnings of its prompt and of its answer."""
    return f"{conversation.prompt_text[:TEXT_LIMIT]}\n{conversation.answer_text[:TEXT_LIMIT]}"


def group_rows(texts: Sequence[str], own: Sequence[str | None], seed: int = 0) -> Grouping:
    """Partition the rows.

    Args:
        texts: prompt and answer of each row, joined.
        own: the user's own group of each row; used for all rows as soon as one row has one.
        seed: of the SVD and of k-means.
    """
    if any(own):
        names = [name or UNCLUSTERED for name in own]
        missing = sum(name is None for name in own)
        source = "the rows' own cluster field" + (f" ({missing} rows without one)" if missing else "")
        return _named(names, texts, source)
    labels, source = cluster_texts(texts, seed)
    return _numbered(labels, texts, source)


def cluster_texts(texts: Sequence[str], seed: int = 0) -> tuple[NDArray[np.int64], str]:
    """Cluster number of each text, -1 for none, and how it was found."""
    count = len(texts)
    if count < FEWEST_ROWS:
        return np.full(
            count, -1
        ), f"no clusters: {count} rows are too few to find any (at least {FEWEST_ROWS})"
    order = sorted(range(count), key=lambda row: (texts[row], row))
    features = _features([texts[row] for row in order], seed)
    if features is None:
        return np.full(count, -1), "no clusters: the rows share no words"
    smallest = max(5, count // 100)
    labels, source = None, ""
    if count <= MOST_ROWS_FOR_DENSITY:
        labels = _density(features, smallest)
        source = "clusters of the text (TF-IDF, SVD, HDBSCAN)"
        if labels.max() < 1 or (labels < 0).mean() > 0.5:
            labels = None  # one cluster, or mostly noise: density says nothing here
    if labels is None:
        labels = _k_means(features, seed)
        source = "clusters of the text (TF-IDF, SVD, k-means; density found none worth the name)"
        if count > MOST_ROWS_FOR_DENSITY:
            source = "clusters of the text (TF-IDF, SVD, k-means)"
    out = np.full(count, -1, dtype=np.int64)
    out[order] = labels
    return out, source


def _features(texts: Sequence[str], seed: int) -> NDArray[np.float64] | None:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2, max_df=0.5)
    try:
        matrix = vectorizer.fit_transform(texts)
    except ValueError:  # every word is in one row only, or in more than half of them
        return None
    components = min(max(5, min(50, len(texts) // 10)), min(matrix.shape) - 1)
    if components < 2:
        return None
    reduced = TruncatedSVD(components, random_state=seed).fit_transform(matrix)
    # Rounded, so that the last bits of a differently threaded product cannot break ties differently.
    return np.asarray(np.round(normalize(reduced), 9))


def _density(features: NDArray[np.float64], smallest: int) -> NDArray[np.int64]:
    from sklearn.cluster import HDBSCAN

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return np.asarray(HDBSCAN(min_cluster_size=smallest, copy=True).fit_predict(features), dtype=np.int64)


def _k_means(features: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    best: tuple[float, Any] = (-2.0, None)
    for clusters in range(2, min(20, len(features) // 5) + 1):
        labels = KMeans(clusters, n_init=4, random_state=seed).fit_predict(features)
        if len(set(labels)) < 2:
            continue
        score = silhouette_score(features, labels, sample_size=min(len(features), 5000), random_state=seed)
        if score > best[0] + 1e-9:
            best = (float(score), labels)
    if best[1] is None:
        return np.full(len(features), -1, dtype=np.int64)
    return np.asarray(best[1], dtype=np.int64)


def _named(names: Sequence[str], texts: Sequence[str], source: str) -> Grouping:
    members: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        members.setdefault(name, []).append(row)
    ordered = sorted(members.items(), key=lambda item: (item[0] == UNCLUSTERED, -len(item[1]), item[1][0]))
    return _labelled(ordered, texts, source)


def _numbered(labels: NDArray[np.int64], texts: Sequence[str], source: str) -> Grouping:
    clusters = [
        np.flatnonzero(labels == number).tolist() for number in sorted(set(labels.tolist())) if number >= 0
    ]
    # Numbered by size, then by text, so that the numbers too do not depend on the order of the file.
    clusters.sort(key=lambda rows: (-len(rows), min(texts[row] for row in rows)))
    ordered = [(str(position), rows) for position, rows in enumerate(clusters, start=1)]
    if outside := np.flatnonzero(labels < 0).tolist():
        ordered.append((UNCLUSTERED, outside))
    return _labelled(ordered, texts, source)


def _labelled(ordered: Sequence[tuple[str, list[int]]], texts: Sequence[str], source: str) -> Grouping:
    terms = label_groups(texts, [rows for _, rows in ordered])
    return Grouping(
        tuple(
            RowGroup(name, label, tuple(rows), representatives)
            for (name, rows), (label, representatives) in zip(ordered, terms, strict=True)
        ),
        source,
    )
