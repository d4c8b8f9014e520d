"""A dataset as it was trained on: every row that reached the model, as tokens, and what did not reach it and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradian.errors import InputError
from gradian.rows.files import Dataset, read_rows, require_clean
from gradian.rows.profile import TrainerProfile
from gradian.rows.row import Conversation, Row, TokenizedRow
from gradian.rows.shapes import conversation_of
from gradian.rows.tokenizer import Tokenizer
from gradian.rows.tokens import tokenize_many


@dataclass(frozen=True)
class TrainingSet:
    """Rows that were learnt from, all sequences of the same length and order.

    Attributes:
        dataset: the file. rows, conversations, tokens: the kept rows.
        left_out: one sentence for each reason why rows were not learnt from, with their number and the first of them.
    """

    dataset: Dataset
    rows: tuple[Row, ...]
    conversations: tuple[Conversation, ...]
    tokens: tuple[TokenizedRow, ...]
    left_out: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def loss_tokens(self) -> list[int]:
        """Targets of each row."""
        return [row.loss_tokens for row in self.tokens]


def read_training_set(path: str | Path, tokenizer: Tokenizer, profile: TrainerProfile) -> TrainingSet:
    """Read, tokenise and cut every row as the trainer did.

    Raises:
        InputError: the file cannot be read, a row cannot be parsed, or no row has anything to learn from.
    """
    dataset = read_rows(path)
    require_clean(dataset)
    conversations = [conversation_of(row) for row in dataset.rows]
    tokens = tokenize_many(conversations, tokenizer, profile, wheres=[row.where for row in dataset.rows])
    reasons: dict[str, list[Row]] = {}
    kept = []
    for index, (row, tokenized) in enumerate(zip(dataset.rows, tokens, strict=True)):
        reason = tokenized.dropped or (None if _learns(tokenized) else "no token to learn")
        if reason is None:
            kept.append(index)
        else:
            reasons.setdefault(reason, []).append(row)
    if not kept:
        raise InputError(
            "no row has a token to learn from",
            where=str(path),
            why=f"{len(dataset.rows)} rows under the rules of {profile.trainer}: {_sentences(reasons)[0]}",
            fix=f"gradian diagnose --dataset {path}",
        )
    return TrainingSet(
        dataset=dataset,
        rows=tuple(dataset.rows[i] for i in kept),
        conversations=tuple(conversations[i] for i in kept),
        tokens=tuple(tokens[i] for i in kept),
        left_out=tuple(_sentences(reasons)),
    )


def _learns(row: TokenizedRow) -> bool:
    # The first token is predicted by nothing, so a mask on it alone teaches nothing.
    return bool(row.loss_mask[1:].any())


def _sentences(reasons: dict[str, list[Row]]) -> Sequence[str]:
    return [
        f"{len(rows)} {'row' if len(rows) == 1 else 'rows'} left out: {reason} (first: {rows[0].where})"
        for reason, rows in sorted(reasons.items())
    ]
