"""Does everything that a row says reach the rendered text, and nothing that it does not say?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.checks.template import chat_template
from gradian.audit.facts import DatasetFacts, Hit, Hits, RowView
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import excerpt, listed, percent, plural, some
from gradian.rows.row import Conversation, Shape, Turn
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


def _rendered(context: AuditContext, conversation: Conversation) -> str | None:
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
    text = _rendered(context, conversation)
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
    text, clean = _rendered(context, conversation), _rendered(context, replace(conversation, turns=bare))
    if text is None or clean is None or text == clean:
        return False
    return sum(text.count(word) - clean.count(word) for word in ("None", "null")) > 0


@check(
    "template.default_system_injected",
    title="The template adds a system text of its own",
    severity=Severity.INFO,
    needs=(Need.TOKENS,),
    explain="""
Rows without a system turn are rendered with one that the template brings along ("You are a helpful
assistant"). The model is tuned with it, so keep it at inference, or give the rows a system text.
""",
)
def default_system_injected(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    chat_template(context)
    without = facts.templated & ~facts.system
    if not without.any():
        return
    injected = injected_system(context)
    if injected is not None:
        yield Observation(
            title=f"The template adds a system text to {int(without.sum()):,} of {plural(facts.rows, 'row')}",
            message=f"It says: {excerpt(injected, 160)}",
            count=int(without.sum()),
            of=facts.rows,
            values={"text": excerpt(injected, 400)},
            fix=Fix(text="keep the same system text at inference, or write one into the rows"),
        )


_SYSTEM, _USER = "gradian probe of the system", "gradian probe of the user"


def injected_system(context: AuditContext) -> str | None:
    """The system text that the template writes when there is none; None when it writes none."""
    user = Turn("user", _USER)
    own = _rendered(context, Conversation(Shape.MESSAGES, (user,)))
    given = _rendered(context, Conversation(Shape.MESSAGES, (Turn("system", _SYSTEM), user)))
    if own is None or given is None or _SYSTEM not in given or _USER not in own:
        return None
    header = given[: given.index(_SYSTEM)]
    before = own[: own.index(_USER)]
    # Without a word in the header ("system") there is nothing that tells a system turn from a BOS token.
    if not any(character.isalpha() for character in header) or not before.startswith(header):
        return None
    closing = given[given.index(_SYSTEM) + len(_SYSTEM) : given.index(_USER)]
    body = before[len(header) :].removesuffix(closing)
    return body.strip() or None


def find_reasoning(view: RowView) -> Hit | None:
    """A reasoning block or key in an assistant turn."""
    for turn in view.conversation.turns:
        if turn.role == "assistant" and (
            any(turn.extra.get(key) for key in REASONING)
            or (isinstance(turn.content, str) and "<think>" in turn.content)
        ):
            return Hit("reasoning")
    return None


@check(
    "template.think_mismatch",
    title="A reasoning model and rows without reasoning",
    severity=Severity.WARNING,
    needs=(Need.TOKENS,),
    scan=find_reasoning,
    thresholds={"low_share": 0.05, "high_share": 0.95},
    explain="""
The template can switch reasoning on and off (`enable_thinking`) or opens a `<think>` block for the model, and
the rows have none, or only some have. The model loses the habit, or mixes both ways.

**Severity.** Warning for rows of both kinds (5 to 95 %); info when no row has reasoning, which is right for a
model that is used with thinking switched off.

Sources: hiyouga/LLaMA-Factory#9092, #8816, huggingface/trl#2919, QwenLM/Qwen3#1438.
""",
)
def think_mismatch(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    template = chat_template(context)
    opening = "<think>" in (
        template.render([{"role": "user", "content": "x"}], add_generation_prompt=True) or ""
    )
    if "enable_thinking" not in template.source and not opening:
        return
    chats = facts.readable & facts.templated
    share = len(hits.rows) / int(chats.sum())
    low = context.threshold("template.think_mismatch.low_share")
    high = context.threshold("template.think_mismatch.high_share")
    if share > high:
        return
    mixed = share >= low
    without = sorted(set(np.flatnonzero(chats).tolist()) - set(hits.rows))
    yield Observation(
        title=f"{percent(share)} of the rows have reasoning and the template is one for reasoning",
        severity=Severity.WARNING if mixed else Severity.INFO,
        rows=without if mixed else (),
        count=len(without),
        of=facts.rows,
        values={"share": share, "low_share": low, "high_share": high},
        fix=Fix(
            text="give all rows a reasoning block or none, and set enable_thinking to match at inference"
        ),
    )


@check(
    "template.generation_prompt_mismatch",
    title="The prompt alone is rendered otherwise than in the row",
    severity=Severity.WARNING,
    needs=(Need.TOKENS,),
    thresholds={"warning_share": 0.01},
    explain="""
At inference the model sees the prompt with the opening of an assistant turn. For these rows that is not how
the row in training begins: the opening holds a `<think>` tag that the row lacks, or the template renders
earlier turns otherwise once an answer follows. The model is asked in a form that it was not tuned on.

**Severity.** Warning from 1 % of the rows on, else info.

Sources: TRL's warning "Mismatch between tokenized prompt and the start of tokenized prompt+completion",
huggingface/trl#4147.
""",
)
def generation_prompt_mismatch(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    assert facts.tokens is not None
    chat_template(context)
    rows = np.flatnonzero(facts.tokens.mismatch & facts.templated).tolist()
    if not rows:
        return
    limit = context.threshold("template.generation_prompt_mismatch.warning_share")
    evidence = _first_difference(context, facts, rows[0])
    yield Observation(
        title=f"{len(rows):,} of {plural(facts.rows, 'row')} begin otherwise than their prompt alone "
        f"({some(rows)})",
        severity=Severity.WARNING if len(rows) / facts.rows >= limit else Severity.INFO,
        message=f"Row {rows[0]}: the prompt goes on with {evidence[0]!r}, the row with {evidence[1]!r}."
        if evidence
        else "",
        rows=rows,
        values={"prompt": evidence[0], "row": evidence[1]} if evidence else {},
        fix=Fix(
            text="render the answers as the generation prompt opens them, or use a template that keeps the "
            "prefix"
        ),
    )


def _first_difference(context: AuditContext, facts: DatasetFacts, row: int) -> tuple[str, str] | None:
    """Where the prompt of a row and the row part: the next characters of both."""
    conversation = facts.conversations_of({row})[row]
    assert context.tokenizer is not None
    prompt_turns = conversation.turns[: conversation.answer_start]
    try:
        prompt = render(conversation, context.tokenizer, turns=prompt_turns, add_generation_prompt=True)
        whole = render(conversation, context.tokenizer)
    except TemplateRenderError:
        return None
    shared = next(
        (i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b),
        min(len(prompt), len(whole)),
    )
    return prompt[shared : shared + 24], whole[shared : shared + 24]
