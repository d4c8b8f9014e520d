"""What a report says, in order, without a medium: sections of blocks.

Terminal, Markdown and HTML are three ways to print the same blocks, so none of them can say more or less than
the others. Strings are as they came (hostile); each medium makes them safe with `gradian.report.text`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradian.report.numbers import count

Tone = Literal["plain", "bad", "good", "warning", "muted"]


@dataclass(frozen=True)
class Caps:
    """How much of each list one medium shows; what is left out is counted and report.json has it.

    `infos`: findings that are no fault are listed too. `finding_values`: with all their numbers. `configuration`: the
    resolved settings, which also lie beside the report as gradian.yaml.
    """

    items: int
    groups: int
    rows: int
    helpful_rows: int
    findings: int
    detailed_groups: int
    locations: int
    item_characters: int
    row_characters: int
    infos: bool = True
    finding_values: bool = True
    configuration: bool = True


TERMINAL = Caps(
    items=5, groups=8, rows=10, helpful_rows=3, findings=6, detailed_groups=3, locations=3,
    item_characters=400, row_characters=200, infos=False, finding_values=False, configuration=False,
)  # fmt: skip
MARKDOWN = Caps(
    items=20, groups=30, rows=50, helpful_rows=10, findings=40, detailed_groups=10, locations=5,
    item_characters=1_500, row_characters=160,
)  # fmt: skip
HTML = Caps(
    items=60, groups=60, rows=400, helpful_rows=25, findings=100, detailed_groups=20, locations=8,
    item_characters=1_200, row_characters=240,
)  # fmt: skip


@dataclass(frozen=True)
class Prose:
    """One paragraph. `lead` is the verdict's own, which every medium prints first and verbatim."""

    text: str
    tone: Tone = "plain"
    lead: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list; `numbered` where the order is a ranking, `compact` where a terminal may join the entries."""

    heading: str
    entries: tuple[str, ...]
    numbered: bool = False
    compact: bool = False


@dataclass(frozen=True)
class Fact:
    """One measured thing: its name, its value, and what the value rests on."""

    name: str
    value: str
    note: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True)
class Facts:
    """Named values; `compact` where a terminal may print them one after the other."""

    heading: str
    facts: tuple[Fact, ...]
    compact: bool = False


@dataclass(frozen=True)
class Column:
    """A table's column.

    Attributes:
        rank: in a narrow medium the columns with the highest rank are left out first; rank 0 always stays.
        flexible: takes the room that the others leave. least: its least width in a terminal, in cells.
        code: text to be set as code. keep_end: cut at the front (paths). limit: most characters shown.
    """

    name: str
    numeric: bool = False
    rank: int = 0
    flexible: bool = False
    least: int = 36
    code: bool = False
    keep_end: bool = False
    limit: int = 300


@dataclass(frozen=True)
class Cell:
    """A cell's text, what it sorts by (None: the text), and its tone."""

    text: str
    sort: float | None = None
    tone: Tone = "plain"


@dataclass(frozen=True)
class Table:
    """A table with a caption; `left_out` says what it does not show and where that is. `name` is its id.

    A `small` table needs no caption in a terminal: its first column's name says what it counts.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: str = ""
    filterable: bool = False
    small: bool = False


@dataclass(frozen=True)
class Note:
    """An audit finding: what, the evidence for it, and what to do."""

    severity: Literal["error", "warning", "info"]
    id: str
    title: str
    evidence: str
    fix: str


@dataclass(frozen=True)
class Notes:
    """Audit findings, the worst first."""

    notes: tuple[Note, ...]
    left_out: str = ""


@dataclass(frozen=True)
class Comparison:
    """One eval item: what was asked and wanted, and what both models said."""

    where: str
    scores: str
    prompt: str
    wanted: str
    base_said: str
    tuned_said: str


@dataclass(frozen=True)
class Comparisons:
    """Eval items side by side."""

    comparisons: tuple[Comparison, ...]
    characters: int
    left_out: str = ""


@dataclass(frozen=True)
class Step:
    """Something to do, with the commands that do it."""

    text: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Steps:
    """What to try, in order."""

    steps: tuple[Step, ...]


Block = Prose | Bullets | Facts | Table | Notes | Comparisons | Steps


@dataclass(frozen=True)
class Section:
    """A heading (also the anchor `id`) and its blocks."""

    id: str
    title: str
    blocks: tuple[Block, ...]


def left_out(total: int, shown: int, noun: str) -> str:
    """`12 more lost items are in report.json.`, or nothing when all are shown."""
    more = total - shown
    if more <= 0:
        return ""
    return f"{count(more, f'more {noun}')} {'is' if more == 1 else 'are'} in report.json."
