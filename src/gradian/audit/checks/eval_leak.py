"""Eval items that the training set gives away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit import near
from gradian.audit.checks.data_duplicates import loose
from gradian.audit.facts import DatasetFacts
from gradian.audit.finding import Fix, Severity
from gradian.audit.forms import normalised
from gradian.audit.overlap import shared_passages
from gradian.audit.registry import Need, Observation, check
from gradian.audit.shingles import frame_of
from gradian.audit.wording import excerpt, listed, percent, plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext

#: Prompts with fewer words say too little: "Name one tool used with rope" is in many sets by chance.
PROMPT_WORDS = 13


def _loose_texts(facts: DatasetFacts) -> dict[int, tuple[str, str]]:
    return {row: (loose(prompt), loose(answer)) for row, prompt, answer in facts.texts()}


@check(
    "eval.contamination_exact",
    title="Eval items that are in the training set",
    severity=Severity.ERROR,
    needs=(Need.ROWS, Need.EVAL_ROWS),
    explain="""
The item, prompt and answer, is a training row (after Unicode normalisation, without regard to case, white
space and punctuation): the score measures memory.

**Severity.** Error; a warning when only the prompt is there, with another answer.

**Fix.** Remove these rows from the training set; they are named with the items.

Sources: Tulu 3, arXiv 2411.15124 (11.3 % overlap of one source with a benchmark); Lee et al. 2022, arXiv
2107.06499.
""",
)
def contamination_exact(context: AuditContext) -> Iterator[Observation]:
    train, held_out = context.dataset, context.eval
    assert train is not None
    assert held_out is not None
    items = _loose_texts(held_out)
    prompts = {prompt for prompt, _ in items.values() if prompt}
    rows_of: dict[tuple[str, str], list[int]] = {}
    rows_asking: dict[str, list[int]] = {}
    wanted = set(items.values())
    for row, prompt, answer in train.texts():
        asked = loose(prompt)
        if asked in prompts or not asked:
            pair = (asked, loose(answer))
            if pair in wanted and any(pair):
                rows_of.setdefault(pair, []).append(row)
            if asked:
                rows_asking.setdefault(asked, []).append(row)
    both = {item: rows_of[pair] for item, pair in items.items() if pair in rows_of}
    only = {
        item: rows_asking[pair[0]]
        for item, pair in items.items()
        if pair[0] in rows_asking and item not in both
    }
    if both:
        yield _exact(context, both, "equal a training row", Severity.ERROR)
    if only:
        yield _exact(
            context, only, "have their prompt in the training set, with another answer", Severity.WARNING
        )


def _exact(context: AuditContext, found: dict[int, list[int]], what: str, severity: Severity) -> Observation:
    assert context.eval is not None
    items = sorted(found)
    train_rows = sorted({row for item in items for row in found[item]})
    first = [f"eval row {item} = train row {found[item][0]}" for item in items[:4]]
    return Observation(
        title=f"{len(items):,} of {plural(context.eval.rows, 'eval row')} {what} ({some(items)})",
        severity=severity,
        message=f"{'; '.join(first)}{f'; +{len(items) - 4}' if len(items) > 4 else ''}.",
        rows=items,
        of_eval=True,
        values={
            "train_rows": [found[item][0] for item in items],
            "pairs": {str(item): found[item][:20] for item in items[:200]},
        },
        fix=Fix(
            text=f"remove {plural(len(train_rows), 'training row')} ({some(train_rows)})",
            safe=False,
            remove_rows=tuple(train_rows),
        ),
    )


@check(
    "eval.contamination_near",
    title="Eval items that are nearly in the training set",
    severity=Severity.WARNING,
    needs=(Need.ROWS, Need.EVAL_ROWS),
    thresholds={"similarity": 0.80, "passage_share": 0.50, "error_share": 0.05},
    explain="""
The item's prompt is nearly a training prompt (at least 80 % of their character 5-shingles in common), or at
least half of it stands verbatim in a training row in passages of 50 characters or more.

