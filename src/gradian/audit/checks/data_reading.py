"""Can the rows be read, and are they all written in one form?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.facts import SHAPES
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import excerpt, listed, plural, some
from gradian.rows.row import RowProblem, Shape

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


@check(
    "data.parse_error",
    title="Lines that cannot be read",
    severity=Severity.ERROR,
    needs=(Need.ROWS,),
    row_level=True,
    explain="""
A line of the file is no JSON object: the JSON is broken or cut off, the bytes are not UTF-8, or the line
holds a `NaN`, which JSON does not know. Loaders stop at the first such line, or fill it with nulls, or leave
it out.

**Fix.** Repair or remove the lines named. A byte-order mark at the start and blank lines at the end are no
fault and are not reported.
""",
)
def parse_error(context: AuditContext) -> Iterator[Observation]:
    assert context.dataset is not None
    problems = context.dataset.problems
    if not problems:
        return
    rows = [problem.row for problem in problems]
    first = problems[0]
    at = f" at byte {first.byte_offset:,}" if first.byte_offset is not None else ""
    yield Observation(
        title=f"{plural(len(rows), 'record')} of {context.dataset.rows:,} cannot be read ({some(rows)})",
        message=f"{first.where}{at}: {excerpt(first.why, 200)}.",
        rows=rows,
        values={
            "problems": [
                {"where": problem.where, "why": problem.why, "byte_offset": problem.byte_offset}
                for problem in problems[:20]
            ]
        },
        fix=Fix(text=f"repair or remove {listed(_wheres(problems))}", safe=False, remove_rows=tuple(rows)),
    )


def _wheres(problems: tuple[RowProblem, ...]) -> list[str]:
    named = [problem.where for problem in problems[:3]]
    return named if len(problems) <= 3 else [*named, f"{len(problems) - 3} more"]


@check(
    "data.unusable_row",
    title="Rows that make no conversation",
    severity=Severity.ERROR,
    needs=(Need.ROWS,),
    row_level=True,
    explain="""
The record was read, but its fields cannot be a training row: `messages` is no list, a message has no role, a
completion is neither text nor messages. Trainers stop there, or write the Python form of the value into the
prompt.

**Fix.** Mend or remove the rows named; the evidence says what was found instead.
""",
)
def unusable_row(context: AuditContext) -> Iterator[Observation]:
    assert context.dataset is not None
    failures = context.dataset.unusable
    if not failures:
        return
    rows = sorted(row for failure in failures for row in failure.rows)
    reasons = [f"{excerpt(failure.message, 120)} ({some(failure.rows)})" for failure in failures[:3]]
    more = f"; {len(failures) - 3} more kinds" if len(failures) > 3 else ""
    yield Observation(
        title=f"{plural(len(rows), 'row')} of {context.dataset.rows:,} cannot be read as a conversation",
        message=f"{'; '.join(reasons)}{more}.",
        rows=rows,
        values={"reasons": {failure.message: len(failure.rows) for failure in failures[:20]}},
        fix=Fix(text=f"mend or remove {some(rows)}", safe=False, remove_rows=tuple(rows)),
    )


@check(
    "data.unknown_shape",
    title="Rows of no known form, taken as raw text",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    row_level=True,
    explain="""
The row has none of the columns that trainers know (`messages`, `prompt` + `completion`, `instruction` +
`output`, `question` + `answer`, `input` + `output`, `text`). Gradian takes its texts as raw text with a loss
on every token; a trainer would need a mapping that the run folder does not show.

**Fix.** Rename the columns, for instance to `prompt` and `completion`.
""",
)
def unknown_shape(context: AuditContext) -> Iterator[Observation]:
    assert context.dataset is not None
    raw = np.flatnonzero(context.dataset.readable & (context.dataset.shape == SHAPES.index(Shape.RAW)))
    if len(raw):
        rows = raw.tolist()
        yield Observation(
            title=f"{plural(len(rows), 'row')} of {context.dataset.rows:,} have no column that trainers know",
            message=f"{some(rows)} {'is' if len(rows) == 1 else 'are'} taken as raw text.",
            rows=rows,
            fix=Fix(text="rename the columns to `prompt` and `completion`, or to `messages`", safe=False),
        )


@check(
    "data.mixed_shapes",
    title="Rows of different forms in one file",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    row_level=True,
    explain="""
The rows are written in more than one form. TRL looks at the **first row only** to decide how to treat all of
them (`next(iter(dataset))` in `SFTTrainer`), and `datasets` fills the missing columns with nulls; the other
rows are then rendered wrongly or stop the run.

**Fix.** Convert the rare rows to the common form. Optional columns (`system`, `tools`, an empty `input`) do
not make a form of their own.
""",
)
def mixed_shapes(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    codes, first, counts = np.unique(facts.shape[facts.readable], return_index=True, return_counts=True)
    if len(codes) < 2:
        return
    usable = np.flatnonzero(facts.readable)
    order = sorted(range(len(codes)), key=lambda i: (-int(counts[i]), int(first[i])))
    dominant = int(codes[order[0]])
    rows = np.flatnonzero(facts.readable & (facts.shape != dominant)).tolist()
    leading = int(facts.shape[usable[0]])
    forms = [
        f"{int(counts[i]):,} are {SHAPES[int(codes[i])].value} (first: {facts.where(int(usable[first[i]]))})"
        for i in order
    ]
    trl = context.profile.trainer in ("trl", "unsloth")
    disagreeing = int((facts.shape[facts.readable] != leading).sum())
    yield Observation(
        title=f"{plural(len(codes), 'form')} of rows in one file: {len(rows):,} of {facts.usable:,} differ",
        severity=Severity.ERROR if trl else Severity.WARNING,
        message=f"{listed(forms)}."
        + (
            f" The first row decides for all of them: {disagreeing:,} rows are treated as "
            f"{SHAPES[leading].value} and are not."
            if trl
            else ""
        ),
        rows=rows,
        values={SHAPES[int(codes[i])].value: int(counts[i]) for i in order},
        assumes="the trainer decides the form from the first row" if trl else None,
        fix=Fix(text=f"convert {plural(len(rows), 'row')} to {SHAPES[dominant].value}", safe=False),
    )
