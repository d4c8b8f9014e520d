"""A table on a terminal: which columns fit, how wide each is, and its lines.

Rich's own table wraps cells into several lines when room is short; what is read in a scrolling terminal is
better with one line a row and fewer columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from gradian.report.content import Cell, Column, Table
from gradian.report.text import one_line

STYLES = {"plain": "", "bad": "red", "good": "green", "warning": "bold yellow", "muted": "dim"}
GAP = 2  # cells between two columns

NARROWEST_COLUMN = 4
MOST_PER_CELL = 4  # code points looked at for each cell: marks have no width, and a name may be a megabyte


@dataclass(frozen=True)
class FittedTable:
    """The columns of a table that fit, with their widths in terminal cells; `hidden` names the others."""

    table: Table
    shown: tuple[tuple[int, int], ...]  # (column index, width)
    hidden: tuple[str, ...]

    def lines(self) -> list[Text]:
        """The header and one line for each row."""
        header = [Cell(column.name) for column in self.table.columns]
        return [self._line(header, style="bold"), *(self._line(row) for row in self.table.rows)]

    def _line(self, row: Sequence[Cell], style: str | None = None) -> Text:
        line = Text()
        for position, (index, width) in enumerate(self.shown):
            column, cell = self.table.columns[index], row[index]
            text = _cell_text(cell, column, width)
            blank = " " * max(0, width - cell_len(text))
            last = position == len(self.shown) - 1
            padded = blank + text if column.numeric else text if last else text + blank
            line.append(padded, STYLES[cell.tone] if style is None else style)
            line.append("" if last else " " * GAP)
        return line


def fit_table(table: Table, width: int) -> FittedTable:
    """Leaves out the columns of the highest rank until the others fit into `width` cells."""
    natural = [_natural_width(table, index) for index in range(len(table.columns))]
    least = [_least_width(column, size) for column, size in zip(table.columns, natural, strict=True)]
    shown = list(range(len(table.columns)))
    while _total([least[index] for index in shown]) > width:
        droppable = [index for index in shown if table.columns[index].rank > 0]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda index: (table.columns[index].rank, index)))
    spare = max(0, width - _total([least[index] for index in shown]))
    widths = []
    for index in shown:
        extra = min(spare, natural[index] - least[index]) if table.columns[index].flexible else 0
        widths.append(least[index] + extra)
    hidden = tuple(column.name for index, column in enumerate(table.columns) if index not in shown)
    return FittedTable(table, tuple(zip(shown, _squeezed(widths, width), strict=True)), hidden)


def fit_text(text: str, width: int) -> str:
    """The text on one line of at most `width` cells, with how many characters were left out."""
    limit = min(len(text), width)
    while limit > 0:
        line = one_line(text, limit)
        over = cell_len(line) - width
        if over <= 0:
            return line
        limit -= max(1, over // 10)  # one character may be spelled out in ten cells
    return ""


def fit_label(text: str, width: int) -> str:
    """A name on one line of at most `width` cells; what is cut off is replaced by `…`."""
    line = one_line(text, MOST_PER_CELL * width)
    while cell_len(line) > width:
        line = line[:-2] + "…"
    return line


def _fit_end(text: str, width: int) -> str:
    """The end of a path, which says more than its start."""
    line = one_line(text[-MOST_PER_CELL * width :])
    while cell_len(line) > width:
        line = "…" + line[2:]
    return line


def _cell_text(cell: Cell, column: Column, width: int) -> str:
    if column.keep_end:
        return _fit_end(cell.text, width)
    return fit_text(cell.text, width) if column.code else fit_label(cell.text, width)


def _natural_width(table: Table, index: int) -> int:
    column = table.columns[index]
    return max(cell_len(one_line(text, column.limit)) for text in [column.name, *_texts(table, index)])


def _texts(table: Table, index: int) -> list[str]:
    return [row[index].text for row in table.rows]


def _least_width(column: Column, natural: int) -> int:
    return natural if column.numeric else min(natural, column.least)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _squeezed(widths: list[int], width: int) -> list[int]:
    """Narrower columns, the widest first, when even those that always stay do not fit."""
    squeezed = list(widths)
    while _total(squeezed) > width and max(squeezed) > NARROWEST_COLUMN:
        squeezed[squeezed.index(max(squeezed))] -= 1
    return squeezed
