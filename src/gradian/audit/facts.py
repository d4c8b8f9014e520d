"""What the audit knows about a data set after one streaming pass: columns of numbers, and little text.

Every column has one entry per record, so that the position is the row number; records that could not be read
keep neutral values and `readable` is False there. Texts are kept only up to a budget; beyond it they are read
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradian.rows.row import Conversation, Row, RowProblem, Shape, TokenizedRow, location

SHAPES = tuple(Shape)
DROPPED = ("", "too long", "no token to learn", "role order", "other")

#: Evidence texts kept per check; the counts are always complete.
SAMPLES = 20


class Hit(NamedTuple):
    """What a scan found in a row: which kind of fault, and a sample of it."""

    kind: str
    detail: str = ""


@dataclass(slots=True)
class RowView:
    """One row as the scans see it; `start` is the conversation's `answer_start`, prompt and answer its
    texts."""

    row: Row
    conversation: Conversation
    start: int
    prompt: str
    answer: str
    tokens: TokenizedRow | None = None


@dataclass(slots=True)
class Hits:
    """The rows in which a scan found something, by kind, ascending; the first hits with a detail as
    samples."""

    kinds: dict[str, list[int]] = field(default_factory=dict)
    samples: list[tuple[int, Hit]] = field(default_factory=list)

    def add(self, row: int, hit: Hit) -> None:
        self.kinds.setdefault(hit.kind, []).append(row)
        if hit.detail and len(self.samples) < SAMPLES:
            self.samples.append((row, hit))

    @property
    def rows(self) -> list[int]:
        """All rows with a hit of any kind, ascending, each once."""
        return sorted({row for rows in self.kinds.values() for row in rows})

    def counts(self) -> dict[str, int]:
        """Kind -> number of rows, the most frequent first, ties by name."""
        return {
            kind: len(rows) for kind, rows in sorted(self.kinds.items(), key=lambda k: (-len(k[1]), k[0]))
        }


@dataclass(slots=True)
class TokenFacts:
    """Token counts per row, as the trainer saw the rows; -1 where a row could not be tokenised.

    Attributes:
        full: tokens before the cut, int32 `[rows]`. kept: after it.
        full_loss: targets of the loss before the cut. kept_loss: after it.
        stop: the uncut row's last target is a stop token, bool `[rows]`.
        dropped: index into `DROPPED`, int8 `[rows]`.
        ended: what is left of the row ends with a stop token, bool `[rows]`.
        mismatch: the prompt's ids are no prefix of the row's, bool `[rows]`.
        leading_bos: number of BOS ids at the start (at most 2), int8 `[rows]`.
        unknown: number of unknown-token ids, int32 `[rows]`.
        pad_targets: number of targets whose id is the pad token's (EOS where there is none), int32 `[rows]`.
    """

    full: NDArray[np.int32]
    kept: NDArray[np.int32]
    full_loss: NDArray[np.int32]
    kept_loss: NDArray[np.int32]
    stop: NDArray[np.bool_]
    dropped: NDArray[np.int8]
    ended: NDArray[np.bool_]
    mismatch: NDArray[np.bool_]
    leading_bos: NDArray[np.int8]
    unknown: NDArray[np.int32]
    pad_targets: NDArray[np.int32]

    @property
    def known(self) -> NDArray[np.bool_]:
        """The rows that could be tokenised, bool `[rows]`."""
        return self.full >= 0


@dataclass(slots=True)
class Failure:
    """Rows whose conversation could not be built, rendered or tokenised, by message."""

    message: str
    rows: list[int]


@dataclass(slots=True)
class DatasetFacts:
    """A data set in columns.

    Attributes:
        path: as the user gave it.
        rows: number of records, those that could not be read included.
        problems: the records that could not be read.
        readable: bool `[rows]`; False for `problems` and for `unusable` rows.
        line: 1-based line, 0 where the format has none. file: index into `files`.
        shape: index into `SHAPES`. turns: number of turns. system: the row has a system turn.
        prompt_hash, answer_hash, pair_hash: 64-bit BLAKE2b of the normalised text; the prompt includes the
            system turn and the history.
        prompt_chars, answer_chars: characters. assistant_chars: of all assistant turns, the last one
            included.
        templated: the chat template renders the row. group: index into `groups`, -1 without one.
        opening_hash: of the first user turn of a conversation with several, 0 for others. id_hash: of the
            row's own conversation id, 0 without one.
        form: the answer's form, index into `gradian.audit.forms.FORMS`.
        unusable: rows whose fields make no conversation, by message.
        render_failures: rows that the chat template or the tokenizer refused, by message.
        hits: check id -> what its scan found.
        systems: how often each system text occurs. answers: the same for the shortest answers, normalised, to
            find sets of labels.
        tokens: token counts; None without a tokenizer.
        texts: yields `(row, prompt, answer)` of every readable row again, in order; the prompt without the
            system turn. conversations: yields
            `(row, conversation)` of every readable row, by reading the source again.
        sample: rows for the checks that try something out on the template: the first ones, and others spread
            over the whole set.
        sha256, bytes: of the file, or of the files in a folder in the order of their names.
    """

    path: str
    rows: int
    problems: tuple[RowProblem, ...]
    readable: NDArray[np.bool_]
    line: NDArray[np.int64]
    file: NDArray[np.int32]
    files: tuple[str, ...]
    shape: NDArray[np.int8]
    turns: NDArray[np.int32]
    system: NDArray[np.bool_]
    prompt_hash: NDArray[np.uint64]
    answer_hash: NDArray[np.uint64]
    pair_hash: NDArray[np.uint64]
    prompt_chars: NDArray[np.int32]
    answer_chars: NDArray[np.int32]
    assistant_chars: NDArray[np.int32]
    templated: NDArray[np.bool_]
    group: NDArray[np.int32]
    groups: tuple[str, ...]
    opening_hash: NDArray[np.uint64]
    id_hash: NDArray[np.uint64]
    form: NDArray[np.int8]
    unusable: list[Failure]
    render_failures: list[Failure]
    hits: dict[str, Hits]
    systems: TextTable
    answers: TextTable
    tokens: TokenFacts | None
    texts: Callable[[], Iterator[tuple[int, str, str]]]
    conversations: Callable[[], Iterator[tuple[int, Conversation]]]
    sample: tuple[RowView, ...]
    sha256: str | None = None
    bytes: int = 0

    @property
    def usable(self) -> int:
        """Number of rows that are conversations."""
        return int(self.readable.sum())

    def where(self, row: int) -> str:
        """`file:line` of a row."""
        line = int(self.line[row])
        return location(self.files[self.file[row]], line or None, row)

    def texts_of(self, rows: set[int]) -> dict[int, tuple[str, str]]:
        """Prompt and answer of these rows."""
        if not rows:
            return {}
        return {row: (prompt, answer) for row, prompt, answer in self.texts() if row in rows}

    def conversations_of(self, rows: set[int]) -> dict[int, Conversation]:
        """These rows as conversations, in order. Reads no further than the last of them."""
        found: dict[int, Conversation] = {}
        for row, conversation in self.conversations() if rows else ():
            if row in rows:
                found[row] = conversation
                if len(found) == len(rows):
                    break
        return found


@dataclass(slots=True)
class TextTable:
    """How often each of a bounded number of distinct texts occurs, in order of first appearance.

    Attributes:
        counts: text -> rows with it. first: text -> first row with it.
        overflow: rows whose text came when the table was full.
    """

    limit: int
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    overflow: int = 0

    def add(self, text: str, row: int) -> None:
        if text in self.counts:
            self.counts[text] += 1
        elif len(self.counts) < self.limit:
            self.counts[text] = 1
            self.first[text] = row
        else:
            self.overflow += 1

    @property
    def total(self) -> int:
        return sum(self.counts.values()) + self.overflow
