"""The geometry of the report's charts: numbers in, positions in per cent of the chart's width out.

The templates only draw. Positions are text with two decimals, so that the same report gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradian.report.attribution_sections import group_name
from gradian.report.model import Evaluation, Group, Report
from gradian.report.numbers import count, decimal, effect, interval, magnitude, percent, signed

MOST_BARS = 12  # groups in the bar chart; the table beside it has the others
BINS = 41  # odd, so that one bin is centred on zero
LEAST_BAR = 4.0  # per cent of the height: one row must be seen beside a thousand


@dataclass(frozen=True)
class Tick:
    """A mark on the axis."""

    x: str
    label: str


@dataclass(frozen=True)
class Tile:
    """A number at the top of the page."""

    label: str
    value: str
    note: str
    tone: str = "plain"


@dataclass(frozen=True)
class Forest:
    """The change, its interval and the zero line. `margin` is the equivalence band: start and width."""

    low: str
    high: str
    width: str
    point: str
    zero: str
    margin: tuple[str, str] | None
    ticks: tuple[Tick, ...]
    tone: str
    text: str


@dataclass(frozen=True)
class Segment:
    """A part of the outcome bar."""

    kind: str
    width: str
    text: str


@dataclass(frozen=True)
class GroupBar:
    """A group's share of the harm beside its share of the rows, on one scale."""

    name: str
    accused: bool
    harm: str
    rows: str
    harm_text: str
    rows_text: str


@dataclass(frozen=True)
class Bar:
    """A bin of the histogram; y counts from the top."""

    x: str
    width: str
    y: str
    height: str
    tone: str
    text: str


@dataclass(frozen=True)
class Histogram:
    """How many rows have which score."""

    bars: tuple[Bar, ...]
    zero: str
    ticks: tuple[Tick, ...]
    text: str


def tiles(report: Report) -> tuple[Tile, ...]:
    """At most four numbers that the verdict rests on."""
    chosen: list[Tile] = []
    evaluation = report.evaluation
    if evaluation is not None:
        tone = _change_tone(evaluation)
        scores = f"{decimal(evaluation.base)} → {decimal(evaluation.tuned)}"
        chosen.append(Tile("Change", signed(evaluation.delta), f"95% {interval(evaluation.ci)}", tone))
        chosen.append(Tile("Base → tuned", scores, f"{evaluation.metric}, {count(evaluation.items, 'item')}"))
        chosen.append(
            Tile(
                "Items lost",
                f"{evaluation.lost:,}",
                f"{evaluation.gained:,} gained, {evaluation.kept:,} kept",
            )
        )
    accused = [group for group in report.groups if group.accused]
    if accused:
        rows = percent(accused[0].row_share)
        chosen.append(Tile("Harm by one group", percent(accused[0].share), f"with {rows} of the rows", "bad"))
    return tuple(chosen)


def forest(evaluation: Evaluation | None) -> Forest | None:
    """None without an evaluation, or with one that is not of finite numbers."""
    if evaluation is None:
        return None
    low, high = evaluation.ci
    margin = evaluation.equivalence_margin
    ends = [0.0, low, high, evaluation.delta, *([margin, -margin] if margin is not None else [])]
    if not all(math.isfinite(end) for end in ends):
        return None
    axis = _Axis.around(ends)
    band = None if margin is None else (axis.at(-margin), axis.length(2 * margin))
    return Forest(
        axis.at(low), axis.at(high), axis.length(high - low), axis.at(evaluation.delta), axis.at(0.0), band,
        axis.ticks(), _change_tone(evaluation),
        f"Change {signed(evaluation.delta)}, 95% interval {interval(evaluation.ci)}.",
    )  # fmt: skip


