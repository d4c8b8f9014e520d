"""The length limit: what it is called in this trainer, and the value that would cover the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradian.audit.finding import Fix
from gradian.audit.wording import plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext

#: The smallest limit that is ever proposed.
SMALLEST = 64

_KEYS = {
    "axolotl": "sequence_len",
    "llama_factory": "cutoff_len",
    "torchtune": "tokenizer.max_seq_len",
    "unsloth": "max_seq_length",
}


def power_of_two(tokens: int) -> int:
    """The smallest power of two that is at least `tokens`, and at least 64."""
    return max(SMALLEST, 1 << max(0, tokens - 1).bit_length())


@dataclass(frozen=True, slots=True)
class LengthKey:
    """The name of the limit in the user's own configuration, and the file that states it."""

    key: str
    file: str | None


def length_key(context: AuditContext) -> LengthKey:
    """What the length limit is called: as the run's files call it, else as the trainer does."""
    if context.run is not None:
        for name in ("max_length", "max_seq_length"):
            setting = context.run.settings.setting(name)
            if setting is not None and setting.value == context.profile.max_length:
                return LengthKey(setting.key, setting.file)
    return LengthKey(_KEYS.get(context.profile.trainer, "max_length"), None)


def model_limit(context: AuditContext) -> int | None:
    """The longest row that tokenizer and model allow, in tokens; None when neither states a limit."""
    tokenizer = context.tokenizer
    limits = [] if tokenizer is None else [tokenizer.model_max_length, tokenizer.max_position_embeddings]
    config = context.base_config or {}
    limits.append(config.get("max_position_embeddings"))
    known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    return min(known) if known else None


def raise_limit(context: AuditContext, lengths: NDArray[np.int32], rows: Sequence[int]) -> Fix:
    """The change of the length limit that keeps these rows whole.

    The value is the smallest power of two that covers the longest row. When the model's own limit is below
    it, the value covers 99 % of all rows as far as the model allows (every row that fits the model, where the
    old value does that already), and the rows beyond it are named for splitting.

    Args:
        lengths: tokens of every row of the data set before the cut, int32 `[rows]`; negative where unknown.
        rows: the rows that are cut.
    """
    name = length_key(context)
    known = lengths[lengths >= 0]
    longest = int(known.max())
    limit = model_limit(context)
    value = power_of_two(longest)
    text = ""
    safe = True
    if limit is not None and value > limit:
        value = limit
        if longest > limit:
            covering = power_of_two(int(np.percentile(known, 99, method="higher")))
            if context.profile.max_length is not None and covering <= context.profile.max_length:
                covering = power_of_two(int(known[known <= limit].max(initial=0)))
            value = min(covering, limit)
            longer = [row for row in rows if lengths[row] > value]
            covered = int((known <= value).sum())
            text = (
                f" covers {covered:,} of {plural(len(known), 'row')}; the model's limit is {limit:,} tokens "
                f"and the longest row has {longest:,}: split {some(longer)}"
            )
            safe = False
    old = context.profile.max_length
    text = f"{name.key} {old} -> {value}{text}"
    return Fix.change(name.key, old, value, text=text, file=name.file, safe=safe)
