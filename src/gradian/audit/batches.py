"""Records in batches: as conversations, and tokenised as the trainer did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradian.errors import GradianError, InputError
from gradian.rows.profile import TrainerProfile
from gradian.rows.row import Conversation, Row, RowProblem, TokenizedRow
from gradian.rows.shapes import conversation_of
from gradian.rows.tokens import tokenize, tokenize_many

if TYPE_CHECKING:
    from gradian.rows.tokenizer import Tokenizer


#: Long rows make a small batch: the ids of two batches are in memory as Python integers.
BATCH_CHARACTERS = 2_000_000


@dataclass(slots=True)
class Batch:
    """Records in order; `conversations` and `tokens` follow the `Row`s among them that are conversations."""

    records: list[Row | RowProblem]
    conversations: dict[int, Conversation] = field(default_factory=dict)
    unusable: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, TokenizedRow] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


def in_batches(records: Iterable[Row | RowProblem], size: int) -> Iterator[Batch]:
    """Records in batches of at most `size` rows and about `BATCH_CHARACTERS`; rows that make no conversation
    keep the reason."""
    batch, characters = Batch([]), 0
    for record in records:
        position = len(batch.records)
        batch.records.append(record)
        if isinstance(record, Row):
            try:
                conversation = conversation_of(record)
            except InputError as error:
                batch.unusable[position] = error.what
            else:
                batch.conversations[position] = conversation
                characters += sum(len(turn.text) for turn in conversation.turns)
                characters += len(conversation.plain_text or "")
        if len(batch.records) >= size or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = Batch([]), 0
    if batch.records:
        yield batch


def tokenized_ahead(
    batches: Iterator[Batch], tokenizer: Tokenizer | None, profile: TrainerProfile
) -> Iterator[Batch]:
    """Tokenise one batch ahead in a second thread: the tokenizer works outside the interpreter lock while the
    scans of the batch before run in it."""
    if tokenizer is None:
        yield from batches
        return
    with ThreadPoolExecutor(max_workers=1) as worker:
        waiting = None
        for batch in batches:
            started = worker.submit(_tokenize_batch, batch, tokenizer, profile)
            if waiting is not None:
                yield waiting.result()
            waiting = started
        if waiting is not None:
            yield waiting.result()


def _tokenize_batch(batch: Batch, tokenizer: Tokenizer, profile: TrainerProfile) -> Batch:
    positions = list(batch.conversations)
    conversations = list(batch.conversations.values())
    try:
        batch.tokens = dict(zip(positions, tokenize_many(conversations, tokenizer, profile), strict=True))
    except GradianError:
        # One row that the template refuses must not hide the others: find it by taking each on its own.
        for position, conversation in zip(positions, conversations, strict=True):
            try:
                batch.tokens[position] = tokenize(conversation, tokenizer, profile)
            except GradianError as error:
                batch.failures[position] = error.why or error.what
    return batch


def with_tokens(batches: Iterator[Batch], tokenized: Sequence[TokenizedRow]) -> Iterator[Batch]:
    """The batches with tokens that another lane has made, one for each record."""
    start = 0
    for batch in batches:
        batch.tokens = {position: tokenized[start + position] for position in batch.conversations}
        start += len(batch.records)
        yield batch