What a template writes around the texts does not count, nor do prompts of fewer than 13 words or 60
characters, and passages that stand in more than 1 % of the training rows.

**Severity.** Warning; error from 5 % of the items on.

Sources: Tulu 3, arXiv 2411.15124; the substring test of the GPT-4 report, arXiv 2303.08774.
""",
)
def contamination_near(context: AuditContext) -> Iterator[Observation]:
    train, held_out = context.dataset, context.eval
    assert train is not None
    assert held_out is not None
    exact = set(held_out.prompt_hash.tolist()) & set(train.prompt_hash.tolist())
    items = {
        item: text
        for item, prompt, _ in held_out.texts()
        if int(held_out.prompt_hash[item]) not in exact
        and len(text := normalised(prompt)) >= near.MIN_CHARACTERS
        and len(text.split()) >= PROMPT_WORDS
    }
    if not items:
        return
    best: dict[int, near.Pair] = {}
    for pair in _near_prompts(context, train, held_out, items):
        if pair.left not in best or pair.similarity > best[pair.left].similarity:
            best[pair.left] = pair
    texts = train.texts_of({pair.right for pair in best.values()})
    # Equal but for the system turn or punctuation: `eval.contamination_exact` reports these.
    for item in [item for item, pair in best.items() if loose(texts[pair.right][0]) == loose(items[item])]:
        del best[item], items[item]
    passages = {
        overlap.item: overlap
        for overlap in shared_passages(
            {item: text for item, text in items.items() if item not in best},
            ((row, f"{normalised(prompt)} {normalised(answer)}") for row, prompt, answer in train.texts()),
            common_rows=max(3, train.rows // 100),
        )
        if overlap.share >= context.threshold("eval.contamination_near.passage_share")
    }
    rows = sorted({*best, *passages})
    if not rows:
        return
    evidence = {item: (best[item].right, best[item].similarity, "similar") for item in best}
    evidence |= {item: (passages[item].row, passages[item].share, "of it verbatim") for item in passages}
    limit = context.threshold("eval.contamination_near.error_share")
    shown = [
        f"eval row {item} ~ train row {evidence[item][0]} ({evidence[item][1]:.2f} {evidence[item][2]})"
        for item in rows[:4]
    ]
    train_rows = sorted({evidence[item][0] for item in rows})
    yield Observation(
        title=f"{len(rows):,} of {plural(held_out.rows, 'eval row')} nearly stand in the training set "
        f"({some(rows)})",
        severity=Severity.ERROR if len(rows) >= max(2, limit * held_out.rows) else Severity.WARNING,
        message=f"{'; '.join(shown)}.",
        rows=rows,
        of_eval=True,
        values={
            "train_rows": [evidence[item][0] for item in rows],
            "similarity": {str(item): round(evidence[item][1], 4) for item in rows[:200]},
            "threshold": context.threshold("eval.contamination_near.similarity"),
            "error_share": limit,
        },
        fix=Fix(
            text=f"remove {plural(len(train_rows), 'training row')} ({some(train_rows)})",
            safe=False,
            remove_rows=tuple(train_rows),
        ),
    )


def _near_prompts(
    context: AuditContext, train: DatasetFacts, held_out: DatasetFacts, items: dict[int, str]
) -> list[near.Pair]:
    frames = [
        frame_of([normalised(view.prompt) for view in facts.sample], near.FRAME_SHARE)
        for facts in (train, held_out)
    ]
    frame = np.unique(np.concatenate(frames))
    table = near.BandTable(near.CONTAMINATION_BAND, frame)
    table.add(sorted(items.items()))
    candidates = near.between(table, ((row, normalised(prompt)) for row, prompt, _ in train.texts()))
    texts = train.texts_of({row for _, row in candidates.pairs})
    left = near.shingle_sets({item: items[item] for item, _ in candidates.pairs}, frame)
    right = near.shingle_sets({row: normalised(prompt) for row, (prompt, _) in texts.items()}, frame)
    return near.verified(
        candidates.pairs, left, right, context.threshold("eval.contamination_near.similarity")
    )


ANSWER_CHARACTERS = 20


@check(
    "eval.answer_leak",
    title="Wanted answers that stand in training prompts",
    severity=Severity.WARNING,
    needs=(Need.ROWS, Need.EVAL_ROWS),
    explain="""
