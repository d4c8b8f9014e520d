"""JSON rows: one object a line, also compressed, or one document with a list of objects.

orjson reads a line; a line that it refuses is read again with the standard library, whose error says where
and why, and which tells a NaN literal from broken text.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import orjson

from gradian.errors import InputError, MissingDependencyError
from gradian.rows.records import Record
from gradian.rows.shapes import MESSAGE_KEYS

_SPACE = re.compile(r"[ \t\r\n]*")
_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class _BadConstantError(ValueError):
    """NaN or an infinity, which JSON does not have."""


def _refuse_constant(name: str) -> NoReturn:
    raise _BadConstantError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def read_lines(path: Path, name: str) -> Iterator[Record]:
    """Records of a `.jsonl` file."""
    with _opened(path, name) as stream:
        yield from _records_of(stream, path, name)


def read_gzip_lines(path: Path, name: str) -> Iterator[Record]:
    """Records of a `.jsonl.gz` file."""
    with _opened(path, name) as raw, gzip.open(raw, "rb") as stream:
        yield from _decompressed(cast("BinaryIO", stream), path, name, (OSError, EOFError, zlib.error))


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
    with _opened(path, name) as raw:
        stream = cast("BinaryIO", io.BufferedReader(_ZstdStream(raw, zstandard.ZstdDecompressor()), 1 << 20))
        yield from _decompressed(stream, path, name, (OSError, EOFError, zstandard.ZstdError))


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


def _decompressed(
    stream: BinaryIO, path: Path, name: str, errors: tuple[type[Exception], ...]
) -> Iterator[Record]:
    """Records of a compressed stream; a damaged one is an error, with the records before it already given."""
    try:
        yield from _records_of(stream, path, name)
    except errors as error:
        raise InputError(
            "the compressed file is damaged or cut off",
            where=name,
            why=str(error) or type(error).__name__,
            fix="write or download it again",
        ) from None


def _opened(path: Path, name: str) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise InputError("the file cannot be opened", where=name, why=error.strerror or str(error)) from None


def _records_of(stream: BinaryIO, path: Path, name: str) -> Iterator[Record]:
    first = stream.readline()
    if first.startswith(_WIDE_MARKS):
        raise _wide(name)
    if first.lstrip(codecs.BOM_UTF8).lstrip().startswith(b"[") and _is_document(first, stream):
        yield from _document(first + stream.read(), name)
        return
    yield from _line_records(first, stream, name)


def _line_records(first: bytes, rest: Iterable[bytes], name: str) -> Iterator[Record]:
    offset = 0
    line = first
    number = 1
    lines = iter(rest)
    while line:
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if text.strip():
            try:
                fields = orjson.loads(text)
            except orjson.JSONDecodeError:
                yield _read_again(text, name, number, offset + len(line) - len(text))
            else:
                if type(fields) is dict:
                    yield Record(name, number, fields)
                else:
                    yield _checked(fields, name, number, offset)
        offset += len(line)
        number += 1
        line = next(lines, b"")


def _checked(value: Any, name: str, line: int, offset: int) -> Record:
    if isinstance(value, dict):
        return Record(name, line, value)
    kinds = {list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    kind = kinds.get(type(value), "a number")
    return Record(name, line, problem=f"the record is {kind}, not an object", byte_offset=offset)


def _read_again(text: bytes, name: str, line: int, offset: int) -> Record:
    """The record of a line that orjson refuses, or the reason in the standard library's words."""
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        why = f"byte 0x{text[error.start]:02X} is not UTF-8 (was the file written in another encoding?)"
        return Record(name, line, problem=why, byte_offset=offset + error.start)
    why, position = _why_not_json(decoded)
    if not why:
        return _checked(json.loads(decoded), name, line, offset)
    return Record(name, line, problem=why, byte_offset=offset + len(decoded[:position].encode()))


def _why_not_json(text: str) -> tuple[str, int]:
    """What is wrong with a JSON text and at which character; empty when nothing is."""
    try:
        value = _DECODER.decode(text)
    except _BadConstantError as error:
        literal = str(error)
        found = re.search(rf"(?<![\w\"]){re.escape(literal)}", text)
        return f"{literal} is not a JSON value", found.start() if found else 0
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()):
            return "the JSON is cut off: the line ends inside a value", len(text.rstrip())
        return f"the line is not JSON: {error.msg} at character {error.pos + 1}", error.pos
    except RecursionError:
        return "the JSON is nested too deeply", 0
    except ValueError as error:  # an integer of more digits than Python converts
        return f"the line is not JSON: {error}", 0
    surrogate = _unpaired_surrogate(value)
    if surrogate is not None:
        return f"\\u{ord(surrogate):04x} is half of a surrogate pair, which is no text", 0
    return "", 0


def _unpaired_surrogate(value: Any) -> str | None:
    """The first unpaired surrogate in the strings of a JSON value."""
    found = re.search("[\ud800-\udfff]", json.dumps(value, ensure_ascii=False))
    return found.group() if found else None


def _wide(name: str) -> InputError:
    return InputError(
        "the file is UTF-16, not UTF-8",
        where=name,
        why="JSON files are UTF-8",
        fix=f"iconv -f UTF-16 -t UTF-8 {name} > utf8.jsonl",
    )


