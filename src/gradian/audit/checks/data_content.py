"""Faults of single rows that can be seen in their text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.facts import SHAPES, Hit, Hits, RowView
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, Observation, check
from gradian.audit.text_faults import encoding_fault, loop, placeholder, refusal, repaired
from gradian.audit.wording import excerpt, listed, percent, plural, some
from gradian.rows.row import Shape

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


def find_empty_answer(view: RowView) -> Hit | None:
    """An assistant turn, or a whole text row, without content."""
    conversation = view.conversation
    if not conversation.turns:
        return Hit("empty text") if not view.answer.strip() else None
    if not view.answer.strip():
        answered = conversation.turns[view.start :]
        if answered and not any(_says_otherwise(turn.extra, turn.content) for turn in answered):
            return Hit("null" if all(turn.content is None for turn in answered) else "empty")
    for turn in conversation.turns[: view.start]:
        if (
            turn.role == "assistant"
            and not turn.text.strip()
            and not _says_otherwise(turn.extra, turn.content)
        ):
            return Hit("empty earlier assistant turn")
    return None


def _says_otherwise(extra: object, content: object) -> bool:
    """The turn has a tool call, reasoning or an image instead of text."""
    keys = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
    return (isinstance(content, list) and bool(content)) or (
        hasattr(extra, "get") and any(extra.get(key) for key in keys)
    )


@check(
    "data.empty_completion",
    title="Empty answers",
    severity=Severity.ERROR,
    needs=(Need.ROWS,),
    scan=find_empty_answer,
    row_level=True,
    explain="""
The answer is empty or null. What is left to learn is the stop token right after the prompt: the model is
taught to say nothing.

**Fix.** Remove the rows, or find out what emptied the column. Assistant turns that call a tool, or hold
reasoning or an image instead of text, are not empty; neither is an empty `input` of an instruction row.
""",
)
def empty_completion(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    assert context.dataset is not None
    rows = hits.rows
    if rows:
        kinds = listed(f"{count:,} {kind}" for kind, count in hits.counts().items())
        yield Observation(
            title=f"{len(rows):,} of {plural(context.dataset.rows, 'row')} have no answer ({some(rows)})",
            message=f"{kinds}.",
            rows=rows,
            values=hits.counts(),
            fix=Fix(
                text=f"remove {some(rows)}: {context.dataset.rows:,} -> {context.dataset.rows - len(rows):,} "
                "rows",
                safe=False,
                remove_rows=tuple(rows),
            ),
        )


@check(
    "data.empty_prompt",
    title="Empty prompts",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    row_level=True,
    explain="""
The prompt is empty, so the model learns to say the answer out of the blue. Text rows have no prompt and are
not counted; when more than 95 % of the rows have none, the data is meant so and this is info.
""",
)
def empty_prompt(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    whole = (SHAPES.index(Shape.TEXT), SHAPES.index(Shape.RAW))
    candidates = facts.readable & ~np.isin(facts.shape, whole)
    blank = {row for row, prompt, _ in facts.texts() if not prompt.strip()} if candidates.any() else set()
    rows = [row for row in sorted(blank) if candidates[row]]
    if not rows:
        return
    deliberate = len(rows) > 0.95 * int(candidates.sum())
    yield Observation(
        title=f"{len(rows):,} of {plural(facts.rows, 'row')} have no prompt ({some(rows)})",
        severity=Severity.INFO if deliberate else Severity.WARNING,
        rows=rows,
        fix=None if deliberate else Fix(text=f"remove or mend {some(rows)}", safe=False),
        row_level=not deliberate,
    )


@check(
    "data.placeholder_completion",
    title="Answers that stand for a missing value",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    scan=lambda view: Hit(found) if (found := placeholder(view.answer)) else None,
    thresholds={"label_share": 0.02},
    row_level=True,
    explain="""
The whole answer is `nan`, `None`, `null`, `TODO`, `[object Object]` or the like: an empty cell that an export
turned into text. The model learns to say it.

**Avoided:** one such text that makes up 2 % of the rows or more (`label_share`) may be a label of its own and
is info.
""",
)
def placeholder_completion(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    label = context.threshold("data.placeholder_completion.label_share")
    rare = sorted(
        row for rows in hits.kinds.values() if len(rows) < max(2, label * facts.rows) for row in rows
    )
    often = {kind: len(rows) for kind, rows in hits.kinds.items() if len(rows) >= max(2, label * facts.rows)}
    if rare:
        texts = listed(repr(kind) for kind in hits.counts() if kind not in often)
        yield Observation(
            title=f"{plural(len(rare), 'answer')} of {facts.rows:,} only stand for a missing value "
            f"({some(rare)})",
            message=f"They say {texts}.",
            rows=rare,
            values=hits.counts(),
            fix=Fix(text=f"remove {some(rare)}", safe=False, remove_rows=tuple(rare)),
        )
    elif often:
        texts = listed(f"{count:,} say {kind!r}" for kind, count in sorted(often.items()))
        yield Observation(
            title=f"Answers that may stand for a missing value: {texts}",
            severity=Severity.INFO,
            rows=hits.rows,
            row_level=False,
            values=often,
        )


def find_encoding_fault(view: RowView) -> Hit | None:
    """Text that was decoded wrongly, in the prompt or the answer."""
    for text in (view.prompt, view.answer):
        fault = encoding_fault(text)
        if fault is not None:
            return Hit(fault, excerpt(repaired(text) or text, 120))
    return None


@check(
    "data.mojibake",
    title="Text that was decoded wrongly",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    scan=find_encoding_fault,
    row_level=True,
    explain="""
