"""Tables of rows: CSV, TSV and parquet."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradian.errors import InputError
from gradian.rows.records import Record

#: csv refuses longer cells by default (128 KiB); answers are longer. The value fits a 32-bit C long.
_LONGEST_CELL = 2**31 - 1
_BATCH_ROWS = 1024
_ESCAPED = re.compile("[\udc80-\udcff]")  # how `surrogateescape` marks a byte that is not UTF-8


def read_csv(path: Path, name: str) -> Iterator[Record]:
    """Records of a comma-separated file with a header."""
    return _read_delimited(path, name, ",")


def read_tsv(path: Path, name: str) -> Iterator[Record]:
    """Records of a tab-separated file with a header."""
    return _read_delimited(path, name, "\t")


def _read_delimited(path: Path, name: str, delimiter: str) -> Iterator[Record]:
    try:
        stream = path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")
    except OSError as error:
        raise InputError("the file cannot be opened", where=name, why=error.strerror or str(error)) from None
    with stream, path.open("rb") as raw:
        if raw.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise InputError(
                "the file is UTF-16, not UTF-8",
                where=name,
                why="Excel writes this as 'Unicode text'",
                fix="save it as 'CSV UTF-8'",
            )
        csv.field_size_limit(_LONGEST_CELL)
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        header = _header(reader, name)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                yield Record(name, line, problem=f"the line is not valid CSV: {error}")
                continue
            if cells is None:
                return
            if cells:  # a blank line is no record
                yield _record_of(header, cells, name, line)


def _header(reader: Any, name: str) -> list[str]:
    header: list[str] = []
    try:
        for header in reader:
            if any(cell.strip() for cell in header):
                break
    except csv.Error as error:
        raise InputError("the header is not valid CSV", where=f"{name}:1", why=str(error)) from None
    repeated = sorted({column for column in header if header.count(column) > 1})
    if repeated:
        raise InputError(
            f"the header names the column `{repeated[0]}` twice",
            where=f"{name}:1",
            fix="give every column its own name",
        )
    return header


def _record_of(header: list[str], cells: list[str], name: str, line: int) -> Record:
    if len(cells) != len(header):
        columns = f"{len(cells)} cells under {len(header)} columns"
        return Record(name, line, problem=f"{columns} (is a cell with a comma or line break not quoted?)")
    if not all(cell.isascii() for cell in cells):
        found = _ESCAPED.search("".join(cells))
        if found:
            byte = ord(found.group()) - 0xDC00
            return Record(name, line, problem=f"byte 0x{byte:02X} is not UTF-8 (save the file as UTF-8)")
    return Record(name, line, dict(zip(header, cells, strict=True)))


def read_parquet(path: Path, name: str) -> Iterator[Record]:
    """Records of a parquet file; null struct fields stay."""
    import pyarrow
    import pyarrow.parquet

    pa: Any = pyarrow
    try:
        with pa.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for fields in batch.to_pylist():
                    yield Record(name, None, fields)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            "the file cannot be read as parquet",
            where=name,
            why=str(error).splitlines()[0],
            fix="write or download it again",
        ) from None
