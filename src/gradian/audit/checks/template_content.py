"""Does everything that a row says reach the rendered text, and nothing that it does not say?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.checks.template import chat_template
from gradian.audit.facts import Hit, Hits, RowView
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import excerpt, listed, plural, some
from gradian.rows.row import Conversation, Turn
from gradian.rows.template import TemplateRenderError
from gradian.rows.tokens import render

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext

#: Rows of one pattern that are rendered; a template treats rows of one pattern alike.
TRIED = 3
REASONING = ("reasoning_content", "reasoning", "thinking")
_THINK = ("<think>", "</think>", "<reasoning>", "<thinking>")


def pattern_of(view: RowView) -> Hit | None:
    """What a template can tell apart in a row: the roles in order, reasoning in each turn, the kind of
    content, and which keys are null or filled. None for rows that no template renders."""
    if not view.conversation.templated:
        return None
    return Hit(
        "|".join(_turn_pattern(turn) for turn in view.conversation.turns)
        + ("|tools" * bool(view.conversation.tools))
    )


def _turn_pattern(turn: Turn) -> str:
    content = turn.content
    kind = "" if isinstance(content, str) else "0" if content is None else type(content).__name__
    if isinstance(content, str) and "<" in content and any(tag in content for tag in _THINK):
        kind = "think"
    if not turn.extra:
        return f"{turn.role}:{kind}" if kind else turn.role
    keys = sorted(f"{key}={'0' if value is None else ''}" for key, value in turn.extra.items())
    return f"{turn.role}:{kind}:{','.join(keys)}"


@dataclass(frozen=True, slots=True)
class Lost:
    """A piece of a message that is not in the rendered text."""

    turn: int
    role: str
    field: str
    text: str


def lost_content(conversation: Conversation, rendered: str) -> list[Lost]:
    """What of a conversation is missing from its rendering, in order.

    White space does not count, and content that the template writes as a JSON string is found too.
    """
    text = " ".join(rendered.split())
    position = 0
    lost: list[Lost] = []
    for index, turn in enumerate(conversation.turns):
        for key in REASONING:
            value = turn.extra.get(key)
            if isinstance(value, str) and value.strip() and " ".join(value.split()) not in text:
                lost.append(Lost(index, turn.role, key, value.strip()))
        for name in _called(turn):
            if name not in text:
                lost.append(Lost(index, turn.role, "tool_calls", f"call of {name}"))
        pieces = [turn.text] if not isinstance(turn.content, list) else _text_parts(turn.content)
        for piece in pieces:
            wanted = " ".join(piece.split())
            found = text.find(wanted, position)
            if found < 0:
                escaped = json.dumps(wanted, ensure_ascii=False)[1:-1]
                found = text.find(escaped, position)
                wanted = escaped if found >= 0 else wanted
            if found >= 0:
                position = found + len(wanted)
            elif wanted and wanted not in text:
                kept = _longest_kept_end(wanted, text, position)
                lost.append(Lost(index, turn.role, "content", wanted[: len(wanted) - kept].strip()))
    return lost


def _called(turn: Turn) -> list[str]:
    """The names of the functions that a turn calls."""
    calls = turn.extra.get("tool_calls")
    functions = (
        [call.get("function", call) for call in calls or () if isinstance(call, dict)]
        if isinstance(calls, list)
        else []
    )
    names = [function.get("name") for function in functions if isinstance(function, dict)]
    return [name for name in names if isinstance(name, str) and name]


def _text_parts(content: list[object]) -> list[str]:
    parts = [
        part if isinstance(part, str) else part.get("text")
        for part in content
        if isinstance(part, str | dict)
    ]
    return [part for part in parts if isinstance(part, str)]


def _longest_kept_end(wanted: str, text: str, position: int) -> int:
    """How much of the end of a message is there: templates that strip reasoning keep what follows it."""
    for tag in ("</think>", "</thinking>", "</reasoning>"):
        head, found, tail = wanted.rpartition(tag)
        if found and head and tail.strip() and text.find(tail.strip(), position) >= 0:
            return len(tail.strip())
    return 0


def rendered(context: AuditContext, conversation: Conversation) -> str | None:
    """The text that the trainer made of a conversation; None when the template refuses it."""
    assert context.tokenizer is not None
    try:
        return render(conversation, context.tokenizer, normalize_messages=context.profile.normalizes_messages)
    except TemplateRenderError:
        return None  # template.render_error


def _representatives(hits: Hits) -> set[int]:
    return {row for rows in hits.kinds.values() for row in rows[:TRIED]}


@check(
    "template.content_dropped",
    title="The chat template leaves out what rows say",
    severity=Severity.WARNING,
    needs=(Need.TOKENS,),
    scan=pattern_of,
    row_level=True,
    explain="""
