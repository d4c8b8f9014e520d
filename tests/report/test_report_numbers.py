"""How numbers are written, by hand."""

from __future__ import annotations

import math

import pytest

from gradian.report import numbers


@pytest.mark.parametrize(
    ("result", "written"),
    [
        (numbers.count(1, "row"), "1 row"),
        (numbers.count(0, "row"), "0 rows"),
        (numbers.count(1204, "row"), "1,204 rows"),
        (numbers.count(2, "query", "queries"), "2 queries"),
        (numbers.decimal(0.91), "0.910"),
        (numbers.decimal(-0.27), "-0.270"),
        (numbers.decimal(-0.0001), "0.000"),  # never -0.000
        (numbers.decimal(None), "n/a"),
        (numbers.decimal(math.nan), "not a number"),
        (numbers.decimal(-math.inf), "-infinity"),
        (numbers.signed(0.12), "+0.120"),
        (numbers.signed(-0.27), "-0.270"),
        (numbers.signed(0.0001), "0.000"),
        (numbers.signed(0.0), "0.000"),
        (numbers.signed(math.inf), "+infinity"),
        (numbers.interval((-0.34, -0.2)), "[-0.340, -0.200]"),
        (numbers.interval(None), "n/a"),
        (numbers.magnitude(6.7), "6.700"),
        (numbers.magnitude(12345.678), "12,345.678"),
        (numbers.magnitude(0.0000123), "1.2e-05"),
        (numbers.magnitude(-31_000_000.0), "-3.1e+07"),
        (numbers.effect(-6.713), "hurt 6.713"),
        (numbers.effect(0.0002), "helped 2.0e-04"),
        (numbers.effect(0.0), "none"),
        (numbers.effect(-0.0), "none"),
        (numbers.effect(None), "n/a"),
        (numbers.effect(math.nan), "not a number"),
        (numbers.percent(0.622), "62.2%"),
        (numbers.percent(0.0), "0.0%"),
        (numbers.percent(0.0004), "<0.1%"),
        (numbers.percent(1.0), "100.0%"),
        (numbers.percent_interval((0.551, 0.702)), "[55.1%, 70.2%]"),
        (numbers.p_value(0.03125), "p = 0.031"),
        (numbers.p_value(0.000999), "p < 0.001"),
        (numbers.p_value(0.0), "p < 0.001"),
        (numbers.p_value(1.0), "p = 1.000"),
        (numbers.p_value(None), "n/a"),
        (numbers.duration(0.04), "0.0 s"),
        (numbers.duration(59.97), "1 min 00 s"),
        (numbers.duration(140), "2 min 20 s"),
        (numbers.duration(3723), "1 h 02 min"),
    ],
)
def test_numbers_are_written_like_this(result: str, written: str) -> None:
    assert result == written
