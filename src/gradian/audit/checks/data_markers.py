"""Control tokens and white space that stand in the text of a row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.facts import Hit, Hits, RowView
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import listed, percent, plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext

_MARKER = re.compile(
    r"<\|[A-Za-z][A-Za-z0-9_]{1,40}\|>|<｜[^｜<>\n]{2,40}｜>|</?s>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>"
    r"|<(?:bos|eos|pad|unk)>"
)
#: Places for images and sounds belong into the text of a message.
_PLACEHOLDER = re.compile(r"image|video|audio|vision|img|python_tag|fim_|file_sep|repo_name")
#: HTML and old prompts use these too; they only count where the tokenizer has them as tokens.
_AMBIGUOUS = frozenset({"<s>", "</s>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"})


def find_marker(view: RowView) -> Hit | None:
    """A control token in the content of a message that a template wraps in control tokens again."""
    if not view.conversation.templated:
        return None
    for turn in view.conversation.turns:
        text = turn.text
        if "<" not in text and "[" not in text:
            continue
        for match in _MARKER.finditer(text):
            if not _PLACEHOLDER.search(match.group()):
                return Hit(match.group(), turn.role)
    return None


@check(
    "data.special_tokens_in_text",
    title="Control tokens inside messages",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    scan=find_marker,
    thresholds={"warning_share": 0.001, "rendered_share": 0.95},
    row_level=True,
    explain="""
The content of a message contains text such as `<|im_end|>`, `</s>` or `[INST]`. Where the tokenizer knows it,
it becomes a control token in the middle of the content: a turn ends where none should, and a hostile row can
write turns of its own. Where it is another model's, it is noise that the model learns to write.

**Severity.** Warning from 0.1 % of the rows on, else info. `<s>`, `[INST]` and the like only count when they
are tokens of this tokenizer.

**Fix.** Remove the text. When nearly every row has it, the data is rendered already: use a `text` column, so
that no template is put around it again.
""",
)
def special_tokens_in_text(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    tokenizer = context.tokenizer
    known = set(tokenizer.added_tokens.values()) if tokenizer is not None else set()
    kinds = {kind: rows for kind, rows in hits.kinds.items() if kind in known or kind not in _AMBIGUOUS}
    if not kinds:
        return
    rows = sorted(row for found in kinds.values() for row in found)
    share = len(rows) / facts.rows
    own = sorted(kind for kind in kinds if kind in known)
    rendered = len(rows) > context.threshold("data.special_tokens_in_text.rendered_share") * facts.usable
    limit = context.threshold("data.special_tokens_in_text.warning_share")
    order = sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    yield Observation(
        title=f"Control tokens inside the messages of {len(rows):,} of {plural(facts.rows, 'row')} "
        f"({some(rows)})",
        severity=Severity.WARNING if share >= limit else Severity.INFO,
        message=f"{listed(f'{kind} ({len(found):,})' for kind, found in order[:5])}."
        + (
            f" {listed(own)} {'is a token' if len(own) == 1 else 'are tokens'} of this tokenizer."
            if own
            else ""
        ),
        rows=rows,
        values={
            "markers": {kind: len(found) for kind, found in order[:20]},
            "own_tokens": own,
            "share": share,
            "warning_share": limit,
        },
        row_level=not rendered,
        fix=Fix(text="the rows are rendered already: put them into a `text` column", safe=False)
        if rendered
        else Fix(text=f"remove the control tokens from {plural(len(rows), 'row')}", safe=False),
    )


def find_trailing_space(view: RowView) -> Hit | None:
    """A prompt that is put before its completion as it stands, and ends in white space."""
    conversation = view.conversation
    if conversation.templated or not conversation.turns:
        return None
    return Hit("trailing") if view.prompt and view.prompt[-1].isspace() else Hit("none")


@check(
    "data.trailing_whitespace",
    title="Prompts that end in white space",
    severity=Severity.INFO,
    needs=(Need.ROWS,),
    scan=find_trailing_space,
    thresholds={"share": 0.50},
    explain="""
