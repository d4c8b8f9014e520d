"""The examples of docs/rows.md are read as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gradian.rows.row import Row
from gradian.rows.shapes import conversation_of, shape_of

DOCS = Path(__file__).parents[2] / "docs" / "rows.md"


def test_the_examples_have_the_shapes_that_the_page_says() -> None:
    found = re.findall(
        r"^\| (`?[\w+ ]+`?)[^|]*\| `(\{.*\})` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(found) == 8
    for name, example in found:
        fields = json.loads(example)
        assert shape_of(fields).value == name.strip("` "), example
        assert conversation_of(Row(0, "x.jsonl", 1, fields)).shape is shape_of(fields)
