"""Rows that say the same, and rows that contradict one another."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradian.audit import near
from gradian.audit.facts import DatasetFacts
from gradian.audit.finding import Fix, Severity
from gradian.audit.forms import normalised
from gradian.audit.registry import Need, Observation, check
from gradian.audit.shingles import frame_of, jaccard
from gradian.audit.wording import excerpt, percent, plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext

_NO_PUNCTUATION = re.compile(r"[^\w]+")


def loose(text: str) -> str:
    """Normalised, and without punctuation."""
    return _NO_PUNCTUATION.sub(" ", normalised(text)).strip()


def equal_groups(hashes: NDArray[np.uint64], rows: NDArray[np.int64]) -> list[list[int]]:
    """The groups of at least two rows with one hash, each ascending, the largest first, ties by first row."""
    order = np.argsort(hashes[rows], kind="stable")
    ordered = hashes[rows][order]
    edges = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]]))
    groups = [
        rows[order[start:stop]].tolist()
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        if stop - start > 1
    ]
    return sorted(groups, key=lambda group: (-len(group), group[0]))


def _filled(facts: DatasetFacts) -> NDArray[np.int64]:
    return np.flatnonzero(facts.readable & (facts.answer_chars > 0))


@check(
    "data.duplicate_rows",
    title="Rows that occur more than once",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    thresholds={"error_share": 0.20, "warning_share": 0.01, "repetition_share": 0.90},
    row_level=True,
    explain="""
The same prompt with the same answer stands in the file more than once (after Unicode normalisation, without
regard to case and white space). Every copy is another epoch over that row: repeated rows are memorised and
weigh more than they should.

**Severity.** By the surplus, the rows that could go: error from 20 %, warning from 1 %, else info. When more
than 90 % of the rows occur equally often the file repeats the whole set, which is info: count it as epochs.

**Fix.** Keep the first row of each group.

Source: Lee et al. 2022, "Deduplicating training data makes language models better", arXiv 2107.06499.
""",
)
def duplicate_rows(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    groups = equal_groups(facts.pair_hash, _filled(facts))
    if not groups:
        return
    surplus = sum(len(group) - 1 for group in groups)
    rows = [row for group in groups for row in group]
    share = surplus / facts.rows
    error = context.threshold("data.duplicate_rows.error_share")
    warning = context.threshold("data.duplicate_rows.warning_share")
    fold, times = Counter(len(group) for group in groups).most_common(1)[0]
    repeated = fold * times > context.threshold("data.duplicate_rows.repetition_share") * facts.usable
    severity = Severity.ERROR if share >= error else Severity.WARNING if share >= warning else Severity.INFO
    kept = facts.rows - surplus
    yield Observation(
        title=f"{len(rows):,} rows in {plural(len(groups), 'group')} of equal rows, {surplus:,} too many "
        f"({some(groups[0])})",
        severity=Severity.INFO if repeated else severity,
        message=f"The whole set looks repeated {fold} times: count it as epochs."
        if repeated
        else f"The largest group has {len(groups[0]):,} rows.",
        rows=rows,
        count=len(rows),
        values={
            "surplus": surplus,
            "surplus_share": share,
            "groups": [group[:20] for group in groups[:20]],
            "warning_share": warning,
            "error_share": error,
        },
        fix=None
        if repeated
        else Fix(
            text=f"keep the first of each group: {facts.rows:,} -> {kept:,} rows",
            safe=False,
            remove_rows=tuple(sorted(row for group in groups for row in group[1:])),
        ),
    )


@check(
    "data.near_duplicate_rows",
    title="Rows that are nearly the same",
    severity=Severity.INFO,
    needs=(Need.ROWS,),
    thresholds={"similarity": 0.80, "warning_share": 0.10},
    explain="""
Rows that share at least 80 % of their character 5-shingles (Jaccard) and whose answers are alike: small edits
of one another. What a template wrote around the rows does not count, and rows under 60 characters are only
compared exactly.

