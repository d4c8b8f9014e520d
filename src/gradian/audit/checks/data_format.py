"""The form of the answers: do they keep to the one that most of them have?"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.facts import DatasetFacts, Hit, Hits, RowView
from gradian.audit.finding import Fix, Severity
from gradian.audit.forms import (
    FORM_CODE,
    FORMS,
    json_body,
    json_error,
    missing_closers,
    parsed_json,
    trailing_prose,
)
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import ending, excerpt, listed, percent, plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


def _answered(facts: DatasetFacts) -> int:
    return int((facts.readable & (facts.form != FORM_CODE["empty"])).sum())


def json_share(facts: DatasetFacts) -> float:
    """Share of the answers that start like JSON, whether they parse or not, in [0, 1]."""
    codes = (FORM_CODE["json"], FORM_CODE["broken json"])
    return float(np.isin(facts.form, codes).sum()) / max(1, _answered(facts))


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
    if len(prose) > context.threshold("data.json_unparseable.prose_share") * _answered(facts):
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
        title=f"{len(rows):,} of {plural(_answered(facts), 'JSON answer')} do not parse ({some(rows)})",
        message=f"Row {first}: {reasons[first][1]}; it ends: {ending(bodies[first])}",
        rows=rows,
        of=_answered(facts),
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


_PAIRED = (
    "think",
    "thinking",
    "reasoning",
    "thought",
    "answer",
    "solution",
    "scratchpad",
    "tool_call",
    "plan",
)
_TAGS = re.compile(rf"<(/?)({'|'.join(_PAIRED)})>")


def find_unbalanced_tags(view: RowView) -> Hit | None:
    """A reasoning or answer tag that is opened and not closed, or the reverse."""
    if "<" not in view.answer:
        return None
    balance: Counter[str] = Counter()
    for slash, tag in _TAGS.findall(view.answer):
        balance[tag] += -1 if slash else 1
    for tag in _PAIRED:
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


MAX_LABELS = 50


@check(
    "data.label_imbalance",
    title="Labels that occur very unevenly",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    thresholds={"top_share": 0.90, "rare_rows": 5, "label_share": 0.02},
    explain="""
The answers are labels (at most 50 different ones, and no more than 2 % of the number of rows). A label that
makes up more than 90 % of them is a good answer to everything: always saying it is the baseline to beat. A
label with fewer than five rows is hard to learn, and often a misspelling of another.

**Severity.** Warning for one dominant label, or a rare label that is spelt like a frequent one; info for
other rare labels.
""",
)
def label_imbalance(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    labels = facts.answers.counts
    total = sum(labels.values())
    short = context.threshold("data.label_imbalance.label_share") * facts.rows
    if (
        facts.answers.overflow
        or not 2 <= len(labels) <= min(MAX_LABELS, short)
        or total < 0.95 * _answered(facts)
    ):
        return
    order = sorted(labels.items(), key=lambda item: (-item[1], facts.answers.first[item[0]]))
    top, times = order[0]
    share = times / total
    limit = context.threshold("data.label_imbalance.top_share")
    counts = dict(order[:20])
    if share > limit:
        yield Observation(
            title=f"{percent(share)} of the answers are {excerpt(top, 40)!r}",
            message=f"Always answering {excerpt(top, 40)!r} scores {percent(share)}.",
            count=times,
            of=total,
            values={"labels": counts, "top_share": share, "threshold": limit},
            fix=Fix(
                text=f"take fewer rows with {excerpt(top, 40)!r}, or judge against {percent(share)}",
                safe=False,
            ),
        )
    rare = [label for label, count in order if count < context.threshold("data.label_imbalance.rare_rows")]
    if rare:
        frequent = [label for label, count in order if label not in rare]
        typos = {
            label: near[0] for label in rare if (near := difflib.get_close_matches(label, frequent, 1, 0.8))
        }
        wrong = [f"{label!r} -> {typos[label]!r}" for label in sorted(typos)]
        yield Observation(
            title=f"{plural(len(rare), 'label')} with fewer than 5 rows: "
            f"{listed(repr(label) for label in rare[:5])}",
            severity=Severity.WARNING if typos else Severity.INFO,
            rows=[facts.answers.first[label] for label in rare],
            count=sum(labels[label] for label in rare),
            values={"labels": counts, "misspelt": typos},
            row_level=bool(typos),
            fix=Fix(text=f"rename {listed(wrong[:5])}", safe=False) if typos else None,
        )


_SCRIPT_WORD = re.compile(
    r"^(LATIN|GREEK|CYRILLIC|ARABIC|HEBREW|DEVANAGARI|THAI|HANGUL|HIRAGANA|KATAKANA|CJK|\w+)"
)


def script_of(text: str, limit: int = 400) -> str | None:
    """The script of most letters in the first characters of a text; None without letters."""
    if text.isascii():
        return "latin" if any(character.isalpha() for character in text[:limit]) else None
    scripts: Counter[str] = Counter()
    for character in text[:limit]:
        if character.isalpha():
            word = _SCRIPT_WORD.match(unicodedata.name(character, "UNKNOWN"))
            name = word.group(1) if word else "UNKNOWN"
            scripts["cjk" if name in ("CJK", "HIRAGANA", "KATAKANA") else name.lower()] += 1
    return max(scripts.items(), key=lambda item: (item[1], item[0]))[0] if scripts else None


def find_script(view: RowView) -> Hit | None:
    """The scripts of prompt and answer, when one of them is not Latin."""
    if view.answer.isascii() and view.prompt.isascii():
        return None
    answer, prompt = script_of(view.answer), script_of(view.prompt)
    if answer is None or (answer == "latin" and prompt in (None, "latin")):
        return None
    return Hit(f"{prompt or answer} -> {answer}")


@check(
    "data.language_mix",
    title="Answers in another script",
    severity=Severity.INFO,
    needs=(Need.ROWS,),
    scan=find_script,
    thresholds={"rare_share": 0.05, "differing_share": 0.20},
    explain="""
A few answers (under 5 %) are written in another script than the rest, or at least 20 % of the answers are in
another script than their prompts. Translation data is meant to be so; otherwise the model may change its
language.
""",
)
def language_mix(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    total = _answered(facts)
    answers: Counter[str] = Counter()
    for kind, rows in hits.kinds.items():
        answers[kind.partition(" -> ")[2]] += len(rows)
    answers["latin"] += total - sum(answers.values())
    rare_limit = context.threshold("data.language_mix.rare_share") * total
    rare = {script for script, count in answers.items() if 0 < count < rare_limit}
    differing = sorted(
        row for kind, rows in hits.kinds.items() if len(set(kind.split(" -> "))) == 2 for row in rows
    )
    rare_rows = sorted(
        row for kind, rows in hits.kinds.items() if kind.partition(" -> ")[2] in rare for row in rows
    )
    values = {"answers": dict(sorted(answers.items())), "differing": len(differing)}
    if rare_rows and total >= 20:
        yield Observation(
            title=f"{plural(len(rare_rows), 'answer')} of {total:,} in another script: "
            f"{listed(sorted(rare))} ({some(rare_rows)})",
            rows=rare_rows,
            of=total,
            values=values,
        )
    if len(differing) >= context.threshold("data.language_mix.differing_share") * total > 0:
        yield Observation(
            title=f"{len(differing):,} of {plural(total, 'answer')} are in another script than their prompt",
            rows=differing,
            of=total,
            values=values,
        )
