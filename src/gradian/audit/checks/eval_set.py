"""The eval set itself: can it be read, is it large enough, does it look like the training set?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.checks.data_duplicates import equal_groups
from gradian.audit.checks.data_length import truncated
from gradian.audit.facts import DatasetFacts
from gradian.audit.finding import Fix, Severity
from gradian.audit.forms import FORM_CODE, FORMS
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.wording import excerpt, percent, plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


@check(
    "eval.none",
    title="No evaluation during training",
    severity=Severity.INFO,
    needs=(Need.LOGS,),
    explain="""
The log holds no eval metric, so that nobody saw whether held-out quality rose or fell while the training loss
went down. About half of the public runs have none.

**Fix.** Keep a part of the rows for evaluation (`val_set_size 0 -> 0.05`, `eval_strategy steps`).
""",
)
def none(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    assert run.logs is not None
    if run.logs.kind == "rl":
        raise NotApplicableError("an RL run")
    if run.logs.eval_names():
        return
    axolotl = context.profile.trainer == "axolotl"
    yield Observation(
        title="No eval metric was logged",
        message=f"{plural(len(run.logs.train), 'training step')} were logged.",
        values={"epochs": run.logs.epoch},
        locations=[run.logs.file],
        fix=Fix.change("val_set_size", 0, 0.05) if axolotl else Fix.change("eval_strategy", "no", "steps"),
    )


@check(
    "eval.unreadable",
    title="Eval records that cannot be read",
    severity=Severity.ERROR,
    needs=(Need.EVAL_ROWS,),
    explain="""
Lines of the eval file are no JSON objects, or make no conversation. They cannot be judged.

**Fix.** Repair or remove the lines named.
""",
)
def unreadable(context: AuditContext) -> Iterator[Observation]:
    facts = context.eval
    assert facts is not None
    rows = sorted(
        [problem.row for problem in facts.problems] + [row for f in facts.unusable for row in f.rows]
    )
    if rows:
        why = facts.problems[0].why if facts.problems else facts.unusable[0].message
        yield Observation(
            title=f"{len(rows):,} of {plural(facts.rows, 'eval record')} cannot be read ({some(rows)})",
            message=f"{excerpt(why, 200)}.",
            rows=rows,
            of_eval=True,
            fix=Fix(text=f"repair or remove {some(rows)} of {facts.path}", safe=False),
        )


@check(
    "eval.no_answer",
    title="Eval items without a wanted answer",
    severity=Severity.WARNING,
    needs=(Need.EVAL_ROWS,),
    explain="""
The item has no answer to compare with, so that every model fails it, before and after tuning alike, and the
score is lower than it should be.

**Fix.** Add the answers, or remove the items.
""",
)
def no_answer(context: AuditContext) -> Iterator[Observation]:
    facts = context.eval
    assert facts is not None
    rows = np.flatnonzero(facts.readable & (facts.form == FORM_CODE["empty"])).tolist()
    if rows:
        yield Observation(
            title=f"{len(rows):,} of {plural(facts.rows, 'eval item')} have no wanted answer ({some(rows)})",
            rows=rows,
            of_eval=True,
            fix=Fix(text=f"add the answers of {some(rows)}, or remove the items", safe=False),
        )


@check(
    "eval.too_small",
    title="Few eval items",
    severity=Severity.INFO,
    needs=(Need.EVAL_ROWS,),
    thresholds={"items": 50},
    explain="""
With few items a score is little more than chance: the half-width of a 95 % interval for an accuracy around
one half is `0.98 / sqrt(n)`, which is 20 points for 24 items and 14 for 50.
""",
)
def too_small(context: AuditContext) -> Iterator[Observation]:
    facts = context.eval
    assert facts is not None
    limit = context.threshold("eval.too_small.items")
    if facts.rows < limit:
        half = 98 / math.sqrt(facts.rows)
        yield Observation(
            title=f"{plural(facts.rows, 'eval item')}: an accuracy near one half is known to +-{half:.0f} "
            "points",
            count=facts.rows,
            of=facts.rows,
            values={"items": facts.rows, "half_width_points": half, "threshold": limit},
        )


@check(
    "eval.duplicates",
    title="Eval items that occur more than once",
    severity=Severity.WARNING,
    needs=(Need.EVAL_ROWS,),
    thresholds={"warning_share": 0.01},
    explain="""
