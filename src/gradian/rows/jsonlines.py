"""JSON lines, plain or compressed.

A file whose first line opens a list over several lines is a document under the wrong name, and read as one.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from gradian.errors import InputError, MissingDependencyError
from gradian.rows.json_documents import document_records
from gradian.rows.json_text import WIDE_MARKS, line_records, opened, wide
from gradian.rows.records import Record


def read_lines(path: Path, name: str) -> Iterator[Record]:
    """Records of a `.jsonl` file."""
    with opened(path, name) as stream:
        yield from _records_of(stream, name)


def read_gzip_lines(path: Path, name: str) -> Iterator[Record]:
    """Records of a `.jsonl.gz` file."""
    with opened(path, name) as raw, gzip.open(raw, "rb") as stream:
        yield from _decompressed(cast("BinaryIO", stream), name, (OSError, EOFError, zlib.error))


def read_zstd_lines(path: Path, name: str) -> Iterator[Record]:
    """Records of a `.jsonl.zst` file."""
    try:
        import zstandard
    except ImportError:
        raise MissingDependencyError(
            "the file is compressed with zstd, and zstandard is not installed",
            where=name,
            fix='pip install "gradian[zst]"',
        ) from None
    with opened(path, name) as raw:
        stream = cast("BinaryIO", io.BufferedReader(_ZstdStream(raw, zstandard.ZstdDecompressor()), 1 << 20))
        yield from _decompressed(stream, name, (OSError, EOFError, zstandard.ZstdError))


class _ZstdStream(io.RawIOBase):
    """The bytes of zstd frames. zstandard's own reader takes a file that is cut off for one that ends."""

    def __init__(self, raw: BinaryIO, decompressor: Any) -> None:
        self._raw = raw
        self._decompressor = decompressor
        self._frame: Any = None
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._raw.read(1 << 16)
            if not data:
                if self._frame is not None:
                    raise EOFError("the last frame is not complete")
                return 0
            self._feed(data)
        given = self._ready[: len(buffer)]
        buffer[: len(given)] = given
        self._ready = self._ready[len(given) :]
        return len(given)

    def _feed(self, data: bytes) -> None:
        while data:
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            self._ready += self._frame.decompress(data)
            data = b""
            if self._frame.eof:
                data = self._frame.unused_data
                self._frame = None


def _decompressed(stream: BinaryIO, name: str, errors: tuple[type[Exception], ...]) -> Iterator[Record]:
    """Records of a compressed stream; a damaged one is an error, with the records before it already given."""
    try:
        yield from _records_of(stream, name)
    except errors as error:
        raise InputError(
            "the compressed file is damaged or cut off",
            where=name,
            why=str(error) or type(error).__name__,
            fix="write or download it again",
        ) from None


def _records_of(stream: BinaryIO, name: str) -> Iterator[Record]:
    first = stream.readline()
    if first.startswith(WIDE_MARKS):
        raise wide(name)
    if _opens_a_document(first.removeprefix(codecs.BOM_UTF8).strip(), stream):
        yield from document_records(first + stream.read(), name)
        return
    yield from line_records(first, stream, name)


def _opens_a_document(first: bytes, rest: BinaryIO) -> bool:
    """The first line opens a list that goes on, or is a whole list and nothing follows."""
    if not first.startswith(b"["):
        return False
    try:
        orjson.loads(first)
    except orjson.JSONDecodeError:
        return first.endswith((b"[", b",", b"{"))
    return not cast("io.BufferedReader", rest).peek(1)  # gzip's reader has `peek` too