**Severity.** Info; warning when 10 % of the rows or more are in such groups.

**How.** MinHash candidates (112 values, 14 bands of 8, found with probability 0.92 at a similarity of 0.8),
each verified by the true similarity.

Source: Lee et al. 2022, arXiv 2107.06499.
""",
)
def near_duplicate_rows(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    threshold = context.threshold("data.near_duplicate_rows.similarity")
    _, first = np.unique(facts.pair_hash, return_index=True)
    distinct = np.zeros(facts.rows, dtype=bool)
    distinct[first] = True
    distinct &= facts.readable & (facts.prompt_chars + facts.answer_chars >= near.MIN_CHARACTERS)
    if distinct.sum() < 2:
        return
    frame = frame_of(
        [f"{normalised(view.prompt)} {normalised(view.answer)}" for view in facts.sample], near.FRAME_SHARE
    )
    table = near.BandTable(near.DUPLICATE_BAND, frame)
    table.add(
        (row, f"{normalised(prompt)} {normalised(answer)}")
        for row, prompt, answer in facts.texts()
        if distinct[row]
    )
    candidates = near.within(table)
    pairs = _alike(facts, candidates.pairs, frame, threshold)
    groups = near.clusters(pairs)
    if not groups:
        return
    rows = [row for group in groups for row in group]
    share = len(rows) / facts.rows
    warning = context.threshold("data.near_duplicate_rows.warning_share")
    best = max(pairs, key=lambda pair: (pair.similarity, -pair.left, -pair.right))
    yield Observation(
        title=f"{plural(len(rows), 'row')} of {facts.rows:,} in {plural(len(groups), 'group')} are nearly "
        f"the same ({some(groups[0])})",
        severity=Severity.WARNING if share >= warning else Severity.INFO,
        message=f"Rows {best.left} and {best.right} share {percent(best.similarity)} of their text."
        + (" There are more candidates than were compared." if candidates.capped else ""),
        rows=rows,
        values={
            "groups": [group[:20] for group in groups[:20]],
            "similarity": threshold,
            "highest": best.similarity,
            "candidates_capped": candidates.capped,
            "share": share,
            "warning_share": warning,
        },
        fix=Fix(
            text=f"keep one of each group: {facts.rows:,} -> {facts.rows - len(rows) + len(groups):,} rows",
            safe=False,
        ),
    )


def _alike(
    facts: DatasetFacts, candidates: list[tuple[int, int]], frame: NDArray[np.uint64], threshold: float
) -> list[near.Pair]:
    """The candidates that are alike as a whole and in their answers: one passage with five questions is no
    copy."""
    texts = facts.texts_of({row for pair in candidates for row in pair})
    whole = near.shingle_sets(
        {row: f"{normalised(prompt)} {normalised(answer)}" for row, (prompt, answer) in texts.items()}, frame
    )
    pairs = near.verified(candidates, whole, whole, threshold)
    answers = near.shingle_sets(
        {row: normalised(texts[row][1]) for pair in pairs for row in (pair.left, pair.right)},
        np.empty(0, np.uint64),
    )
    return [
        pair
        for pair in pairs
        if facts.answer_hash[pair.left] == facts.answer_hash[pair.right]
        or jaccard(answers[pair.left], answers[pair.right]) >= ANSWERS_ALIKE
    ]


#: Answers of near copies may differ in a sentence; below this they are different answers to similar
#: questions.
ANSWERS_ALIKE = 0.6
LABEL_WORDS = 3
#: Two answers that share this part of their words' stems say the same in other words ...
SAME_WORDS = 0.4
#: ... unless they agree word for word but for one place, which then says something else.
SAME_SENTENCE = 0.7


def contradiction(left: str, right: str) -> str | None:
    """How two answers to one prompt contradict each other, by their words: `label` (one to three words each),
    `one place` (the same sentence but for a word or a number), `different` (hardly a word in common); None
    when they are the same but for punctuation, or say much the same in other words."""
    a, b = loose(left).split(), loose(right).split()
    if a == b:
        return None
    if max(len(a), len(b)) <= LABEL_WORDS:
        return "label"
    if difflib.SequenceMatcher(None, a[:200], b[:200], autojunk=False).ratio() >= SAME_SENTENCE:
        return "one place"
    stems, others = ({word[:3] for word in words if len(word) >= 3} for words in (a, b))
    shared = len(stems & others) / max(1, min(len(stems), len(others)))
    return None if shared >= SAME_WORDS else "different"


@check(
    "data.conflicting_answers",
    title="One prompt with different answers",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    thresholds={"warning_share": 0.005},
    row_level=True,
    explain="""