def outcomes(evaluation: Evaluation | None) -> tuple[Segment, ...]:
    """The four outcomes of the items as parts of one bar."""
    if evaluation is None:
        return ()
    kinds = ("kept", "gained", "lost", "both_wrong")
    total = sum(getattr(evaluation, kind) for kind in kinds)
    if total <= 0:
        return ()
    return tuple(
        Segment(kind, f"{100 * number / total:.2f}%", f"{kind.replace('_', ' ')} {number:,}")
        for kind in kinds
        if (number := getattr(evaluation, kind)) > 0
    )


def group_bars(groups: Sequence[Group]) -> tuple[GroupBar, ...]:
    """The worst groups; the longest bar of either kind is the full width."""
    shown = [group for group in groups if math.isfinite(group.share) and math.isfinite(group.row_share)][
        :MOST_BARS
    ]
    longest = max((max(group.share, group.row_share) for group in shown), default=0.0) or 1.0
    return tuple(
        GroupBar(
            group_name(group), group.accused,
            f"{100 * group.share / longest:.2f}%", f"{100 * group.row_share / longest:.2f}%",
            percent(group.share), percent(group.row_share),
        )
        for group in shown
    )  # fmt: skip


def histogram(scores: Sequence[float]) -> Histogram | None:
    """None when there is nothing to see: fewer than ten scores, or all of them zero."""
    finite = [score for score in scores if math.isfinite(score)]
    reach = max((abs(score) for score in finite), default=0.0)
    if len(finite) < 10 or reach == 0.0:
        return None
    counts = [0] * BINS
    for score in finite:
        counts[min(BINS - 1, int((score / reach + 1) / 2 * BINS))] += 1
    highest = max(counts)
    step = 2 * reach / BINS
    bars = tuple(
        _bar(index, number, highest, -reach + index * step, step)
        for index, number in enumerate(counts)
        if number
    )
    ticks = tuple(
        Tick(f"{50 + 50 * part:.2f}%", _effect_label(part * reach)) for part in (-1.0, -0.5, 0.0, 0.5, 1.0)
    )
    hurt = sum(score < 0 for score in finite)
    text = f"{count(len(finite), 'row')}: {hurt:,} hurt, {sum(score > 0 for score in finite):,} helped."
    return Histogram(bars, "50.00%", ticks, text)


def _bar(index: int, number: int, highest: int, start: float, step: float) -> Bar:
    height = max(LEAST_BAR, 100 * number / highest)
    middle = index - BINS // 2
    tone = "bad" if middle < 0 else "good" if middle > 0 else "plain"
    text = f"{count(number, 'row')} from {_effect_label(start)} to {_effect_label(start + step)}"
    return Bar(
        f"{100 * index / BINS:.2f}%",
        f"{100 / BINS - 0.3:.2f}%",
        f"{100 - height:.2f}%",
        f"{height:.2f}%",
        tone,
        text,
    )


def _effect_label(value: float) -> str:
    return "0" if value == 0 else effect(value)


def _change_tone(evaluation: Evaluation) -> str:
    low, high = evaluation.ci
    return "bad" if high < 0 else "good" if low > 0 else "plain"


@dataclass(frozen=True)
class _Axis:
    """A linear scale from `start` to `end`."""

    start: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float]) -> _Axis:
        low, high = min(values), max(values)
        padding = 0.12 * (high - low) or 0.05
        return cls(low - padding, high + padding)

    def at(self, value: float) -> str:
        return f"{100 * (value - self.start) / (self.end - self.start):.2f}%"

    def length(self, difference: float) -> str:
        return f"{100 * difference / (self.end - self.start):.2f}%"

    def ticks(self) -> tuple[Tick, ...]:
        """Three to seven round numbers inside the axis."""
        rough = (self.end - self.start) / 7
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        first = math.ceil(self.start / step)
        last = math.floor(self.end / step)
        return tuple(
            Tick(self.at(index * step), _tick_label(index * step, step)) for index in range(first, last + 1)
        )


def _tick_label(value: float, step: float) -> str:
    if not 1e-4 <= step < 1e7:
        return magnitude(value)
    return signed(value, max(0, -math.floor(math.log10(step) + 1e-9))) if value else "0"