def _is_document(first: bytes, stream: BinaryIO) -> bool:
    """A file that starts with `[` is one document unless its first line is a list and more lines follow."""
    try:
        orjson.loads(first.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError:
        return first.rstrip().endswith((b"[", b",", b"{")) or first.lstrip(codecs.BOM_UTF8).strip() == b"["
    peek = getattr(stream, "peek", None)
    return peek is not None and not peek(1)


def read_document(path: Path, name: str) -> Iterator[Record]:
    """Records of a `.json` file: a list, an object with exactly one list of objects, or JSON lines."""
    with _opened(path, name) as stream:
        data = stream.read()
    if data.startswith(_WIDE_MARKS):
        raise _wide(name)
    return _document(data, name)


def _document(data: bytes, name: str) -> Iterator[Record]:
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"byte 0x{data[error.start]:02X} is not UTF-8",
            where=f"{name}:{line}",
            why="JSON files are UTF-8",
            fix="write the file again with encoding='utf-8'",
        ) from None
    start = _skip(text, 0)
    if text.startswith("[", start):
        return _elements(text, start, name)
    if text.startswith("{", start):
        return _object_document(text, start, data, name)
    if start == len(text):
        return iter(())
    raise InputError(
        "the document is neither a list of objects nor an object",
        where=f"{name}:{text.count(chr(10), 0, start) + 1}",
        why=f"it starts with {text[start : start + 20]!r}",
        fix="write a list of objects, or one object a line in a .jsonl file",
    )


def _object_document(text: str, start: int, data: bytes, name: str) -> Iterator[Record]:
    """An object is one record, holds the list of records, or is the first of several lines."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        lists = _top_level_lists(text, start)  # the fault may lie in one element of the list
        if len(lists) == 1:
            return _elements(text, lists[0][1], name)
        return _line_records_of(data, name)
    if _skip(text, end) < len(text):
        return _line_records_of(data, name)
    lists = [
        (key, position)
        for key, position in _top_level_lists(text, start)
        if isinstance(value.get(key), list)
        and value[key]
        and all(isinstance(item, dict) for item in value[key])
    ]
    if len(lists) == 1 and not _is_conversation(*lists[0][:1], value):
        return _elements(text, lists[0][1], name)
    if len(lists) > 1 and not any(key in value for key in (*MESSAGE_KEYS, "prompt")):
        raise InputError(
            f"the object holds {len(lists)} lists of objects: " + ", ".join(f"`{key}`" for key, _ in lists),
            where=name,
            why="which one holds the rows cannot be told",
            fix="keep one of them, or write the rows as a .jsonl file",
        )
    return iter((Record(name, text.count("\n", 0, start) + 1, value),))


def _is_conversation(key: str, value: dict[str, Any]) -> bool:
    """The one list is a conversation's messages: the object is a row itself."""
    first = value[key][0]
    return (key in MESSAGE_KEYS or key in ("prompt", "completion", "tools")) and (
        "role" in first or "from" in first or key == "tools"
    )


def _line_records_of(data: bytes, name: str) -> Iterator[Record]:
    lines = iter(data.splitlines(keepends=True))
    return _line_records(next(lines, b""), lines, name)


def _skip(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _top_level_lists(text: str, start: int) -> list[tuple[str, int]]:
    """Key and position of `[` for each list right inside the object at `start`, as far as it can be read."""
    lists: list[tuple[str, int]] = []
    position = start + 1
    try:
        while True:
            position = _skip(text, position)
            if text[position] == "}":
                return lists
            key, position = _DECODER.raw_decode(text, position)
            position = _skip(text, _skip(text, position) + 1)  # the colon
            if text[position] == "[":
                lists.append((str(key), position))
            _, position = _DECODER.raw_decode(text, position)
            position = _skip(text, position)
            if text[position] == ",":
                position += 1
    except (ValueError, IndexError, RecursionError):
        return lists


def _elements(text: str, start: int, name: str) -> Iterator[Record]:
    """The objects of the list at `start`, each with the line on which it starts."""
    line, counted = 1, 0
    position = _skip(text, start + 1)
    while position < len(text) and text[position] != "]":
        line += text.count("\n", counted, position)
        counted = position
        try:
            value, end = _LENIENT.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            at = error.pos if isinstance(error, json.JSONDecodeError) else position
            where = f"line {text.count(chr(10), 0, at) + 1}"
            why = f"the JSON is broken at {where} ({reason}); nothing after this point can be read"
            yield Record(name, line, problem=why, byte_offset=len(text[:at].encode()))
            return
        why_not = _why_not_json(text[position:end])[0] if _suspicious(text, position, end) else ""
        if why_not:
            yield Record(name, line, problem=why_not, byte_offset=len(text[:position].encode()))
        else:
            yield _checked(value, name, line, position)
        position = _skip(text, end)
        if text.startswith(",", position):
            position = _skip(text, position + 1)
        elif not text.startswith("]", position):
            line += text.count("\n", counted, position)
            why = "the list is cut off or lacks a comma; nothing after this point can be read"
            yield Record(name, line, problem=why, byte_offset=len(text[:position].encode()))
            return
    if position >= len(text):
        line += text.count("\n", counted)
        yield Record(
            name, line, problem="the list is cut off: `]` is missing", byte_offset=len(text.encode())
        )


_LENIENT = json.JSONDecoder()
_SUSPICIOUS = re.compile(r"NaN|Infinity|\\u[dD][89a-fA-F]")


def _suspicious(text: str, start: int, end: int) -> bool:
    """The element may hold a constant or a surrogate that JSON text must not."""
    return _SUSPICIOUS.search(text, start, end) is not None
