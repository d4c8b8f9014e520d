"""One record as a reader of a format yields it, before it has its row number."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Record(NamedTuple):
    """A record that was read, or the reason (`problem`) why it could not be.

    Attributes:
        file: the file, as the user named it.
        line: 1-based line on which the record starts, None where the format has no lines.
        fields: the record; empty when there is a problem.
        problem: why it could not be read, in one clause.
        byte_offset: where in the (decompressed) file the problem lies.
    """

    file: str
    line: int | None
    fields: Mapping[str, Any] = MappingProxyType({})
    problem: str | None = None
    byte_offset: int | None = None
