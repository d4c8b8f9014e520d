"""From lost items to query vectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradian.errors import ModelError
from gradian.gradients.batch import plan_batches
from gradian.gradients.query import Contrast, contrast_sequences

if TYPE_CHECKING:
    from gradian.evaluation.result import EvaluationResult, ItemEvaluation
    from gradian.gradients.capture import GradientCapture
    from gradian.index.store import IndexStore


def choose_items(result: EvaluationResult, most: int, seed: int) -> list[ItemEvaluation]:
    """The lost items to explain, ascending: all of them, or `most` drawn without replacement."""
    lost = list(result.lost)
    if len(lost) <= most:
        return lost
    chosen = np.random.default_rng(seed).choice(len(lost), size=most, replace=False)
    return [lost[index] for index in sorted(chosen.tolist())]


def contrast_of(item: ItemEvaluation) -> Contrast:
    """The item's wanted answer against what the tuned model said; the plain query where it said nothing."""
    said = item.tuned.ids_with_stop if item.tuned is not None else None
    return Contrast(item.item, item.prompt_ids, item.wanted_ids, said or None)


def query_vectors(
    store: IndexStore,
    contrasts: Sequence[Contrast],
    open_capture: Callable[[], GradientCapture],
    tokens_per_batch: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[NDArray[np.float32], bool]:
    """One vector per contrast, float32 [m, dimension], and whether it was found in the index.

    The vectors are kept in the index, so that the same question costs nothing the next time.
    """
    name = f"queries/{question_id(contrasts)}"
    kept = store.array(name)
    if (
        kept is not None
        and kept.shape == (len(contrasts), store.layout.dimension)
        and np.isfinite(kept).all()
    ):
        return np.asarray(kept, dtype=np.float32), True
    sequences, terms = contrast_sequences(contrasts)
    vectors = np.zeros((len(contrasts), store.layout.dimension), dtype=np.float32)
    total, done = sum(len(s) for s in sequences), 0
    with open_capture() as capture:
        for batch in plan_batches([len(s) for s in sequences], tokens_per_batch):
            if progress:
                progress(done, total)
            part, _ = capture.gradients([sequences[index] for index in batch])
            if not np.isfinite(part).all():
                raise ModelError(
                    f"the gradient of eval item {contrasts[terms[batch[0]][0]].item} or of one beside it is not finite",
                    why="the adapter or the base holds NaN or infinite values, or half precision overflowed",
                    fix="--dtype float32, and gradian diagnose --run ... for the adapter's tensors",
                )
            for index, vector in zip(batch, part, strict=True):
                contrast, sign = terms[index]
                vectors[contrast] += np.float32(sign) * vector
            done += sum(len(sequences[index]) for index in batch)
    if progress:
        progress(done, total)
    store.keep_array(name, vectors)
    return vectors, False


def question_id(contrasts: Sequence[Contrast]) -> str:
    """Names a question by its tokens."""
    data: list[Any] = [[c.prompt, c.wanted, c.said] for c in contrasts]
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]
