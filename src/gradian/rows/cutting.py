"""What a trainer does to a row that is longer than its limit: pure functions over ids and masks.

Sources: TRL `SFTTrainer._prepare_dataset` (keep_start, keep_end); torchtune `data/_utils.py:truncate`;
LLaMA-Factory `processor_utils.py:infer_seqlen` with `supervised.py:_encode_data_example`; axolotl drops.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradian.rows.masks import runs
from gradian.rows.profile import Overflow

Ids = NDArray[np.int32]
Mask = NDArray[np.bool_]


def cut(
    ids: Ids, loss_mask: Mask, answer_mask: Mask, limit: int | None, overflow: Overflow, eos_id: int | None
) -> tuple[Ids, Mask]:
    """Ids and loss mask after the length limit.

    Args:
        ids, loss_mask: `[tokens]`.
        answer_mask: `[tokens]`, True on the assistant's tokens even where the loss covers more: the
            proportional rule goes by turns.
        limit: length limit in tokens, None for none.
        overflow: the trainer's rule; `keep`, `split` and `drop` leave the row as it is.
        eos_id: for `truncate_end_keep_eos`.
    """
    if limit is None or len(ids) <= limit or overflow in ("keep", "split", "drop"):
        return ids, loss_mask
    if overflow == "truncate_start":
        start = len(ids) - limit
        return ids[start:], loss_mask[start:]
    if overflow == "truncate_proportional" and answer_mask.any():
        kept = _proportional(answer_mask, limit)
        return ids[kept], loss_mask[kept]
    ids, loss_mask = ids[:limit], loss_mask[:limit]
    if overflow == "truncate_end_keep_eos" and eos_id is not None and limit > 0:
        # The label follows the token that is replaced: torchtune repeats the last message's mask.
        ids = ids.copy()
        ids[-1] = eos_id
    return ids, loss_mask


def _proportional(answer_mask: Mask, limit: int) -> NDArray[np.intp]:
    """Positions that remain: turn by turn a (prompt, answer) pair is cut, until the limit is used up."""
    kept: list[NDArray[np.intp]] = []
    used = 0
    for prompt_start, answer_start, answer_end in _pairs(answer_mask):
        if used >= limit:
            break
        prompt_length, answer_length = infer_lengths(
            answer_start - prompt_start, answer_end - answer_start, limit - used
        )
        kept.append(np.arange(prompt_start, prompt_start + prompt_length))
        kept.append(np.arange(answer_start, answer_start + answer_length))
        used += prompt_length + answer_length
    return np.concatenate(kept) if kept else np.zeros(0, dtype=np.intp)


def _pairs(answer_mask: Mask) -> list[tuple[int, int, int]]:
    """`(start of prompt, start of answer, end of answer)` per turn; a tail without answer is a pair too."""
    pairs: list[tuple[int, int, int]] = []
    previous = 0
    for start, end in runs(answer_mask):
        pairs.append((previous, start, end))
        previous = end
    if previous < len(answer_mask):
        pairs.append((previous, len(answer_mask), len(answer_mask)))
    return pairs


def infer_lengths(prompt: int, answer: int, limit: int) -> tuple[int, int]:
    """Tokens that remain of a prompt and of its answer within `limit` (LLaMA-Factory `infer_seqlen`)."""
    if answer * 2 < limit:  # a short answer is kept whole, the prompt is cut
        most = limit
    elif prompt * 2 < limit:  # a short prompt is kept whole, the answer is cut
        most = limit - prompt
    else:
        most = int(limit * (answer / (prompt + answer)))
    kept_answer = min(most, answer)
    return min(max(limit - kept_answer, 0), prompt), kept_answer
