"""The part of a generated text that is the answer: a JSON value, a number. Never fails on hostile text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

# Deeper JSON is refused before it is parsed, so that no parser and no comparison can run out of stack.
MAX_JSON_DEPTH = 200

_CLOSES = {"{": "}", "[": "]"}
# What moves the scan of a JSON value: strings (skipped as a whole), brackets, and an unfinished string.
_JSON_MARKS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]|"', re.DOTALL)
_OPENING = re.compile(r"[{\[]")

_NUMBER = re.compile(
    r"""(?P<sign>(?<![\w.])[-+])?         # no sign after a word or a number: `10-5` holds 10 and 5
        (?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?   # 1,234.5
                  |[0-9]+(?:\.[0-9]+)?                              # 1234.5
                  |(?<![0-9])\.[0-9]+)                              # .5
        (?P<exponent>[eE][-+]?[0-9]{1,3}(?![0-9]))?
        (?P<percent>\s?%)?""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class JsonValue:
    """The first JSON value of a text.

    Attributes:
        text: from its opening bracket to its closing one; to the end of the text when it is never closed.
        value: what it parses to; None when it does not.
        fault: why it does not parse, one clause; None when it does.
    """

    text: str
    value: Any
    fault: str | None


def first_json(text: str) -> JsonValue | None:
    """The first JSON object or array of the text, whatever stands around it; None when there is none.

    The first balanced `{...}` or `[...]` decides. A bracket that is never closed is a cut-off value, and
    nothing inside it is looked at: `{"a": {"b": 1}` is not `{"b": 1}`. Only square brackets that hold no JSON
    are passed over when a later value exists, since prose has them too (`[Answer]`, a link).
    """
    passed_over: JsonValue | None = None
    for found in _json_values(text):
        if found.fault is None or found.text[0] == "{":
            return found
        passed_over = passed_over or found
    return passed_over


def _json_values(text: str) -> Iterator[JsonValue]:
    """The outermost bracketed parts of the text, from left to right; the last may be cut off."""
    opening = _OPENING.search(text)
    while opening is not None:
        start = opening.start()
        end, fault = _balanced_end(text, start)
        if end is None:
            yield JsonValue(text[start:], None, fault)
            return
        part = text[start:end]
        value, fault = parse_json(part) if fault is None else (None, fault)
        yield JsonValue(part, value, fault)
        opening = _OPENING.search(text, end)


def _balanced_end(text: str, start: int) -> tuple[int | None, str | None]:
    """Index after the bracket that closes the one at `start`, and what is already known to be wrong.

    Brackets inside strings do not count. A wrong closing bracket ends the value there.
    """
    open_brackets: list[str] = []
    deepest = 0
    for mark in _JSON_MARKS.finditer(text, start):
        bracket = mark.group()
        if bracket in _CLOSES:
            open_brackets.append(_CLOSES[bracket])
            deepest = max(deepest, len(open_brackets))
        elif bracket == '"':
            return None, "the JSON stops inside a string"
        elif bracket in "}]":
            if open_brackets.pop() != bracket:
                return mark.end(), f"the JSON has a wrong closing bracket {bracket!r}"
            if not open_brackets:
                too_deep = f"the JSON is nested deeper than {MAX_JSON_DEPTH} levels"
                return mark.end(), too_deep if deepest > MAX_JSON_DEPTH else None
    return None, "the JSON is never closed"


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def parse_json(text: str) -> tuple[Any, str | None]:
    """The parsed value and None, or None and why the text is not strict JSON (RFC 8259; no NaN, no Infinity).

    Of a key that is given twice the last value counts, as with most parsers.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant), None
    except json.JSONDecodeError as error:
        return None, f"not JSON: {error.msg} at character {error.pos}"
    except RecursionError:
        return None, f"the JSON is nested deeper than {MAX_JSON_DEPTH} levels"
    except ValueError as error:  # a constant, or an integer with more digits than Python converts
        return None, f"not JSON: {error}"


def whole_json(text: str) -> Any | None:
    """The value of a text that is one JSON object or array and nothing else; None for any other text."""
    text = text.strip()
    if text[:1] not in _CLOSES:
        return None
    found = first_json(text)
    return found.value if found is not None and found.text == text else None


def numbers(text: str) -> list[tuple[str, Decimal]]:
    """Every number of the text as it stands there and as a value, from left to right.

    Written with a decimal point, thousands may have commas. A percent sign divides by 100: `60%` is 0.6 and
    not 60. Fractions (`1/2`) and decimal commas (`3,5`) are not read as one number.
    """
    found = []
    for match in _NUMBER.finditer(text.replace("−", "-")):
        digits = match["digits"].replace(",", "") + (match["exponent"] or "")
        value = Decimal(digits)
        if match["percent"]:
            value = value.scaleb(-2)
        found.append((match.group(), -value if match["sign"] == "-" else value))
    return found