The text holds UTF-8 that was read as Windows-1252 (`cafÃ©` for `café`), replacement characters (U+FFFD),
control characters or unpaired surrogates. The model learns to write them.

Mojibake is only reported where decoding it again succeeds, so that French or Portuguese text is safe; code in
fences is left alone.

**Fix.** The repaired text is shown; read the source again with the right encoding.
""",
)
def mojibake(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    assert context.dataset is not None
    rows = hits.rows
    if not rows:
        return
    kinds = listed(f"{kind} in {plural(count, 'row')}" for kind, count in hits.counts().items())
    repairs = {row: hit.detail for row, hit in hits.samples if hit.kind == "mojibake"}
    repair = next(iter(repairs.items()), None)
    yield Observation(
        title=f"{plural(len(rows), 'row')} of {context.dataset.rows:,} hold wrongly decoded text "
        f"({some(rows)})",
        message=f"{kinds[:1].upper()}{kinds[1:]}."
        + (f" Row {repair[0]} should read: {repair[1]}" if repair is not None else ""),
        rows=rows,
        values={"kinds": hits.counts(), "repaired": {str(row): text for row, text in repairs.items()}},
        fix=Fix(
            text=f"row {repair[0]} -> {excerpt(repair[1])!r}; read the source again as UTF-8"
            if repair is not None
            else f"read the source again with its own encoding, or mend {some(rows)}",
            safe=False,
        ),
    )


@check(
    "data.refusal_boilerplate",
    title="Answers that refuse in stock phrases",
    severity=Severity.INFO,
    needs=(Need.ROWS,),
    scan=lambda view: Hit(found) if (found := refusal(view.answer)) else None,
    thresholds={"warning_share": 0.02, "purpose_share": 0.30},
    row_level=True,
    explain="""
The answer begins with "as an AI language model", "I cannot assist with" or the like. Such rows come with data
that another model wrote, and they teach refusal for questions that are harmless.

**Severity.** Info; warning from 2 % of the rows on (`warning_share`). Above 30 % refusing is the purpose of
the data and this is info again.
""",
)
def refusal_boilerplate(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    rows = hits.rows
    if not rows:
        return
    share = len(rows) / facts.rows
    warning = context.threshold("data.refusal_boilerplate.warning_share")
    purpose = context.threshold("data.refusal_boilerplate.purpose_share")
    yield Observation(
        title=f"{len(rows):,} of {plural(facts.rows, 'answer')} refuse in stock phrases ({some(rows)})",
        severity=Severity.WARNING if warning <= share <= purpose else Severity.INFO,
        message=f"Most frequent: {listed(repr(kind) for kind in list(hits.counts())[:3])}.",
        rows=rows,
        values={"phrases": hits.counts(), "share": share, "warning_share": warning},
        fix=Fix(text=f"remove {some(rows)} unless the model shall refuse there", safe=False),
    )


@check(
    "data.degenerate_repetition",
    title="Answers that repeat themselves",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    scan=lambda view: Hit("loop", found) if (found := loop(view.answer)) else None,
    row_level=True,
    explain="""
An answer says the same four words so often that they make up more than 30 % of it (at least 50 words), or one
line stands in it ten times: the output of a model that was caught in a loop. Such rows teach the loop.

Source: the repetition rules of Gopher's data (Rae et al. 2021, arXiv 2112.11446).
""",
)
def degenerate_repetition(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    assert context.dataset is not None
    rows = hits.rows
    if rows:
        row, hit = hits.samples[0]
        yield Observation(
            title=f"{plural(len(rows), 'answer')} of {context.dataset.rows:,} repeat themselves "
            f"({some(rows)})",
            message=f"Row {row} says over and over: {excerpt(hit.detail)}",
            rows=rows,
            values={"samples": {str(row): excerpt(hit.detail) for row, hit in hits.samples[:5]}},
            fix=Fix(text=f"remove {some(rows)}", safe=False, remove_rows=tuple(rows)),
        )


ECHO_CHARACTERS = 40


def find_echo(view: RowView) -> Hit | None:
    """The answer starts with the whole prompt."""
    conversation = view.conversation
    if not conversation.turns or not view.start:
        return None
    prompt = conversation.turns[view.start - 1].text.strip()
    return Hit("echo") if len(prompt) >= ECHO_CHARACTERS and view.answer.lstrip().startswith(prompt) else None


@check(
    "data.prompt_echo",
    title="Answers that begin with the whole prompt",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    scan=find_echo,
    thresholds={"warning_share": 0.05},
    row_level=True,
    explain="""
The answer column holds the prompt as well (at least 40 characters of it). Trainers put prompt and completion
together, so the prompt is there twice, and the model learns to repeat the question.

**Severity.** Warning from 5 % of the rows on, else info: rewriting tasks quote their prompt.

**Fix.** Cut the prompt off the completions.
""",
)
def prompt_echo(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    rows = hits.rows
    if not rows:
        return
    share = len(rows) / facts.rows
    warning = context.threshold("data.prompt_echo.warning_share")
    yield Observation(
        title=f"{len(rows):,} of {plural(facts.rows, 'answer')} begin with the whole prompt ({some(rows)})",
        severity=Severity.WARNING if share >= warning else Severity.INFO,
        message=f"That is {percent(share)}; in training the prompt stands there twice.",
        rows=rows,
        values={"share": share, "warning_share": warning},
        fix=Fix(text=f"cut the prompt off the completions of {plural(len(rows), 'row')}", safe=False),
    )
