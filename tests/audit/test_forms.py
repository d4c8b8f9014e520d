"""The outer form of answers, worked by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.audit.forms import (
    FORMS,
    form_of,
    json_body,
    json_error,
    missing_closers,
    normalised,
    open_form,
    sentence_end,
    trailing_prose,
)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("The harbour closes at nine.", "prose"),
        ('{"a": 1}', "json"),
        ('```json\n{"a": 1}\n```', "json"),
        ("<think>\nhm\n</think>\n\n[1, 2]", "json"),
        ('{"a": 1', "broken json"),
        ("{'a': 1}", "broken json"),
        ('{"a": 1}\n{"a": 2}', "json"),
        ("42", "number"),
        ("-3.5 %", "number"),
        ("$1,200", "number"),
        ("positive", "label"),
        ("very negative", "label"),
        ("```python\nprint(1)\n```", "code"),
        ("- one\n- two", "list"),
        ("1. one\n2. two", "list"),
        ("<answer>yes</answer>", "tagged"),
        ("[1] Smith, a note on harbours.", "prose"),
        ("[INST] do it [/INST]", "label"),
        ("{name}, welcome aboard the old ferry!", "prose"),
        ("", "empty"),
        ("  \n", "empty"),
        ("<think>only thinking</think>", "empty"),
    ],
)
def test_form(text: str, form: str) -> None:
    assert form_of(text) == form


@pytest.mark.parametrize(
    ("text", "closers"),
    [
        ('{"a": [1, {"b": "x', '"}]}'),
        ('{"a": 1}', ""),
        ('{"a": "}"', "}"),
        ('{"a": "\\""', "}"),
        ('{"a": 1]', None),
        ("]", None),
    ],
)
def test_missing_closers(text: str, closers: str | None) -> None:
    assert missing_closers(text) == closers
    if closers:
        json.loads(text + closers)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{\n  "invoice": 4822,\n  "total', "JSON that does not close"),
        ('```json\n{"a": 1', "JSON that does not close"),
        ('Here you are:\n```python\nprint("x")\n', "an open code fence"),
        ("It was late (and the harbour", "an open bracket"),
        ("Take def f(x): return g(x", "an open bracket"),
        ("She said “come", "an open quotation"),
        ('{"a": 1}', None),
        ("Here you are:\n```python\nprint(1)\n```\nDone.", None),
        ("All well :( but fine", None),
        ("<order><id>4", "an open tag"),
        ('<order kind="a"><id>4</id></order>', None),
        ("<think>only thinking", None),  # data.unbalanced_tags
        ("<br>A line", None),
        ("See a) and b) for this", None),
        ("It closes (at nine).", None),
        ("plain words", None),
        ("A tuple (1, 2", None),  # a number at the end may be the end
        ('{"a": 1}<|im_end|>', None),
        ("", None),
    ],
)
def test_open_form(text: str, kind: str | None) -> None:
    assert open_form(text) == kind


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("The harbour closes at nine in the evening today.", True),
        ("The harbour closes at nine in the evening and", False),
        ("The harbour closes at nine in the evening toda", False),
        ("The harbour closes at nine in the evening today.<|im_end|>", True),
        ("The harbour closes at nine in the evening today 🙂", True),
        ("The harbour is described on the page https://example.org/harbour", True),
        ("The sum of all the harbour fees is 1,200", True),
        ("One of the items is this one:\n- the last one", True),
        ("too short to say", None),
        ("positive", None),
        ('{"a": "b c d e f g h i j"}', None),
        ("港は夜九時に閉まります。 a b c d e f g h", False),
    ],
)
def test_sentence_end(text: str, ends: bool | None) -> None:
    assert sentence_end(text) is ends


@pytest.mark.parametrize(("text", "body"), [('{"a": 1} and more', True), ('{"a": 1}', False), ("{", False)])
def test_trailing_prose(text: str, body: bool) -> None:
    assert trailing_prose(text) is body


def test_json_body_takes_off_reasoning_and_fence() -> None:
    assert json_body("<think>x</think>\n```json\n[1]\n```") == "[1]"
    assert json_body("no json") is None


def test_deep_nesting_is_no_crash() -> None:
    deep = "[" * 100_000
    assert json_error(deep) is not None
    assert form_of(deep) == "broken json"
    assert open_form(deep) == "JSON that does not close"


@given(
    st.dictionaries(
        st.text(max_size=8), st.integers() | st.text(max_size=8) | st.none(), min_size=1, max_size=5
    )
)
def test_valid_json_never_stops_in_the_middle_and_every_cut_does(value: dict[str, object]) -> None:
    text = json.dumps(value)
    assert form_of(text) == "json"
    assert open_form(text) is None
    for cut in range(2, len(text)):
        if json_body(text[:cut]) is not None and json_error(text[:cut]) is not None:
            assert open_form(text[:cut]) == "JSON that does not close"


@given(st.text())
def test_any_text_has_a_form(text: str) -> None:
    assert form_of(text) in FORMS
    open_form(text)
    sentence_end(text)


@given(st.text())
def test_normalising_twice_changes_nothing_more(text: str) -> None:
    once = normalised(text)
    assert " ".join(once.split()) == once


def test_normalised_is_blind_to_case_and_white_space() -> None:
    assert normalised(" Straße\tﬁne\n") == normalised("STRASSE  fine")
