"""Columns of numbers that grow record by record and end as numpy arrays."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = {"b": np.int8, "i": np.int32, "q": np.int64, "Q": np.uint64}


class Columns:
    """Named columns of one length.

    Args:
        kinds: name -> array type code (`b` int8, `i` int32, `q` int64, `Q` uint64) and the value that a
            record has until it is set.
    """

    def __init__(self, kinds: dict[str, tuple[str, int]]) -> None:
        self._neutral = {name: neutral for name, (_, neutral) in kinds.items()}
        self._columns = {name: array(code) for name, (code, _) in kinds.items()}
        self._codes = {name: code for name, (code, _) in kinds.items()}
        self.rows = 0

    def append(self) -> None:
        """Add a record of neutral values."""
        for name, column in self._columns.items():
            column.append(self._neutral[name])
        self.rows += 1

    def set_last(self, **values: int) -> None:
        """Set values of the record that was appended last."""
        columns = self._columns
        for name, value in values.items():
            columns[name][-1] = value

    def array(self, name: str) -> NDArray[Any]:
        """A copy of a column as a numpy array `[rows]`."""
        return np.array(self._columns[name], dtype=_DTYPES[self._codes[name]])
