"""Answers that are labels, and answers in another script."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradian.audit.facts import Hit, Hits, RowView
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import excerpt, listed, percent, plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext

from gradian.audit.checks.data_json import answered_rows

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
        or total < 0.95 * answered_rows(facts)
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
    total = answered_rows(facts)
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
