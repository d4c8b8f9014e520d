"""The eval file: what is an item, and what is refused with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradian.errors import InputError
from gradian.evaluation.items import check_wanted, read_items
from gradian.evaluation.metrics import get_metric

Write = Callable[..., Path]


def chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


GOOD = chat(("user", "2 + 2?"), ("assistant", "4"))


def test_every_shape_with_a_prompt_is_an_item(write_items: Write) -> None:
    rows = [
        chat(("system", "Be short."), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")),
        {"prompt": "The capital is", "completion": " Oslo"},
        {"question": "why", "answer": "because"},
        {"instruction": "add", "input": "1 1", "output": "2"},
    ]
    path = write_items(rows)
    items = read_items(path).items
    assert [item.wanted for item in items] == ["d", " Oslo", "because", "2"]
    assert [item.item for item in items] == [0, 1, 2, 3]
    assert items[0].prompt == "Be short.\na\nb\nc"
    assert items[2].where == f"{path}:3"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (chat(("user", "a")), "no answer"),
        (chat(("user", "a"), ("assistant", "b"), ("user", "c")), "ends in a user turn"),
        (chat(("user", "a"), ("assistant", "  ")), "empty answer"),
        (chat(("assistant", "a")), "no prompt"),
        ({"prompt": " ", "completion": "x"}, "no prompt"),
        ({"text": "all in one"}, "plain text"),
        ({"foo": "bar"}, "plain text"),
    ],
)
def test_what_is_no_item_is_named_with_its_line(write_items: Write, row: dict[str, Any], why: str) -> None:
    path = write_items([GOOD, row, GOOD, row, row])
    with pytest.raises(InputError) as caught:
        read_items(path)
    assert caught.value.where == f"{path}:2"
    assert why in caught.value.what
    assert "2 more items" in caught.value.what


def test_a_line_that_cannot_be_read_is_an_error_not_a_smaller_file(tmp_path: Path) -> None:
    path = tmp_path / "eval.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "a", \n')
    with pytest.raises(InputError, match=r"eval\.jsonl:2"):
        read_items(path)


@pytest.mark.parametrize("make", [lambda p: p / "missing.jsonl", lambda p: p])
def test_paths_that_hold_no_items(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with pytest.raises(InputError):
        read_items(make(tmp_path))


def test_repeated_prompts_are_counted_and_named(write_items: Write) -> None:
    other = chat(("user", "3 + 3?"), ("assistant", "6"))
    found = read_items(write_items([GOOD, other, GOOD, GOOD]))
    assert found.repeated_prompts == 2
    assert len(found.items) == 4
    assert "eval.jsonl:3 repeats" in found.notes[0]
    assert read_items(write_items([GOOD, other])).notes == ()


def test_the_same_prompt_under_another_system_turn_is_another_prompt(write_items: Write) -> None:
    system = chat(("system", "Be brief."), ("user", "2 + 2?"), ("assistant", "4"))
    assert read_items(write_items([GOOD, system])).repeated_prompts == 0


def test_wanted_answers_that_the_metric_cannot_score(write_items: Write) -> None:
    rows = [chat(("user", "a"), ("assistant", wanted)) for wanted in ('{"a": 1}', "no json", "{", '{"b": 2}')]
    path = write_items(rows)
    with pytest.raises(InputError) as caught:
        check_wanted(read_items(path).items, get_metric("json_fields").refuses, "json_fields")
    assert caught.value.where == f"{path}:2"
    assert "1 more item " in caught.value.what
