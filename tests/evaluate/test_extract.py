"""Where the answer is in a text: JSON values and numbers, in hostile text too."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.evaluation.extract import MAX_JSON_DEPTH, first_json, numbers, parse_json, whole_json

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
CONTAINERS = JSON_VALUES.filter(lambda value: isinstance(value, (dict, list)))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('Sure! ```json\n{"a": 1}\n``` Done.', '{"a": 1}'),
        ('{"a": "}{]["} tail', '{"a": "}{]["}'),
        (r'{"a": "\"}"} tail', r'{"a": "\"}"}'),
        ('{"a": {"b": [1, 2]}} {"c": 3}', '{"a": {"b": [1, 2]}}'),
        ("[1, 2] and more", "[1, 2]"),
        ('[Answer]: {"a": 1}', '{"a": 1}'),
        ('[see](https://x) {"a": 1}', '{"a": 1}'),
    ],
)
def test_first_json_value(text: str, part: str) -> None:
    found = first_json(text)
    assert found is not None
    assert (found.text, found.fault) == (part, None)
    assert found.value == json.loads(part)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"a": {"b": 1}', "never closed"),  # not the inner object: it was cut off
        ('{"a": "x', "inside a string"),
        ('{"a": 1]', "wrong closing bracket"),
        ("{'a': 1}", "not JSON"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1,}', "not JSON"),
        ('{bad} {"a": 1}', "not JSON"),  # the first object decides
        ('[{"a": 1},]', "not JSON"),
        ("{" * 100_000, "never closed"),
        ("[" * 100_000 + "]" * 100_000, "nested deeper"),
        ('{"a":' * 300 + "1" + "}" * 300, "nested deeper"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),  # more digits than Python converts
    ],
)
def test_broken_json_is_named(text: str, fault: str) -> None:
    found = first_json(text)
    assert found is not None
    assert found.value is None
    assert fault in (found.fault or "")


@pytest.mark.parametrize("text", ["", "no json here", "} ] )", "a: b"])
def test_no_json(text: str) -> None:
    assert first_json(text) is None


def test_depth_at_the_limit_is_read() -> None:
    found = first_json("[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH)
    assert found is not None
    assert found.fault is None


@given(CONTAINERS, st.text(alphabet=st.characters(exclude_characters='{}[]"'), max_size=20))
def test_json_is_found_in_prose(value: object, prose: str) -> None:
    found = first_json(f"{prose}\n```json\n{json.dumps(value, indent=1)}\n```\n{prose}")
    assert found is not None
    assert found.fault is None
    assert found.value == value


@given(st.text(alphabet='{}[]",:\\1a ', max_size=60))
def test_any_text_is_survived(text: str) -> None:
    found = first_json(text)
    if found is None:
        assert not set(text) & set("{[")
    else:
        assert found.text in text
        assert (found.fault is None) == (
            found.text.count("{") + found.text.count("[") > 0 and _parses(found.text)
        )


def _parses(text: str) -> bool:
    return parse_json(text)[1] is None


def test_whole_json_wants_nothing_else() -> None:
    assert whole_json(' {"a": 1}\n') == {"a": 1}
    assert whole_json('{"a": 1} ok') is None
    assert whole_json("3") is None
    assert whole_json('{"a": 1') is None


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("The answer is 25.", ["25"]),
        ("1,234.50 dollars", ["1234.50"]),
        ("-5 and +3", ["-5", "3"]),
        ("−7", ["-7"]),  # the typographic minus
        ("10-5", ["10", "5"]),
        ("x-5", ["5"]),
        ("1,2,3", ["1", "2", "3"]),
        ("1,2345", ["1", "2345"]),
        (".5 or 1e3", ["0.5", "1000"]),
        ("60%", ["0.6"]),
        ("60 %", ["0.6"]),
        (r"\boxed{42}", ["42"]),
        ("no number", []),
        ("2020-01-02", ["2020", "01", "02"]),
    ],
)
def test_numbers(text: str, values: list[str]) -> None:
    assert [value for _, value in numbers(text)] == [Decimal(value) for value in values]


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**12), max_value=10**12))
def test_a_written_number_is_read_back(value: Decimal) -> None:
    assert [found for _, found in numbers(f"it is {value:,f} now")] == [value]
    assert [found for _, found in numbers(f"it is {value:f} now")] == [value]
