"""Where an audit reads its records from: a file or folder, or rows that are in memory already."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from gradian.rows.files import iter_records
from gradian.rows.row import Row, RowProblem

_BLOCK = 1 << 20


class Source(Protocol):
    """Records that can be read more than once, in the same order each time."""

    @property
    def path(self) -> str:
        """What to call it."""

    def records(self) -> Iterator[Row | RowProblem]:
        """The records, from the first on."""

    def digest(self) -> tuple[str | None, int]:
        """SHA-256 and size in bytes; None and 0 for rows in memory."""


class FileSource:
    """A data set on disk."""

    def __init__(self, path: str, split: str = "train") -> None:
        self.path = path
        self.split = split

    def records(self) -> Iterator[Row | RowProblem]:
        return iter_records(self.path, split=self.split)

    def digest(self) -> tuple[str | None, int]:
        root = Path(self.path)
        files = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
        sha256 = hashlib.sha256()
        size = 0
        for file in files:
            if root.is_dir():
                sha256.update(os.fsencode(file.relative_to(root).as_posix()) + b"\x00")
            with file.open("rb") as opened:
                while block := opened.read(_BLOCK):
                    sha256.update(block)
                    size += len(block)
        return sha256.hexdigest(), size


class MemorySource:
    """Rows that another lane has read."""

    def __init__(self, rows: Sequence[Row], path: str) -> None:
        self.path = path
        self._rows = rows

    def records(self) -> Iterator[Row | RowProblem]:
        return iter(self._rows)

    def digest(self) -> tuple[str | None, int]:
        return None, 0
