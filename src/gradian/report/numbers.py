"""How numbers are written, the same in every rendering and in every locale.

The minus is ASCII, thousands have a comma, decimals a point. Effects are said in words, never by a bare sign.
"""

from __future__ import annotations

import math

ABSENT = "n/a"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 row`, `1,204 rows`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def decimal(value: float | None, places: int = 3) -> str:
    """`0.910`, `-0.270`; zero never has a sign."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return _not_finite(value)
    text = f"{value:,.{places}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.,") else text


def signed(value: float | None, places: int = 3) -> str:
    """`+0.120`, `-0.270`, `0.000`."""
    text = decimal(value, places)
    return f"+{text}" if value is not None and value > 0 and text.strip("0.,") else text


def interval(ends: tuple[float, float] | None, places: int = 3) -> str:
    """`[-0.340, -0.200]`."""
    return ABSENT if ends is None else f"[{decimal(ends[0], places)}, {decimal(ends[1], places)}]"


def magnitude(value: float | None) -> str:
    """A number of any size, as nats are: three decimals, `1.2e-05` below 0.001, `1.2e+07` from 10 million."""
    if value is None or not math.isfinite(value) or value == 0 or 0.001 <= abs(value) < 1e7:
        return decimal(value)
    return f"{value:.1e}"


def effect(value: float | None) -> str:
    """`hurt 0.270` for a negative value, `helped 0.270` for a positive one, `none` for zero; nats."""
    if value is None or not math.isfinite(value):
        return magnitude(value)
    if value == 0:
        return "none"
    return f"{'hurt' if value < 0 else 'helped'} {magnitude(abs(value))}"


def percent(fraction: float | None) -> str:
    """`62.0%`; `<0.1%` for what would round to nothing."""
    if fraction is None or not math.isfinite(fraction):
        return decimal(fraction)
    if 0 < fraction < 0.0005:
        return "<0.1%"
    return f"{decimal(100 * fraction, 1)}%"


def percent_interval(ends: tuple[float, float] | None) -> str:
    """`[55.1%, 70.2%]`."""
    return ABSENT if ends is None else f"[{percent(ends[0])}, {percent(ends[1])}]"


def p_value(p: float | None) -> str:
    """`p = 0.031`, `p < 0.001`; never zero, which no finite test can show."""
    if p is None:
        return ABSENT
    return "p < 0.001" if p < 0.001 else f"p = {decimal(p)}"


def duration(seconds: float) -> str:
    """`0.8 s`, `2 min 20 s`, `1 h 03 min`."""
    if not math.isfinite(seconds):
        return _not_finite(seconds)
    if seconds < 59.95:
        return f"{decimal(seconds, 1)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "not a number"
    return "infinity" if value > 0 else "-infinity"
