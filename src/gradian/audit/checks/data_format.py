"""The form of the answers: do they keep to the one that most of them have?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.facts import Hit, Hits, RowView
from gradian.audit.finding import Fix, Severity
from gradian.audit.forms import (
    FORM_CODE,
    FORMS,
    PAIRED_TAGS,
)
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import excerpt, listed, percent, plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


#: Forms that a program expects; prose among lists or lists among prose are no fault.
_STRICT = ("json", "code", "number", "tagged")


@check(
    "data.format_inconsistent",
    title="Answers that leave the usual form",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    thresholds={"low_share": 0.80, "high_share": 0.995, "minimum_rows": 20},
    row_level=True,
    explain="""
80 to 99.5 % of the answers have one strict form (JSON, a number, a code fence, a tag such as `<answer>`) and
the rest have another. A program that reads the answers fails on what the model learns from the rest.

Prose with some lists, or short labels with some sentences, is not reported.

**Fix.** Bring the rows named into the usual form, or remove them.
""",
)
def format_inconsistent(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    answered = facts.readable & (facts.form != FORM_CODE["empty"])
    codes, counts = np.unique(facts.form[answered], return_counts=True)
    by_form = {FORMS[code]: count for code, count in zip(codes.tolist(), counts.tolist(), strict=True)}
    total = sum(by_form.values())
    if total < context.threshold("data.format_inconsistent.minimum_rows"):
        return
    broken = by_form.pop("broken json", 0)  # data.json_unparseable and data.unfinished_completion
    form, count = max(by_form.items(), key=lambda item: (item[1], item[0]), default=("prose", 0))
    share = (count + (broken if form == "json" else 0)) / total
    low = context.threshold("data.format_inconsistent.low_share")
    high = context.threshold("data.format_inconsistent.high_share")
    if form not in _STRICT or not low <= share < high:
        return
    usual = [FORM_CODE[form], FORM_CODE["broken json"]]
    rows = np.flatnonzero(answered & ~np.isin(facts.form, usual)).tolist()
    if not rows:
        return
    others = {name: number for name, number in sorted(by_form.items()) if name != form}
    sample = facts.texts_of({rows[0]})[rows[0]][1]
    yield Observation(
        title=f"{len(rows):,} of {plural(total, 'answer')} are no {form}, as {percent(share)} are "
        f"({some(rows)})",
        message=f"They are {listed(f'{name} ({number:,})' for name, number in others.items())}. "
        f"Row {rows[0]}: {excerpt(sample)!r}.",
        rows=rows,
        of=total,
        values={"form": form, "share": share, "forms": others, "low_share": low, "high_share": high},
        fix=Fix(text=f"bring {plural(len(rows), 'answer')} into the form of the others ({form})", safe=False),
    )


_TAGS = re.compile(rf"<(/?)({'|'.join(PAIRED_TAGS)})>")


def find_unbalanced_tags(view: RowView) -> Hit | None:
    """A reasoning or answer tag that is opened and not closed, or the reverse."""
    if "<" not in view.answer:
        return None
    balance: Counter[str] = Counter()
    for slash, tag in _TAGS.findall(view.answer):
        balance[tag] += -1 if slash else 1
    for tag in PAIRED_TAGS:
        if balance[tag]:
            return Hit(f"<{tag}> without </{tag}>" if balance[tag] > 0 else f"</{tag}> without <{tag}>")
    return Hit("balanced") if balance else None


@check(
    "data.unbalanced_tags",
    title="Tags that are not closed",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    scan=find_unbalanced_tags,
    thresholds={"usual_share": 0.80},
    row_level=True,
    explain="""
An answer opens `<think>`, `<answer>`, `<tool_call>` or the like and does not close it, or closes what was not
opened. What reads the answers, and templates that strip reasoning, rely on both.

When 80 % of the rows with tags lack the same one, the template or the prompt writes it, and this is info.
""",
)
def unbalanced_tags(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    balanced = len(hits.kinds.get("balanced", ()))
    kinds = {kind: rows for kind, rows in hits.kinds.items() if kind != "balanced"}
    if not kinds:
        return
    kind, rows_with = max(kinds.items(), key=lambda item: (len(item[1]), item[0]))
    rows = sorted(row for found in kinds.values() for row in found)
    tagged = balanced + len(rows)
    usual = len(rows_with) >= context.threshold("data.unbalanced_tags.usual_share") * tagged and tagged >= 5
    yield Observation(
        title=f"{len(rows):,} of {plural(tagged, 'answer')} with tags do not match them up ({some(rows)})",
        severity=Severity.INFO if usual else Severity.WARNING,
        message=f"Most frequent: {kind} ({plural(len(rows_with), 'row')}).",
        rows=rows,
        of=tagged,
        row_level=not usual,
        values={name: len(found) for name, found in sorted(kinds.items())},
        fix=None if usual else Fix(text=f"close the tags of {some(rows)}, or remove the rows", safe=False),
    )
