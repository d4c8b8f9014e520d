"""docs/report.md explains what a report shows, under the names that the report uses."""

from __future__ import annotations

import re
from pathlib import Path

from gradian.report.content import HTML, Facts, Table
from gradian.report.model import Cause, Confidence, Outcome
from gradian.report.sections import CAUSES, FORCED, PARTIAL, SMOKE_TEST, WHY, sections
from support.reports import MECHANICAL

PAGE = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")


def test_every_section_has_its_heading() -> None:
    titles = [section.title for section in sections(MECHANICAL, HTML)]
    headings = [line.removeprefix("## ") for line in PAGE.splitlines() if line.startswith("## ")]
    expected = [f"{number}. {title}" for number, title in enumerate(titles, start=1)]
    assert [heading for heading in headings if heading[0].isdigit()] == ["1. The verdict", *expected[1:]]


def test_every_measured_thing_is_explained() -> None:
    blocks = [block for section in sections(MECHANICAL, HTML) for block in section.blocks]
    facts = [block for block in blocks if isinstance(block, Facts) and not block.compact]
    (groups,) = [block for block in blocks if isinstance(block, Table) and block.name == "groups"]
    names = [fact.name for block in facts for fact in block.facts] + [
        column.name for column in groups.columns
    ]
    explained = re.findall(r"^\| ([^|]+) \|", PAGE, re.MULTILINE)
    cells = {word.strip() for cell in explained for word in cell.split(",")} | set(explained)
    assert set(names) - cells == {"Capability", "group", "harm, 95% interval"}


def test_every_outcome_cause_and_stamp_has_its_words() -> None:
    assert set(CAUSES) == {cause.value for cause in Cause}
    assert set(WHY) == {confidence.value for confidence in Confidence}
    for outcome in Outcome:
        assert outcome.value.replace("_", " ") in PAGE
    for words in CAUSES.values():
        assert words.split(" (")[0] in PAGE
    for stamp in (SMOKE_TEST, FORCED, PARTIAL):
        assert f"**{stamp.split(':')[0]}**" in PAGE
