"""What a metric says about one answer, and what a metric is. Knows nothing of any single metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Score:
    """How well one answer matches the wanted one.

    Attributes:
        value: in [0, 1], higher is better.
        extracted: the part of the text that was compared; None when there was nothing to compare, which is an
            outcome of its own (a lost format is not a wrong answer) and always scores 0.
        reason: one clause for the report.
    """

    value: float
    extracted: str | None
    reason: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and 0.0 <= self.value <= 1.0):
            raise ValueError(f"a score lies in [0, 1], not {self.value!r}")
        if self.extracted is None and self.value != 0.0:
            raise ValueError(f"nothing was extracted, so the score is 0, not {self.value!r}")


Compare = Callable[[str, str, Mapping[str, Any]], Score]


def every_answer_is_usable(wanted: str) -> str | None:
    """The default of `Metric.refuses`: any wanted text can be compared with."""
    return None


@dataclass(frozen=True, slots=True)
class Metric:
    """A way to score an answer: extract, normalise, compare.

    Attributes:
        name: as the user writes it.
        graded: the score may lie between 0 and 1; False for a metric that is 0 or 1.
        needs_generation: False for a metric of the wanted answer's probability alone.
        compare: `(said, wanted, item) -> Score`; `item` is the record of the eval file.
        refuses: `(wanted) -> why` the wanted answer cannot be scored with this metric, None when it can.
            Asked before any model runs.
        options: what the metric was made with, as it is written into the result.
    """

    name: str
    graded: bool
    needs_generation: bool
    compare: Compare
    refuses: Callable[[str], str | None] = every_answer_is_usable
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, said: str, wanted: str, item: Mapping[str, Any] | None = None) -> Score:
        """Score the text `said` against `wanted`; an empty text is never scored as an answer."""
        if not said.strip():
            return Score(0.0, None, "the answer is empty")
        return self.compare(said, wanted, {} if item is None else item)
