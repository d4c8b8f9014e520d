"""The eval file: prompts with the answers that are wanted. Knows nothing of models and metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradian.errors import InputError
from gradian.rows.files import read_rows, require_clean
from gradian.rows.row import Conversation, Row, Shape
from gradian.rows.shapes import conversation_of


@dataclass(frozen=True, slots=True)
class EvalItem:
    """One prompt and the answer that is wanted.

    Attributes:
        item: 0-based number in the eval file.
        row: the record.
        conversation: the record as a conversation; the turns before `answer_start` are the prompt.
        wanted: text of the wanted answer.
    """

    item: int
    row: Row
    conversation: Conversation
    wanted: str

    @property
    def where(self) -> str:
        return self.row.where

    @property
    def prompt(self) -> str:
        """The prompt's text, without the template's tokens."""
        return self.conversation.prompt_text


@dataclass(frozen=True, slots=True)
class EvalSet:
    """The items of one eval file.

    Attributes:
        path: as the user gave it. sha256: digest of the file's bytes.
        items: ascending by number, none left out.
        repeated_prompts: how many items have the prompt of an earlier one.
        notes: what a reader of the result should know about the file.
    """

    path: str
    sha256: str
    items: tuple[EvalItem, ...]
    repeated_prompts: int
    notes: tuple[str, ...] = ()


def read_items(path: str | Path) -> EvalSet:
    """Every item of an eval file (`rows.files` reads it: JSON lines, JSON, tables, saved datasets).

    Each item needs a prompt and an answer: a conversation that ends in an assistant turn, or a prompt with
    its completion. Nothing is skipped, since a skipped item would change what the score is a mean of.

    Raises:
        InputError: the file cannot be read, or an item has no prompt or no answer; names the first such item
            and how many more there are.
    """
    dataset = require_clean(read_rows(path, split="eval"))
    conversations = [conversation_of(row) for row in dataset.rows]
    pairs = list(zip(dataset.rows, conversations, strict=True))
    faults = [(row, why) for row, talk in pairs if (why := _fault(talk))]
    if faults:
        row, why = faults[0]
        raise InputError(
            f"the eval item {why}{_more(len(faults) - 1)}",
            where=row.where,
            why="an item is a prompt with the answer that is wanted",
            fix="mend or remove the item; a messages item ends in an assistant turn, the wanted answer",
        )
    items = tuple(EvalItem(number, row, talk, talk.answer_text) for number, (row, talk) in enumerate(pairs))
    return _eval_set(dataset.path, dataset.sha256, items)


def check_wanted(items: Sequence[EvalItem], refuses: Callable[[str], str | None], metric: str) -> None:
    """Refuse, before any model runs, items whose wanted answer the metric cannot score.

    Raises:
        InputError: names the first such item and how many more there are.
    """
    faults = [(item, why) for item in items if (why := refuses(item.wanted))]
    if faults:
        item, why = faults[0]
        raise InputError(
            f"{why}, so the metric {metric} cannot score it{_more(len(faults) - 1)}",
            where=item.where,
            fix="mend the item, or choose another metric",
        )


def _fault(talk: Conversation) -> str | None:
    """Why a conversation is no item, after `the eval item`; None when it is one."""
    if talk.shape in (Shape.TEXT, Shape.RAW):
        return "is plain text, in which prompt and answer cannot be told apart"
    answer = talk.turns[talk.answer_start :]
    if not answer:
        return "has no answer"
    if answer[-1].role != "assistant":
        return f"ends in a {answer[-1].role} turn"
    if not talk.answer_text.strip():
        return "has an empty answer"
    if not any(turn.text.strip() for turn in talk.turns[: talk.answer_start]):
        return "has no prompt"
    return None


def _more(count: int) -> str:
    return f" (and {count} more item{'s' if count > 1 else ''} cannot be used)" if count else ""


def _eval_set(path: str, sha256: str, items: tuple[EvalItem, ...]) -> EvalSet:
    first: dict[tuple[tuple[str, str], ...], EvalItem] = {}
    repeats: list[tuple[EvalItem, EvalItem]] = []
    for item in items:
        turns = item.conversation.turns[: item.conversation.answer_start]
        key = tuple((turn.role, turn.text) for turn in turns)
        earlier = first.setdefault(key, item)
        if earlier is not item:
            repeats.append((earlier, item))
    notes: tuple[str, ...] = ()
    if repeats:
        earlier, item = repeats[0]
        notes = (
            f"{len(repeats)} of {len(items)} items repeat the prompt of an earlier one (first: {item.where}"
            f" repeats {earlier.where}). They are not independent, so the interval is too narrow.",
        )
    return EvalSet(path, sha256, items, len(repeats), notes)