The same item counts several times in the score, and the intervals are too narrow. Warning above 1 % surplus.

**Fix.** Keep the first of each group.
""",
)
def duplicates(context: AuditContext) -> Iterator[Observation]:
    facts = context.eval
    assert facts is not None
    groups = equal_groups(facts.pair_hash, np.flatnonzero(facts.readable))
    surplus = sum(len(group) - 1 for group in groups)
    limit = context.threshold("eval.duplicates.warning_share")
    if surplus:
        rows = [row for group in groups for row in group]
        yield Observation(
            title=f"{len(rows):,} of {plural(facts.rows, 'eval item')} are equal to another "
            f"({some(groups[0])})",
            severity=Severity.WARNING if surplus > limit * facts.rows else Severity.INFO,
            rows=rows,
            of_eval=True,
            values={
                "surplus": surplus,
                "groups": [group[:20] for group in groups[:20]],
                "warning_share": limit,
            },
            fix=Fix(
                text=f"keep the first of each group: {facts.rows:,} -> {facts.rows - surplus:,} items",
                safe=False,
            ),
        )


@check(
    "eval.truncated",
    title="Eval rows cut by the length limit",
    severity=Severity.WARNING,
    needs=(Need.EVAL_TOKENS, Need.RUN),
    thresholds={"error_share": 0.01},
    explain="""
Eval rows are longer than the trainer's length limit: their answers are cut, and a row without any target
makes the eval loss NaN.

**Fix.** Raise the limit to the value named.

Source: huggingface/trl#1053.
""",
)
def eval_truncated(context: AuditContext) -> Iterator[Observation]:
    assert context.eval is not None
    yield from truncated(context, context.eval, "eval.truncated", of_eval=True)


@check(
    "eval.distribution_shift",
    title="The eval set looks unlike the training set",
    severity=Severity.INFO,
    needs=(Need.ROWS, Need.EVAL_ROWS),
    thresholds={"length_ratio": 2, "system_points": 20, "minimum_items": 10},
    explain="""
Answers of half or twice the length (medians), a system text in one set and not in the other (20 points
apart), or another usual form (JSON here, prose there). A capability that the rows do not train may well be
what is to be judged; then nothing is wrong.
""",
)
def distribution_shift(context: AuditContext) -> Iterator[Observation]:
    train, held_out = context.dataset, context.eval
    assert train is not None
    assert held_out is not None
    if min(train.usable, held_out.usable) < context.threshold("eval.distribution_shift.minimum_items"):
        return
    differences = []
    values: dict[str, object] = {}
    here, there = _median_answer(train), _median_answer(held_out)
    ratio = max(here, there) / max(1.0, min(here, there))
    if ratio > context.threshold("eval.distribution_shift.length_ratio"):
        differences.append(f"answers of {there:,.0f} characters (median) instead of {here:,.0f}")
        values["answer_characters"] = {"train": here, "eval": there}
    shares = [float(f.system[f.readable].mean()) for f in (train, held_out)]
    if abs(shares[0] - shares[1]) * 100 > context.threshold("eval.distribution_shift.system_points"):
        differences.append(
            f"a system text in {percent(shares[1])} instead of {percent(shares[0])} of the rows"
        )
        values["system_share"] = {"train": shares[0], "eval": shares[1]}
    forms = [_usual_form(f) for f in (train, held_out)]
    if forms[0] != forms[1] and "" not in forms:
        differences.append(f"{forms[1]} instead of {forms[0]} answers")
        values["form"] = {"train": forms[0], "eval": forms[1]}
    if differences:
        yield Observation(
            title=f"The eval set has {'; '.join(differences)}",
            count=held_out.usable,
            of=held_out.rows,
            values=values,
        )


def _median_answer(facts: DatasetFacts) -> float:
    return float(np.median(facts.answer_chars[facts.readable]))


def _usual_form(facts: DatasetFacts) -> str:
    """The form of at least 80 % of the answers; empty when there is none."""
    codes, counts = np.unique(facts.form[facts.readable], return_counts=True)
    top = int(counts.argmax())
    return FORMS[int(codes[top])] if counts[top] >= 0.8 * counts.sum() else ""
