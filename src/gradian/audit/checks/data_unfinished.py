"""Answers that stop in the middle, seen by their form alone: the fault is in the rows, whatever the trainer
does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.checks.data_json import json_share
from gradian.audit.facts import Hit, Hits, RowView
from gradian.audit.finding import Fix, Severity
from gradian.audit.forms import FORM_CODE, ends_properly, open_form, sentence_end, without_stop
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import listed, plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.audit.facts import DatasetFacts

_JSON = "JSON that does not close"
_FENCE = "an open code fence"
_TAG = "an open tag"
_CERTAIN = (_JSON, _FENCE, _TAG)
_LIKELY = ("an open bracket", "an open quotation")
_NO_END = "no end of sentence"
_END = "end of sentence"
_WIDTH = "a cut at"

#: Prose answers that are needed before one without an end can be called unusual.
SIBLINGS = 20
#: Share of the answers that begin with a tag, above which leaving it open is the usual way.
TAGGED_OPEN = 0.5


def find_unfinished(view: RowView) -> Hit | None:
    """How the answer breaks off, or whether its prose has an end."""
    kind = open_form(view.answer)
    if kind is None:
        end = sentence_end(view.answer)
        if end is None:
            return None
        return Hit(_END if end else _NO_END)
    return Hit(kind, view.answer.rstrip()[-40:])


@check(
    "data.unfinished_completion",
    title="Answers that stop in the middle",
    severity=Severity.ERROR,
    needs=(Need.ROWS,),
    scan=find_unfinished,
    thresholds={"error_share": 0.01, "sibling_share": 0.90, "json_share": 0.80},
    row_level=True,
    explain="""
The answer in the file is cut off: JSON whose brackets do not close, a code fence or a tag that stays open, an
open bracket or quotation at the end, prose that ends in mid-sentence while at least 90 % of the other answers
end properly, or several answers of exactly the same greatest length without an end. Usually an export cut the
field. Training on such rows teaches the model to stop there, and for JSON to write objects that no parser
reads; a few dozen rows are enough.

This is about the rows themselves. Rows that the *trainer* cuts are `data.truncated_completion`; where at
least 80 % of all answers are JSON, broken ones are `data.json_unparseable`.

**Severity.** Error when JSON or code is cut in 1 % of the rows or more (`error_share`), warning below and for
the weaker signs, info for a single weak sign.

