"""How the template opens a conversation and an answer: what it adds of its own, and reasoning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.checks.template import chat_template
from gradian.audit.facts import DatasetFacts, Hit, Hits, RowView
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import excerpt, percent, plural, some
from gradian.rows.row import Conversation, Shape, Turn
from gradian.rows.template import TemplateRenderError
from gradian.rows.tokens import render

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
from gradian.audit.checks.template_content import REASONING, rendered


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
    own = rendered(context, Conversation(Shape.MESSAGES, (user,)))
    given = rendered(context, Conversation(Shape.MESSAGES, (Turn("system", _SYSTEM), user)))
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