The same prompt (with its system text and history) stands in the file with different answers. For short
answers the model can only learn a coin toss; for long ones, an average.

**Severity.** Warning when 0.5 % of the prompts or more have answers that contradict each other: labels or
numbers, the same sentence but for one place, or hardly a word in common; for labels and numbers a single
prompt is enough. Info when the answers say much the same in other words, and for data that samples several
answers for most prompts on purpose (four or more each). Answers that only differ in punctuation are not
counted.

**Fix.** Keep one answer, or add the context that tells the rows apart.
""",
)
def conflicting_answers(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    asked = np.flatnonzero(facts.readable & (facts.prompt_chars > 0) & (facts.answer_chars > 0))
    groups = [
        group
        for group in equal_groups(facts.prompt_hash, asked)
        if len(set(facts.answer_hash[group].tolist())) > 1
    ]
    texts = facts.texts_of({row for group in groups for row in group})
    groups = [group for group in groups if len({loose(texts[row][1]) for row in group}) > 1]
    if not groups:
        return
    kinds = [(group, _worst(group, texts)) for group in groups]
    conflicts = [(group, kind) for group, kind in kinds if kind is not None]
    labels = [(group, kind) for group, kind in conflicts if kind[0] == "label"]
    prompts = len(np.unique(facts.prompt_hash[asked]))
    share = len(conflicts) / prompts
    sampled = len(groups) > 0.5 * prompts and float(np.median([len(group) for group in groups])) >= 4
    warning = context.threshold("data.conflicting_answers.warning_share")
    severe = (share >= warning or bool(labels)) and not sampled
    shown = [group for group, _ in conflicts] if severe else groups
    rows = [row for group in shown for row in group]
    first, kind = next(iter(labels or conflicts or kinds))
    a, b = kind[1:] if kind is not None else (first[0], first[-1])
    yield Observation(
        title=f"{plural(len(shown), 'prompt')} of {prompts:,} have different answers ({some(first)})",
        severity=Severity.WARNING if severe else Severity.INFO,
        message=f"{excerpt(texts[a][0], 60)!r} -> row {a}: {excerpt(texts[a][1], 60)!r}, "
        f"row {b}: {excerpt(texts[b][1], 60)!r}."
        + (" Most prompts have several answers: this looks like sampling on purpose." if sampled else ""),
        rows=rows,
        row_level=severe,
        values={
            "prompts_with_several_answers": len(groups),
            "contradicting": len(conflicts),
            "labels_or_numbers": len(labels),
            "share": share,
            "warning_share": warning,
            "groups": [group[:20] for group in shown[:20]],
        },
        fix=Fix(
            text=f"keep one answer for each prompt ({some(rows)}), or add what tells them apart", safe=False
        )
        if severe
        else None,
    )


def _worst(group: list[int], texts: dict[int, tuple[str, str]]) -> tuple[str, int, int] | None:
    """The first contradiction in a group, with its two rows; each answer is held against the first row's."""
    for row in group[1:]:
        kind = contradiction(texts[group[0]][1], texts[row][1])
        if kind is not None:
            return kind, group[0], row
    return None