**Fix.** Export the column again without the limit, or remove the rows named.
""",
)
def unfinished_completion(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    kinds = _unfinished(context, facts, hits)
    rows = sorted(row for found in kinds.values() for row in found)
    if not rows:
        return
    certain = sum(len(kinds.get(kind, ())) for kind in _CERTAIN)
    share = len(rows) / facts.rows
    error = context.threshold("data.unfinished_completion.error_share")
    if certain / facts.rows >= error:
        severity = Severity.ERROR
    elif certain or len(rows) >= 3:
        severity = Severity.WARNING
    else:
        severity = Severity.INFO
    counts = {
        kind: len(found) for kind, found in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    }
    faulty = set(rows)
    ends = [f"row {row} ends: {hit.detail!r}" for row, hit in hits.samples if row in faulty][:2]
    kinds_text = listed(f"{kind} in {plural(count, 'row')}" for kind, count in counts.items())
    length, pile = _pile_up(facts, rows)
    width = any(kind.startswith(_WIDTH) for kind in kinds)
    yield Observation(
        title=f"{len(rows):,} of {plural(facts.rows, 'answer')} stop in the middle ({some(rows)})",
        severity=severity,
        message=f"{_capital(kinds_text)}."
        + (f" {_capital('; '.join(ends))}." if ends else "")
        + (
            f" {pile} of them have exactly {length:,} characters: a field limit."
            if pile and not width
            else ""
        ),
        rows=rows,
        values={"kinds": counts, "share": share, "error_share": error, "same_length": pile or None},
        fix=Fix(
            text=f"export the answers again without cutting them, or remove {plural(len(rows), 'row')} "
            f"({some(rows)})",
            safe=False,
            remove_rows=tuple(rows),
        ),
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _unfinished(context: AuditContext, facts: DatasetFacts, hits: Hits) -> dict[str, list[int]]:
    """Kind -> rows, without what another check reports and without ends that are usual here."""
    kinds = {kind: rows for kind, rows in hits.kinds.items() if kind not in (_END, _NO_END)}
    if json_share(facts) >= context.threshold("data.unfinished_completion.json_share"):
        kinds.pop(_JSON, None)  # data.json_unparseable
    tagged = int((facts.form == FORM_CODE["tagged"]).sum())
    if _TAG in kinds and len(kinds[_TAG]) > TAGGED_OPEN * tagged:
        kinds.pop(_TAG)  # tags that are never closed are a notation of their own
    ended, open_ended = len(hits.kinds.get(_END, ())), hits.kinds.get(_NO_END, [])
    likely = sum(len(kinds.get(kind, ())) for kind in _LIKELY)
    siblings = ended + len(open_ended) + likely
    usual = (
        siblings >= SIBLINGS
        and ended >= context.threshold("data.unfinished_completion.sibling_share") * siblings
    )
    if usual and open_ended:
        kinds[_NO_END] = open_ended
    if not usual:
        # Without siblings that end properly an unmatched bracket is a habit of the data, not a cut.
        for kind in _LIKELY:
            kinds.pop(kind, None)
    known = {row for found in kinds.values() for row in found}
    width, cut = cut_at_width(facts)
    if rest := [row for row in cut if row not in known]:
        kinds[f"{_WIDTH} {width:,} characters"] = rest
    return kinds


#: A pile of answers at the greatest length is a field's limit when there are so many of them, so much more
#: than of the lengths before, and so many of them without an end.
PILE_ROWS = 3
PILE_TIMES = 3
PILE_OPEN = 0.8
PILE_LENGTH = 40
PILE_FRAGMENTS = 0.3


def cut_at_width(facts: DatasetFacts) -> tuple[int, list[int]]:
    """The greatest answer length and the rows that were cut there: several answers have exactly this length,
    hardly any a little less, most of them do not end properly and many in a piece of a word. (0, []) where
    not."""
    lengths = facts.answer_chars[facts.readable]
    width = int(lengths.max(initial=0))
    at_width = np.flatnonzero(facts.readable & (facts.answer_chars == width))
    before = max(int((lengths == width - step).sum()) for step in (1, 2, 3))
    piled = len(at_width) >= max(PILE_ROWS, PILE_TIMES * before) and width >= PILE_LENGTH
    if not piled or len(at_width) > 0.5 * len(lengths):
        return 0, []
    there = set(at_width.tolist())
    cut: dict[int, str] = {}
    words: set[str] = set()
    for row, _, answer in facts.texts():
        spoken = answer.split()
        if row in there and spoken and not ends_properly(without_stop(answer)):
            cut[row] = spoken.pop().casefold()
        words.update(word.strip(".,;:!?\"'()").casefold() for word in spoken)
    # Answers of one template also have one length, but they end in words that occur elsewhere.
    fragments = sum(word not in words for word in cut.values())
    if len(cut) < max(PILE_ROWS, PILE_OPEN * len(at_width)) or fragments < max(2, PILE_FRAGMENTS * len(cut)):
        return 0, []
    return width, sorted(cut)


def _pile_up(facts: DatasetFacts, rows: list[int]) -> tuple[int, int]:
    """The answer length that most of these rows share, and how many do; 0 when fewer than three and half
    do."""
    length, times = Counter(facts.answer_chars[rows].tolist()).most_common(1)[0]
    return (int(length), times) if times >= 3 and times >= len(rows) / 2 and length >= 40 else (0, 0)
