"""The metrics by name. Each is extract -> normalise -> compare and returns a `Score`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from gradian.errors import ConfigError
from gradian.evaluation import json_metrics, text_metrics
from gradian.evaluation.custom_metric import custom_metric
from gradian.evaluation.score import Compare, Metric, Score, every_answer_is_usable


def _nll(said: str, wanted: str, item: Mapping[str, Any]) -> Score:
    raise AssertionError("nll is scored from the model's probabilities, not from a text")


# name -> (makes the comparison from the options, graded, which wanted answers it refuses)
_METRICS: dict[str, tuple[Callable[..., Compare], bool, Callable[[str], str | None]]] = {
    "exact": (lambda: text_metrics.exact, False, every_answer_is_usable),
    "normalized": (lambda: text_metrics.normalized, False, text_metrics.no_word_wanted),
    "contains": (lambda: text_metrics.contains, False, every_answer_is_usable),
    "regex": (text_metrics.regex, False, every_answer_is_usable),
    "numeric": (text_metrics.numeric, False, text_metrics.no_number_wanted),
    "f1": (lambda: text_metrics.f1, True, text_metrics.no_word_wanted),
    "rouge_l": (lambda: text_metrics.rouge_l, True, text_metrics.no_word_wanted),
    "json_valid": (lambda: json_metrics.json_valid, False, every_answer_is_usable),
    "json_fields": (json_metrics.json_fields, True, json_metrics.no_json_wanted),
    "json_schema": (json_metrics.json_schema, False, every_answer_is_usable),
    "nll": (lambda: _nll, True, every_answer_is_usable),
}
METRIC_NAMES = tuple(_METRICS)


def get_metric(name: str, **options: Any) -> Metric:
    """The metric of this name.

    Args:
        name: one of `METRIC_NAMES`, or `module:function` for the user's own.
        options: `pattern`, `take` for `regex`; `tolerance`, `relative_tolerance`, `take` for `numeric`;
            `ignore_case` for `json_fields`; `schema` for `json_schema`. No other metric has any.

    Raises:
        ConfigError: unknown name or option (with the nearest known one), or an option's value that cannot be
            used.
        MissingDependencyError: `json_schema` without the package jsonschema.
    """
    recorded = tuple(sorted(options.items()))
    if ":" in name:
        if options:
            raise ConfigError(f"the metric {name} takes no option {min(options)!r}", where="metric")
        return Metric(name, graded=True, needs_generation=True, compare=custom_metric(name))
    if name not in _METRICS:
        near = difflib.get_close_matches(name.lower().replace("-", "_"), METRIC_NAMES, n=1, cutoff=0.5)
        raise ConfigError(
            f"unknown metric {name!r}",
            where="metric",
            why="the metrics are " + ", ".join(METRIC_NAMES) + ", or module:function",
            fix=f"did you mean {near[0]}?" if near else None,
        )
    make, graded, refuses = _METRICS[name]
    _check_options(name, make, options)
    return Metric(name, graded, name != "nll", make(**options), refuses, recorded)


def _check_options(name: str, make: Callable[..., Compare], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(make).parameters
    for option in sorted(options):
        if option not in parameters:
            near = difflib.get_close_matches(option, parameters, n=1)
            raise ConfigError(
                f"the metric {name} has no option {option!r}",
                where="metric",
                why=f"it takes {', '.join(parameters)}" if parameters else "it takes none",
                fix=f"did you mean {near[0]}?" if near else None,
            )
    for parameter in parameters.values():
        if parameter.default is parameter.empty and parameter.name not in options:
            raise ConfigError(f"the metric {name} needs the option {parameter.name}", where=parameter.name)
