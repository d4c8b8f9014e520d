"""Words and numbers as findings write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SHOWN = 3


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 row`, `12 rows`, `12,000 rows`."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def percent(share: float) -> str:
    """A fraction as a percentage with two significant digits: `0.42 %`, `8.3 %`, `45 %`."""
    value = 100 * share
    if value == 0 or value >= 9.95:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 0.95 else f"{value:.2g} %"


def some(rows: Sequence[int], shown: int = SHOWN) -> str:
    """`row 3`, `rows 3, 11, 19, +9`: the first few and how many more."""
    head = ", ".join(str(row) for row in rows[:shown])
    more = f", +{len(rows) - shown}" if len(rows) > shown else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {head}{more}"


def listed(parts: Iterable[str], conjunction: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    words = list(parts)
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def excerpt(text: str, limit: int = 80) -> str:
    """One line of a text for evidence: white space collapsed, the middle left out when it is long."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    half = (limit - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"


def ending(text: str, limit: int = 40) -> str:
    """The last characters of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"...{line[-limit:]}"
