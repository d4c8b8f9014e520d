"""Where a finding points: `train.jsonl:812`, `train.parquet[811]`, `run/README.md`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from urllib.parse import quote

_LINE = re.compile(r"^(?P<file>.+?):(?P<line>[1-9]\d*)$")
_RECORD = re.compile(r"^(?P<file>.+?)\[(?P<row>\d+)\]$")


@dataclass(frozen=True, slots=True)
class Place:
    """A file, and the 1-based line in it where there is one."""

    file: str
    line: int | None = None

    @property
    def uri(self) -> str:
        """The path as a URI reference: percent-encoded, with forward slashes; `file://` when it is
        absolute."""
        path = PurePath(self.file)
        return path.as_uri() if path.is_absolute() else quote(path.as_posix())


def place_of(location: str) -> Place:
    """A finding's location taken apart."""
    if match := _LINE.match(location):
        return Place(match["file"], int(match["line"]))
    if match := _RECORD.match(location):
        return Place(match["file"])
    return Place(location.partition(": ")[0])
