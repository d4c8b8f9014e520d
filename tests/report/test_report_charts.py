"""The geometry of the charts, worked by hand."""

from __future__ import annotations

import math

import pytest

from gradian.report import charts
from support.reports import GROUPS, MECHANICAL, evaluation


def test_forest_by_hand() -> None:
    # From -0.4 to 0 with 12% of 0.4 on both sides: an axis from -0.448 to 0.048, 0.496 long.
    chart = charts.forest(evaluation(delta=-0.3, ci=(-0.4, -0.2), equivalence_margin=None))
    assert chart is not None
    assert (chart.low, chart.high, chart.width) == ("9.68%", "50.00%", "40.32%")
    assert (chart.point, chart.zero, chart.margin) == ("29.84%", "90.32%", None)
    assert [tick.label for tick in chart.ticks] == ["-0.4", "-0.3", "-0.2", "-0.1", "0"]
    assert [tick.x for tick in chart.ticks] == ["9.68%", "29.84%", "50.00%", "70.16%", "90.32%"]
    assert chart.tone == "bad"
    assert chart.text == "Change -0.300, 95% interval [-0.400, -0.200]."


def test_forest_with_an_equivalence_band() -> None:
    # From -0.05 to 0.05 with 0.012 on both sides: 0.124 long.
    chart = charts.forest(evaluation(delta=0.0, ci=(-0.025, 0.025), equivalence_margin=0.05))
    assert chart is not None
    assert chart.margin == ("9.68%", "80.65%")
    assert chart.zero == "50.00%"
    assert chart.tone == "plain"


def test_forest_of_a_change_of_exactly_zero() -> None:
    chart = charts.forest(evaluation(delta=0.0, ci=(0.0, 0.0), equivalence_margin=None))
    assert chart is not None
    assert (chart.point, chart.zero, chart.width) == ("50.00%", "50.00%", "0.00%")
    assert 3 <= len(chart.ticks) <= 7


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 0.037, 1.0, 7.3, 1e5, 1e12])
def test_ticks_are_few_and_inside(scale: float) -> None:
    chart = charts.forest(evaluation(delta=-scale, ci=(-2 * scale, -scale / 3), equivalence_margin=None))
    assert chart is not None
    assert 3 <= len(chart.ticks) <= 8
    assert all(0 <= float(tick.x[:-1]) <= 100 for tick in chart.ticks)
    assert len({tick.label for tick in chart.ticks}) == len(chart.ticks)


def test_no_forest_without_finite_numbers() -> None:
    assert charts.forest(None) is None
    assert charts.forest(evaluation(delta=math.nan)) is None


def test_outcomes_by_hand() -> None:
    parts = charts.outcomes(evaluation(kept=5, gained=0, lost=3, both_wrong=2))
    assert [(part.kind, part.width) for part in parts] == [
        ("kept", "50.00%"),
        ("lost", "30.00%"),
        ("both_wrong", "20.00%"),
    ]
    assert charts.outcomes(evaluation(kept=0, gained=0, lost=0, both_wrong=0)) == ()
    assert charts.outcomes(None) == ()


def test_group_bars_share_one_scale() -> None:
    bars = charts.group_bars(GROUPS[:2])
    assert [(bar.harm, bar.rows) for bar in bars] == [("100.00%", "16.00%"), ("27.49%", "48.39%")]
    many = [GROUPS[1].model_copy(update={"id": str(index)}) for index in range(40)]
    assert len(charts.group_bars(many)) == charts.MOST_BARS
    assert charts.group_bars([GROUPS[0].model_copy(update={"share": math.nan})]) == ()
    nothing = GROUPS[0].model_copy(update={"share": 0.0, "row_share": 0.0})
    assert charts.group_bars([nothing])[0].harm == "0.00%"


def test_histogram_by_hand() -> None:
    # 41 bins from -1 to 1: -1 in the first, 0 in the middle one (20), 1 in the last.
    chart = charts.histogram([-1.0] * 8 + [0.0] * 2 + [1.0])
    assert chart is not None
    assert [(bar.x, bar.height, bar.tone) for bar in chart.bars] == [
        ("0.00%", "100.00%", "bad"),
        ("48.78%", "25.00%", "plain"),
        ("97.56%", "12.50%", "good"),
    ]
    assert chart.text == "11 rows: 8 hurt, 1 helped."
    assert [tick.label for tick in chart.ticks][::2] == ["hurt 1.000", "0", "helped 1.000"]


def test_one_row_beside_a_thousand_can_be_seen() -> None:
    chart = charts.histogram([-1.0] + [0.5] * 1_000)
    assert chart is not None
    assert chart.bars[0].height == "4.00%"


def test_no_histogram_of_nothing() -> None:
    assert charts.histogram([0.0] * 100) is None
    assert charts.histogram([1.0] * 9) is None
    assert charts.histogram([math.nan] * 100) is None


def test_tiles_are_the_numbers_of_the_verdict() -> None:
    assert [(tile.label, tile.value) for tile in charts.tiles(MECHANICAL)] == [
        ("Change", "-0.675"),
        ("Base → tuned", "0.958 → 0.283"),
        ("Items lost", "82"),
        ("Harm by one group", "62.2%"),
    ]
