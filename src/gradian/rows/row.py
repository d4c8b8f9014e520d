"""A training row or an eval item as it was read, as a conversation, and as tokens.

These are the types that every lane shares. They know nothing of files, templates or trainers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray


def location(file: str, line: int | None, row: int) -> str:
    """`train.jsonl:812` where the file has lines, `train.parquet[811]` where it has none."""
    return f"{file}:{line}" if line is not None else f"{file}[{row}]"


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a dataset.

    Attributes:
        row: 0-based position among the records of the file (blank lines are no records; lines that
            cannot be parsed are, so that the numbers of the others do not move when they are mended).
        file: the path as the user gave it (for a folder: the data file inside it).
        line: 1-based line on which the record starts; None where the format has no lines.
        fields: the record.
        group: the user's own `cluster` / `cluster_id`, as text; None when absent.
    """

    row: int
    file: str
    line: int | None
    fields: Mapping[str, Any]
    group: str | None = None

    @property
    def where(self) -> str:
        return location(self.file, self.line, self.row)


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A record that could not be read: `where` it is, and `why`, in one clause."""

    row: int
    file: str
    line: int | None
    why: str
    byte_offset: int | None = None

    @property
    def where(self) -> str:
        return location(self.file, self.line, self.row)


class Shape(str, Enum):
    """The forms in which people write training rows."""

    MESSAGES = "messages"
    PROMPT_COMPLETION = "prompt+completion"
    QUESTION_ANSWER = "question+answer"
    INPUT_OUTPUT = "input+output"
    INSTRUCTION = "instruction+input+output"
    TEXT = "text"
    RAW = "raw text"  # matches none of the others: the record's text as it stands, with a finding


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation.

    Attributes:
        role: after the alias map (`human` -> `user`, `gpt` -> `assistant`, ...), stripped and lower case.
            A role outside the known set is kept as it is.
        content: what the row holds: text, None, or a list of parts (`{"type": "text", "text": ...}`).
        extra: the message's other keys (`tool_calls`, `name`, `reasoning_content`, ...), null values kept.
        has_content: False where the message has no `content` key at all, which templates tell from null.
    """

    role: str
    content: Any
    extra: Mapping[str, Any] = field(default_factory=dict)
    has_content: bool = True

    @property
    def text(self) -> str:
        """The turn's text; the text parts of multi-part content, joined by line breaks."""
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        if isinstance(self.content, list):
            texts = [
                part if isinstance(part, str) else part.get("text") or ""
                for part in self.content
                if isinstance(part, str) or (isinstance(part, dict) and isinstance(part.get("text"), str))
            ]
            return "\n".join(texts)
        return str(self.content)

    def as_message(self) -> dict[str, Any]:
        """The message as a chat template wants it."""
        content = {"content": self.content} if self.has_content else {}
        return {"role": self.role, **content, **self.extra}


@dataclass(frozen=True, slots=True)
class Conversation:
    """A row in the one form that the rest of Gradian works on.

    Attributes:
        shape: the form in which the row was written.
        turns: the turns, a system turn first when there is one. Empty for `text` and raw rows.
        prompt_turns: how many leading turns are the prompt, where the row itself splits prompt from
            answer; None where it does not (`messages`, `text`, raw).
        templated: True when the chat template renders the row. False for `text` and raw rows and for
            a prompt and a completion that are plain strings, which trainers concatenate as they stand.
        plain_text: the whole text of a row without turns; None for the others.
        tools: tool definitions for the template, when the row has them.
        template_kwargs: further variables for the template (TRL's `chat_template_kwargs`).
    """

    shape: Shape
    turns: tuple[Turn, ...]
    prompt_turns: int | None = None
    templated: bool = True
    plain_text: str | None = None
    tools: tuple[Any, ...] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answer_start(self) -> int:
        """Index of the first turn of the answer: the split of the row, else the last assistant turn
        (the number of turns when there is none)."""
        if self.prompt_turns is not None:
            return self.prompt_turns
        for index in range(len(self.turns) - 1, -1, -1):
            if self.turns[index].role == "assistant":
                return index
        return len(self.turns)

    @property
    def prompt_text(self) -> str:
        """The text before the answer, turn by turn, without the template's tokens."""
        return "\n".join(turn.text for turn in self.turns[: self.answer_start])

    @property
    def answer_text(self) -> str:
        """The text of the answer; the whole text of a row without turns."""
        if self.plain_text is not None:
            return self.plain_text
        return "\n".join(turn.text for turn in self.turns[self.answer_start :])


@dataclass(frozen=True, slots=True)
class TokenizedRow:
    """A row as the trainer saw it.

    Attributes:
        ids: token ids after the cut, int32 `[tokens]`.
        loss_mask: bool `[tokens]`; True where the token is a target of the loss (label is not -100).
        full_tokens: number of tokens before the cut.
        full_loss_tokens: number of targets before the cut.
        ends_with_stop: the *uncut* row's last target (trailing white space aside) is an end-of-sequence
            or end-of-turn token.
        dropped: why the trainer would leave the whole row out (`"too long"`, `"no token to learn"`,
            `"role order"`), else None. A dropped row keeps its ids for the report.
        boundary_mismatch: the prompt's tokens are not a prefix of the whole row's.
    """

    ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    full_tokens: int
    full_loss_tokens: int
    ends_with_stop: bool
    dropped: str | None = None
    boundary_mismatch: bool = False

    @property
    def cut(self) -> bool:
        """True when the trainer's length limit removed tokens."""
        return len(self.ids) < self.full_tokens

    @property
    def loss_tokens(self) -> int:
        """Number of targets that remain."""
        return int(self.loss_mask.sum())

    @property
    def lost_loss_tokens(self) -> int:
        """Number of targets that the cut removed."""
        return self.full_loss_tokens - self.loss_tokens
