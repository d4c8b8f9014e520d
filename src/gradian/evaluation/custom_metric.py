"""A metric that the user wrote: `module:function`, imported from the working directory."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gradian.errors import ConfigError
from gradian.evaluation.score import Compare, Score


def custom_metric(reference: str) -> Compare:
    """The comparison that the function at `module:function` makes.

    The function is called as `f(said: str, wanted: str, item: dict)`, `item` being a copy of the eval file's
    record, and returns a number in [0, 1] or a `Score`. It is the user's own code and runs as such.

    Raises:
        ConfigError: it cannot be imported, is no function, fails, or returns something else.
    """
    function = _import(reference)

    def compare(said: str, wanted: str, item: Mapping[str, Any]) -> Score:
        try:
            returned = function(said, wanted, dict(item))
        except Exception as error:
            raise ConfigError(
                f"the metric {reference} failed on an item",
                why=f"{type(error).__name__}: {error}",
                fix="make it return 0.0 for an answer that it cannot score",
            ) from error
        if isinstance(returned, Score):
            return returned
        try:
            value = float(returned)
            return Score(value, said.strip(), f"{value:g} by {reference}")
        except (TypeError, ValueError):
            raise ConfigError(
                f"the metric {reference} returned {returned!r:.80}",
                fix="return a number in [0, 1] or a Score",
            ) from None

    return compare


def _import(reference: str) -> Callable[[str, str, dict[str, Any]], Any]:
    module_name, _, function_name = reference.partition(":")
    if not module_name or not function_name:
        raise ConfigError(
            f"the metric {reference!r} is incomplete", where="metric", fix="write module:function"
        )
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail in any way while it is imported
        raise ConfigError(
            f"the module of the metric {reference} cannot be imported",
            where="metric",
            why=f"{type(error).__name__}: {error}",
            fix=f"modules are looked for in {here} first",
        ) from error
    finally:
        sys.path.remove(here)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(
            f"{module_name} has no function {function_name}",
            where="metric",
            why=f"the module is {getattr(module, '__file__', None) or module_name}",
        )
    checked: Callable[[str, str, dict[str, Any]], Any] = function
    return checked
