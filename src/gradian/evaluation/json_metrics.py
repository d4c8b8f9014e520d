"""JSON answers compared: equal values, the share of equal fields, a schema."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gradian.errors import ConfigError, MissingDependencyError
from gradian.evaluation.extract import first_json
from gradian.evaluation.score import Compare, Score


def json_equal(left: Any, right: Any, *, ignore_case: bool = False) -> bool:
    """Equality of two JSON values: key order does not matter, `1` equals `1.0`, and `true` is no number.

    Args:
        ignore_case: the case of text values (not of keys) does not matter.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(
            json_equal(left[key], right[key], ignore_case=ignore_case) for key in left
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(
            json_equal(a, b, ignore_case=ignore_case) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return left == right
    if ignore_case and isinstance(left, str) and isinstance(right, str):
        return left.casefold() == right.casefold()
    return type(left) is type(right) and bool(left == right)


def field_share(said: Any, wanted: Any, *, ignore_case: bool = False) -> float:
    """The share of the wanted value's fields that `said` has right, in [0, 1].

    A field that holds an object or a list counts by its own share. Keys that were not wanted cost nothing;
    elements of a list that were not wanted do, since they move the others. An empty object or list is right
    only when it is empty in `said` too. `ignore_case` as in `json_equal`.
    """
    if isinstance(wanted, dict) and isinstance(said, dict) and wanted:
        shares = [
            field_share(said[key], wanted[key], ignore_case=ignore_case) if key in said else 0.0
            for key in wanted
        ]
        return sum(shares) / len(wanted)
    if isinstance(wanted, list) and isinstance(said, list) and wanted:
        shares = [field_share(a, b, ignore_case=ignore_case) for a, b in zip(said, wanted, strict=False)]
        return sum(shares) / max(len(wanted), len(said))
    return 1.0 if json_equal(said, wanted, ignore_case=ignore_case) else 0.0


def no_json_wanted(wanted: str) -> str | None:
    """Why the wanted answer cannot be compared as JSON; None when it can."""
    found = first_json(wanted)
    if found is None:
        return "the wanted answer holds no JSON object or list"
    return found.fault and f"the wanted answer: {found.fault}"


def _judge(said: str, judge: Callable[[Any], tuple[float, str]]) -> Score:
    """The score that `judge` gives to the first JSON value of an answer; 0 when the answer has none."""
    found = first_json(said)
    if found is None:
        return Score(0.0, None, "no JSON in the answer")
    if found.fault is not None:
        return Score(0.0, None, found.fault)
    value, reason = judge(found.value)
    return Score(value, found.text, reason)


def json_valid(said: str, wanted: str, item: Mapping[str, Any]) -> Score:
    """1 when the first `{...}` or `[...]` of the text is strict JSON."""
    return _judge(said, lambda value: (1.0, "valid JSON"))


def json_fields(ignore_case: object = True) -> Compare:
    """A comparison that scores the share of the wanted object's fields that are right.

    Args:
        ignore_case: the case of text values does not matter: `Pilot` is `pilot`. Keys are compared as they
            are.

    Raises:
        ConfigError: `ignore_case` is neither true nor false.
    """
    if not isinstance(ignore_case, bool):
        raise ConfigError(f"ignore_case is {ignore_case!r}", where="ignore_case", fix="true or false")
    fold = ignore_case

    def compare(said: str, wanted: str, item: Mapping[str, Any]) -> Score:
        target = first_json(wanted)
        assert target is not None, "wanted answers are checked by no_json_wanted before anything is scored"

        def judge(value: Any) -> tuple[float, str]:
            share = field_share(value, target.value, ignore_case=fold)
            return share, "all fields are right" if share == 1.0 else f"{share:.0%} of the fields are right"

        return _judge(said, judge)

    return compare


def json_same(said: str, wanted_value: Any) -> Score:
    """1 when the first JSON value of the text equals `wanted_value` as a whole."""

    def judge(value: Any) -> tuple[float, str]:
        same = json_equal(value, wanted_value)
        return float(same), "equal as JSON" if same else "another JSON value"

    return _judge(said, judge)


def json_schema(schema: Any) -> Compare:
    """A comparison that scores 1 when the first JSON value of the text satisfies the schema.

    Args:
        schema: the schema itself, or the path of a JSON file that holds it. A reference to another document
            is never fetched.

    Raises:
        MissingDependencyError: `jsonschema` is not installed.
        ConfigError: the schema cannot be read or is no JSON Schema.
    """
    try:
        jsonschema: Any = importlib.import_module("jsonschema")
        referencing: Any = importlib.import_module("referencing")
    except ImportError:
        raise MissingDependencyError(
            "the metric json_schema needs the package jsonschema (4.18 or later)",
            fix='pip install "gradian[schema]"',
        ) from None

    document = schema if isinstance(schema, (dict, bool)) else _read_schema(schema)
    draft = jsonschema.validators.validator_for(document, default=jsonschema.Draft202012Validator)
    try:
        draft.check_schema(document)
    except jsonschema.SchemaError as error:
        raise ConfigError("this is no JSON Schema", where="schema", why=error.message) from None
    validator = draft(document, registry=referencing.Registry())

    def judge(value: Any) -> tuple[float, str]:
        try:
            error = jsonschema.exceptions.best_match(validator.iter_errors(value))
        except referencing.exceptions.Unresolvable as missing:
            raise ConfigError(
                "the schema refers to another document, which is not fetched",
                where="schema",
                why=str(missing),
                fix="put the definitions under `$defs` of the schema itself",
            ) from None
        if error is None:
            return 1.0, "satisfies the schema"
        return 0.0, f"at {error.json_path}: {error.message}"[:300]

    return lambda said, wanted, item: _judge(said, judge)


def _read_schema(path: Any) -> Any:
    if not isinstance(path, (str, Path)) or not str(path):
        raise ConfigError("the schema is neither a path nor a JSON object", where="schema")
    try:
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError("the schema cannot be read", where=str(path), why=error.strerror) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("the schema is not JSON", where=str(path), why=str(error)) from None
    if not isinstance(document, (dict, bool)):
        raise ConfigError("the schema is not a JSON object", where=str(path))
    return document