At least half of the prompts end in a space, a tab or a line break and are put before their completion as they
stand. Many tokenizers join a space to the word that follows; whoever asks later without that very space asks
something else. Where it changes the tokens of the rows, `token.prompt_boundary_mismatch` says so.
""",
)
def trailing_whitespace(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    rows = hits.kinds.get("trailing", [])
    total = len(rows) + len(hits.kinds.get("none", []))
    texts = facts.texts_of(set(rows[:1]))
    spaces = [row for row in rows if row in texts and texts[row][0].endswith((" ", "\t"))]
    # A line break before the completion is the usual way to part them, and no tokenizer joins it to a word.
    if not spaces or len(rows) < context.threshold("data.trailing_whitespace.share") * total:
        return
    yield Observation(
        title=f"{percent(len(rows) / total)} of the prompts end in white space ({some(rows)})",
        rows=rows,
        of=facts.rows,
        values={"prompts": total},
        fix=Fix(text="move the trailing space from the prompts to the completions", safe=False),
    )


@check(
    "data.sorted_by_group",
    title="Rows sorted by group or label, and no shuffling",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    thresholds={"runs_share": 0.05, "minimum_rows": 100},
    explain="""
The rows stand in blocks, group after group or label after label, and the trainer does not shuffle them: the
model sees one kind at a time and forgets the first by the end. transformers' Trainer shuffles by default;
streaming, sequential sampling and torchtune's `shuffle: False` do not.

**How.** The number of runs of equal labels is below 5 % of what a random order would have (Wald-Wolfowitz).

**Fix.** Shuffle the file, or switch shuffling on.
""",
)
def sorted_by_group(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    if context.profile.shuffles:
        return
    usable = facts.readable
    if usable.sum() < context.threshold("data.sorted_by_group.minimum_rows"):
        return
    labels = facts.group[usable].astype(np.int64)
    what = "group"
    if (labels < 0).any():
        labels, what = facts.answer_hash[usable].astype(np.int64), "answer"
    _, counts = np.unique(labels, return_counts=True)
    total = int(counts.sum())
    if not 2 <= len(counts) <= total / 5:
        return
    runs = 1 + int((labels[1:] != labels[:-1]).sum())
    expected = 1 + total - float((counts.astype(np.float64) ** 2).sum()) / total
    limit = context.threshold("data.sorted_by_group.runs_share")
    if runs >= limit * expected:
        return
    yield Observation(
        title=f"The rows are sorted by {what}: {runs:,} blocks where a random order has about "
        f"{expected:,.0f}",
        count=total,
        of=facts.rows,
        values={"runs": runs, "expected_runs": expected, "labels": len(counts), "runs_share": limit},
        assumes=f"{context.profile.trainer} reads the rows in order",
        fix=Fix(text="shuffle the rows, or set shuffle false -> true", key="shuffle"),
    )


@check(
    "data.tiny_for_schedule",
    title="Few rows, seen often",
    severity=Severity.INFO,
    needs=(Need.ROWS,),
    thresholds={"rows": 100, "passes": 10},
    explain="""
There are fewer than 100 different rows, or each is seen more than 10 times: the model learns them by heart.
Guides for LoRA name one to three passes.

**Severity.** Warning for more than 10 passes, info for few rows.

**Fix.** Fewer epochs, as computed, or more rows.
""",
)
def tiny_for_schedule(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    distinct = len(np.unique(facts.pair_hash[facts.readable]))
    passes = _passes(context, facts.usable)
    few = context.threshold("data.tiny_for_schedule.rows")
    many = context.threshold("data.tiny_for_schedule.passes")
    if passes is not None and passes > many:
        yield Observation(
            title=f"Each row is seen {passes:,.0f} times ({distinct:,} different rows)",
            severity=Severity.WARNING,
            count=distinct,
            of=facts.rows,
            values={"different_rows": distinct, "passes": passes, "threshold": many},
            fix=Fix.change("num_train_epochs", passes, 3),
        )
    elif distinct < few:
        yield Observation(
            title=f"Only {plural(distinct, 'different row')}",
            count=distinct,
            of=facts.rows,
            values={"different_rows": distinct, "passes": passes, "threshold": few},
        )


def _passes(context: AuditContext, rows: int) -> float | None:
    """How often each row is seen: the epochs that were run, else those that the settings ask for."""
    run = context.run
    if run is None:
        return None
    if run.logs is not None and run.logs.epoch is not None:
        return run.logs.epoch
    steps = run.settings.number("max_steps")
    if steps is not None and steps > 0:
        batch = run.settings.number("per_device_train_batch_size")
        accumulation = run.settings.number("gradient_accumulation_steps") or 1
        return steps * batch * accumulation / rows if batch and rows else None
    return run.settings.number("num_train_epochs")
