"""JSON answers: do they parse, and do they have the same keys?"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.facts import DatasetFacts, Hit, Hits, RowView
from gradian.audit.finding import Fix, Severity
from gradian.audit.forms import (
    FORM_CODE,
    json_body,
    json_error,
    missing_closers,
    parsed_json,
    trailing_prose,
)
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import ending, listed, plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


def answered_rows(facts: DatasetFacts) -> int:
    """Number of rows that have an answer."""
    return int((facts.readable & (facts.form != FORM_CODE["empty"])).sum())


def json_share(facts: DatasetFacts) -> float:
    """Share of the answers that start like JSON, whether they parse or not, in [0, 1]."""
    codes = (FORM_CODE["json"], FORM_CODE["broken json"])
    return float(np.isin(facts.form, codes).sum()) / max(1, answered_rows(facts))


@check(
    "data.json_unparseable",
    title="JSON answers that do not parse",
    severity=Severity.ERROR,
    needs=(Need.ROWS,),
    thresholds={"json_share": 0.80, "prose_share": 0.20},
    row_level=True,
    explain="""
At least 80 % of the answers are JSON (a code fence or a reasoning block around it does not matter), and these
do not parse: the model is taught to write JSON that fails.

**Avoided:** one JSON value per line; text after the JSON when more than 20 % of the answers have it.

**Fix.** Repair the rows; where only closing brackets are missing the evidence names them.
""",
)
def json_unparseable(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    if json_share(facts) < context.threshold("data.json_unparseable.json_share"):
        return
    broken = set(np.flatnonzero(facts.form == FORM_CODE["broken json"]).tolist())
    texts = facts.texts_of(broken)
    bodies = {row: json_body(answer) or "" for row, (_, answer) in sorted(texts.items())}
    prose = {row for row, body in bodies.items() if trailing_prose(body)}
    if len(prose) > context.threshold("data.json_unparseable.prose_share") * answered_rows(facts):
        bodies = {row: body for row, body in bodies.items() if row not in prose}
    rows = sorted(bodies)
    if not rows:
        return
    reasons = {row: _json_reason(bodies[row]) for row in rows}
    kinds = Counter(kind for kind, _ in reasons.values())
    first = rows[0]
    closers = missing_closers(bodies[first])
    repair = f"; append {closers!r} to row {first}" if closers else ""
    yield Observation(
        title=f"{len(rows):,} of {plural(answered_rows(facts), 'JSON answer')} do not parse ({some(rows)})",
        message=f"Row {first}: {reasons[first][1]}; it ends: {ending(bodies[first])}",
        rows=rows,
        of=answered_rows(facts),
        values={
            "kinds": dict(sorted(kinds.items())),
            "reasons": {str(row): reasons[row][1] for row in rows[:20]},
            "json_share": json_share(facts),
        },
        fix=Fix(text=f"repair or remove {some(rows)}{repair}", safe=False, remove_rows=tuple(rows)),
    )


def _json_reason(body: str) -> tuple[str, str]:
    if re.match(r"^[{\[]\s*'", body):
        return ("single quotes", "written with single quotes, as Python prints a dict")
    if trailing_prose(body):
        return ("text after the JSON", "there is text after the JSON value")
    error = json_error(body)
    reason, position = error if error is not None else ("", 0)
    if missing_closers(body):
        return ("not closed", f"it does not close ({reason} at character {position})")
    return ("syntax", f"{reason} at character {position}")


def find_json_keys(view: RowView) -> Hit | None:
    """The keys of a JSON object answer."""
    value = parsed_json(view.answer)
    return Hit("\x00".join(sorted(map(str, value)))) if isinstance(value, dict) and value else None


@check(
    "data.json_keys_drift",
    title="JSON answers with other keys than most",
    severity=Severity.INFO,
    needs=(Need.ROWS,),
    scan=find_json_keys,
    thresholds={"dominant_share": 0.80, "minimum_rows": 20},
    row_level=True,
    explain="""
At least 80 % of the JSON answers have the same keys, and these differ. Optional keys are usual, so this is
info; it is a warning when a key only differs in spelling from the usual one (`Total` for `total`,
`invoice_no` for `invoice_number`), since then the model learns to mix both.

**Fix.** Rename the keys as the evidence says.
""",
)
def json_keys_drift(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    total = sum(len(rows) for rows in hits.kinds.values())
    if total < context.threshold("data.json_keys_drift.minimum_rows"):
        return
    usual, rows_with = max(hits.kinds.items(), key=lambda item: (len(item[1]), item[0]))
    share = len(rows_with) / total
    if share < context.threshold("data.json_keys_drift.dominant_share") or len(hits.kinds) == 1:
        return
    wanted = set(usual.split("\x00"))
    others = sorted(
        ((kind, rows) for kind, rows in hits.kinds.items() if kind != usual), key=lambda item: item[1][0]
    )
    renamed: dict[str, str] = {}
    for kind, _ in others:
        renamed.update(_respelled(set(kind.split("\x00")), wanted))
    rows = sorted(row for _, found in others for row in found)
    names = [f"{old!r} for {new!r}" for old, new in sorted(renamed.items())[:5]]
    yield Observation(
        title=f"{len(rows):,} of {plural(total, 'JSON answer')} have other keys than the rest ({some(rows)})",
        severity=Severity.WARNING if renamed else Severity.INFO,
        message=f"Usual keys: {listed(sorted(wanted))}."
        + (
            f" Other spellings: {listed(names)}."
            if names
            else f" Row {others[0][1][0]} has: {listed(sorted(others[0][0].split(chr(0))))}."
        ),
        rows=rows,
        of=total,
        values={
            "usual_keys": sorted(wanted),
            "usual_share": share,
            "respelled": dict(sorted(renamed.items())),
        },
        fix=Fix(
            text=f"rename {listed(f'{old!r} -> {new!r}' for old, new in sorted(renamed.items())[:5])}",
            safe=False,
        )
        if renamed
        else None,
    )


def _respelled(keys: set[str], wanted: set[str]) -> dict[str, str]:
    """Keys that stand for a missing usual one under another spelling."""
    missing = sorted(wanted - keys)
    found: dict[str, str] = {}
    for key in sorted(keys - wanted):
        folded = {re.sub(r"[\W_]+", "", name).casefold(): name for name in missing}
        plain = re.sub(r"[\W_]+", "", key).casefold()
        near = (
            [folded[plain]] if plain in folded else difflib.get_close_matches(key, missing, n=1, cutoff=0.8)
        )
        if near:
            found[key] = near[0]
    return found