The wanted answer of an eval item (at least 20 characters, and not the answer of several items) stands
verbatim in a training prompt or system text: the model may have read it there. Items that are training rows
themselves are reported as contamination instead.
""",
)
def answer_leak(context: AuditContext) -> Iterator[Observation]:
    train, held_out = context.dataset, context.eval
    assert train is not None
    assert held_out is not None
    _, inverse, counts = np.unique(held_out.answer_hash, return_inverse=True, return_counts=True)
    known = set(train.prompt_hash.tolist())
    answers = {
        item: text
        for item, _, answer in held_out.texts()
        if counts[inverse[item]] == 1
        and int(held_out.prompt_hash[item]) not in known
        and len(text := normalised(answer)) >= ANSWER_CHARACTERS
        and len(text.split()) >= 4
    }
    prompts = ((row, normalised(prompt)) for row, prompt, _ in train.texts())
    found = [
        overlap
        for overlap in shared_passages(
            answers, prompts, common_rows=max(3, train.rows // 100), window=ANSWER_CHARACTERS
        )
        if overlap.covered == overlap.characters
    ]
    texts = train.texts_of({overlap.row for overlap in found})
    leaks = {o.item: o.row for o in found if answers[o.item] in normalised(texts[o.row][0])}
    if leaks:
        rows = sorted(leaks)
        shown = [f"eval row {item} in the prompt of train row {leaks[item]}" for item in rows[:4]]
        yield Observation(
            title=f"The answers of {len(rows):,} of {plural(held_out.rows, 'eval row')} stand in training "
            f"prompts ({some(rows)})",
            message=f"{'; '.join(shown)}. For instance: {excerpt(answers[rows[0]])}",
            rows=rows,
            of_eval=True,
            values={"train_rows": [leaks[item] for item in rows]},
            fix=Fix(
                text=f"remove the training rows ({some(sorted(set(leaks.values())))}) or these items",
                safe=False,
            ),
        )


@check(
    "eval.group_leak",
    title="Conversations that were split between training and eval",
    severity=Severity.WARNING,
    needs=(Need.ROWS, Need.EVAL_ROWS),
    explain="""
Rows of one conversation are in both sets: they share a conversation id (`conversation_id`, `dialogue_id`,
...), or several turns with the same first question of at least 40 characters. The split was made row by row,
after the conversations had been cut into rows.

**Fix.** Split by conversation.
""",
)
def group_leak(context: AuditContext) -> Iterator[Observation]:
    train, held_out = context.dataset, context.eval
    assert train is not None
    assert held_out is not None
    leaks: dict[str, list[int]] = {}
    for what, name in (("id_hash", "conversation id"), ("opening_hash", "first question")):
        ours, theirs = getattr(train, what), getattr(held_out, what)
        values, counts = np.unique(ours[ours != 0], return_counts=True)
        if what == "opening_hash":
            values = values[
                counts <= max(3, train.rows // 100)
            ]  # one that opens many conversations is a frame
        shared = (theirs != 0) & np.isin(theirs, values) & ~np.isin(held_out.pair_hash, train.pair_hash)
        if shared.any():
            leaks[name] = np.flatnonzero(shared).tolist()
    if leaks:
        rows = sorted({row for found in leaks.values() for row in found})
        ways = listed(f"{len(found):,} by {name}" for name, found in leaks.items())
        yield Observation(
            title=f"{len(rows):,} of {plural(held_out.rows, 'eval row')} belong to conversations that are "
            f"also in training ({some(rows)})",
            message=f"Found: {ways} ({percent(len(rows) / held_out.rows)} of the eval set).",
            rows=rows,
            of_eval=True,
            values={name: len(found) for name, found in leaks.items()},
            fix=Fix(text="split the data by conversation, not by row", safe=False),
        )