A part of a message is not in the rendered text, so that it is never learnt: templates strip the reasoning of
all assistant turns but the last, leave out tool calls, ignore a `thinking` key that is called
`reasoning_content` in theirs, or drop a system turn.

**How.** Up to three rows of every pattern (roles, reasoning, kinds of content, keys) are rendered; where
something is lost, all rows of that pattern are.

**Fix.** Split conversations so that each trained turn is the last one, use a template that keeps the content,
or rename the key.

Sources: modelscope/ms-swift#4939, axon-rl/gem#44, huggingface/transformers#44301, huggingface/trl#6361.
""",
)
def content_dropped(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    chat_template(context)
    tried = facts.conversations_of(_representatives(hits))
    suspect: set[int] = set()
    for rows in hits.kinds.values():
        if any(_lost_in(context, tried[row]) for row in rows[:TRIED] if row in tried):
            suspect.update(rows)
    if not suspect:
        return
    losing: dict[int, list[Lost]] = {}
    for row, conversation in facts.conversations_of(suspect).items():
        lost = _lost_in(context, conversation)
        if lost:
            losing[row] = lost
    rows = sorted(losing)
    first = losing[rows[0]][0]
    lengths = [len(piece.text) for pieces in losing.values() for piece in pieces]
    trained = any(piece.role == "assistant" for pieces in losing.values() for piece in pieces)
    yield Observation(
        title=f"The template leaves out text of {len(rows):,} of {plural(facts.rows, 'row')} ({some(rows)})",
        message=f"Row {rows[0]}, message index {first.turn} ({first.role}, {first.field}): about "
        f"{int(np.median(lengths))} characters each; lost: {excerpt(first.text)}",
        rows=rows,
        values={
            "message_index": first.turn,
            "role": first.role,
            "field": first.field,
            "characters_median": int(np.median(lengths)),
            "characters_total": int(sum(lengths)),
            "sample": excerpt(first.text, 200),
        },
        fix=Fix(text=_drop_fix(first, trained), safe=False),
    )


def _lost_in(context: AuditContext, conversation: Conversation) -> list[Lost]:
    text = rendered(context, conversation)
    return [] if text is None else lost_content(conversation, text)


def _drop_fix(lost: Lost, trained: bool) -> str:
    if lost.field in REASONING and lost.field != "reasoning_content":
        return f"rename the key {lost.field!r} -> 'reasoning_content', or use a template that reads it"
    if lost.field == "tool_calls":
        return "use a template that renders tool calls: without them the model never learns to call a tool"
    if trained:
        return (
            "split conversations so that each trained turn is the last one, or use a template that keeps it"
        )
    return f"move the {lost.role} text into a turn that the template renders"


@check(
    "template.renders_null",
    title="Null values are rendered as text",
    severity=Severity.ERROR,
    needs=(Need.TOKENS,),
    scan=pattern_of,
    row_level=True,
    explain="""
A key of a message is null and the template writes `None` or `null` into the text. Loaders add such keys:
`datasets` gives every message all keys that any message has.

**Fix.** Remove null keys from the messages (TRL 1.0 and later does so itself).

Sources: huggingface/datasets#7617, TRL's migration guide for 1.0.
""",
)
def renders_null(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    chat_template(context)
    nulls = {kind: rows for kind, rows in hits.kinds.items() if "=0" in kind or ":0" in kind}
    tried = facts.conversations_of({row for rows in nulls.values() for row in rows[:TRIED]})
    rows: list[int] = []
    for found in nulls.values():
        if any(_writes_null(context, tried[row]) for row in found[:TRIED] if row in tried):
            rows += found
    if rows:
        parts = {part for kind in nulls for part in kind.replace("|", ",").split(",") if "=0" in part}
        keys = sorted({part.split("=")[0].rpartition(":")[2] for part in parts})
        names = listed(repr(key) for key in keys) or "'content'"
        yield Observation(
            title=f"The template writes null values as text in {len(rows):,} of {plural(facts.rows, 'row')} "
            f"({some(sorted(rows))})",
            message=f"Null keys: {names}.",
            rows=rows,
            fix=Fix(text=f"remove the null keys ({names}) from the messages"),
        )


def _writes_null(context: AuditContext, conversation: Conversation) -> bool:
    bare = tuple(
        replace(
            turn,
            content="" if turn.content is None else turn.content,
            extra={key: value for key, value in turn.extra.items() if value is not None},
        )
        for turn in conversation.turns
    )
    text, clean = rendered(context, conversation), rendered(context, replace(conversation, turns=bare))
    if text is None or clean is None or text == clean:
        return False
    return sum(text.count(word) - clean.count(word) for word in ("None", "null")) > 0
