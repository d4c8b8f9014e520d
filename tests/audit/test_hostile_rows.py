"""Whatever a row holds, the audit ends with a result or one clear error, never with a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradian.audit.output import FORMATS, render
from gradian.errors import GradianError
from support.auditing import TRL, audited, chat, pair, sound_rows

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "tool", "bot", "", "CUSTOMER"]) | VALUES,
        "content": st.text(max_size=40) | VALUES,
        "tool_calls": VALUES,
        "name": VALUES,
        "thinking": VALUES,
    },
)
RECORD = st.one_of(
    st.dictionaries(st.text(max_size=8), VALUES, max_size=4),
    st.fixed_dictionaries(
        {"messages": st.lists(MESSAGE, max_size=4) | VALUES}, optional={"tools": VALUES, "system": VALUES}
    ),
    st.fixed_dictionaries({"prompt": VALUES, "completion": VALUES}, optional={"cluster": VALUES}),
    st.fixed_dictionaries({"text": VALUES}),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(RECORD, min_size=1, max_size=6), items=st.lists(RECORD, min_size=1, max_size=3))
def test_any_records(tmp_path: Path, rows: list[dict[str, Any]], items: list[dict[str, Any]]) -> None:
    try:
        result = audited(tmp_path, [*rows, pair("a", "b")], eval_rows=[*items, pair("c", "d")])
    except GradianError as error:
        pytest.fail(f"rows that can be read beside others are no reason to stop: {error}")
    assert result.rows == len(rows) + 1
    for format in FORMATS:
        render(result, format).encode()
    for finding in result.findings:
        assert all(0 <= row < (len(items) if finding.of_eval else len(rows)) + 1 for row in finding.rows)
        assert finding.rows == tuple(sorted(set(finding.rows)))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line and b"\r" not in line), max_size=6)
)
def test_any_bytes(tmp_path: Path, lines: list[bytes]) -> None:
    result = audited(tmp_path, [pair("a", "b"), *lines])
    assert result.rows is not None
    render(result).encode()


LONG = {
    "arrays": "[" * 50_000,
    "objects": "{" * 50_000,
    "brackets": "(" * 50_000,
    "tags": "<think>" * 20_000,
    "fences": "```\n" * 20_000,
    "spaces": " " * 200_000,
    "mojibake": "Ã©" * 50_000,
    "words": "a " * 100_000,
    "breaks": "\n" * 100_000,
    "stops": "<|im_end|>" * 10_000,
    "items": "a)" * 50_000,
    "digits": "9" * 20_000,
    "bullets": "- x\n" * 30_000,
    "letters": "x" * 200_000,
    "openers": "<" * 100_000,
    "stop openers": "<|" * 50_000 + ">",
    "spaced stops": "</s> " * 20_000 + "x>",
    "quotes": '"' * 100_000,
    "escapes": "\\" * 100_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_long_hostile_answers_take_no_long_time(tmp_path: Path, text: str) -> None:
    """Each of these would hang an expression that backtracks; the limit is far above what is needed."""
    import time

    start = time.perf_counter()
    audited(tmp_path, [*sound_rows(3), pair("Go?", text), chat(text, text)], tokenizer=None)
    assert time.perf_counter() - start < 10


def test_a_huge_number_of_kinds_is_bounded_in_the_report(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": f"r{i}", "content": "x"}, {"role": "assistant", "content": "y."}]}
        for i in range(300)
    ]
    result = audited(tmp_path, rows, tokenizer=None, profile=TRL)
    assert len(render(result)) < 20_000
    found = next(finding for finding in result.findings if finding.id == "data.unknown_role")
    assert len(json.dumps(found.values)) < 2_000
