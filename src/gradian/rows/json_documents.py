"""A JSON document with a list of rows: a list, or an object that holds one."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradian.errors import InputError
from gradian.rows.json_text import DECODER, WIDE_MARKS, checked, line_records, opened, why_not_json, wide
from gradian.rows.records import Record
from gradian.rows.shapes import MESSAGE_KEYS

_SPACE = re.compile(r"[ \t\r\n]*")
_LENIENT = json.JSONDecoder()
_SUSPICIOUS = re.compile(r"NaN|Infinity|\\u[dD][89a-fA-F]")


def read_document(path: Path, name: str) -> Iterator[Record]:
    """Records of a `.json` file: a list, an object with exactly one list of objects, or JSON lines."""
    with opened(path, name) as stream:
        data = stream.read()
    if data.startswith(WIDE_MARKS):
        raise wide(name)
    return document_records(data, name)


def document_records(data: bytes, name: str) -> Iterator[Record]:
    """Records of a document's bytes; arguments and errors as `read_document`."""
    skipped = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    try:
        text = data[skipped:].decode("utf-8")
    except UnicodeDecodeError as error:
        at = skipped + error.start
        line = data.count(b"\n", 0, at) + 1
        raise InputError(
            f"byte 0x{data[at]:02X} is not UTF-8",
            where=f"{name}:{line}",
            why="JSON files are UTF-8",
            fix="write the file again with encoding='utf-8'",
        ) from None
    document = _Document(text, name, skipped)
    start = _skip(text, 0)
    if text.startswith("[", start):
        return _list_records(document, start)
    if text.startswith("{", start):
        return _object_records(document, start, data)
    if start == len(text):
        return iter(())
    raise InputError(
        "the document is neither a list of objects nor an object",
        where=f"{name}:{document.line_at(start)}",
        why=f"it starts with {text[start : start + 20]!r}",
        fix="write a list of objects, or one object a line in a .jsonl file",
    )


@dataclass(frozen=True)
class _Document:
    """A document's text, and how many bytes of a byte order mark came before it."""

    text: str
    name: str
    skipped: int

    def line_at(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def problem(self, why: str, position: int) -> Record:
        offset = self.skipped + len(self.text[:position].encode())
        return Record(self.name, self.line_at(position), problem=why, byte_offset=offset)


def _list_records(document: _Document, start: int) -> Iterator[Record]:
    """Records of a document that is a list."""
    end = yield from _elements(document, start)
    if end is not None and _skip(document.text, end) < len(document.text):
        yield document.problem("there is text after the end of the list", _skip(document.text, end))


def _object_records(document: _Document, start: int, data: bytes) -> Iterator[Record]:
    """An object is one record, holds the list of records, or is the first of several lines."""
    text = document.text
    try:
        value, end = DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        lists = _top_level_lists(text, start)  # the fault may lie in one element of the list
        if len(lists) == 1 and not _is_written_in_lines(text):
            return _broken_object_records(document, lists[0][1])
        return _line_records_of(data, document.name)
    if _skip(text, end) < len(text):
        return _line_records_of(data, document.name)
    lists = [(key, position) for key, position in _top_level_lists(text, start) if _holds_objects(value[key])]
    if len(lists) == 1 and not _is_conversation(lists[0][0], value):
        return _elements(document, lists[0][1])
    if len(lists) > 1 and not any(key in value for key in (*MESSAGE_KEYS, "prompt")):
        raise InputError(
            f"the object holds {len(lists)} lists of objects: " + ", ".join(f"`{key}`" for key, _ in lists),
            where=document.name,
            why="which one holds the rows cannot be told",
            fix="keep one of them, or write the rows as a .jsonl file",
        )
    return iter((Record(document.name, document.line_at(start), value),))


def _broken_object_records(document: _Document, start: int) -> Iterator[Record]:
    """Records of the one list of an object that is not JSON as a whole; what is wrong is always named."""
    named = False
    for record in _elements(document, start):
        named = named or record.problem is not None
        yield record
    if not named:
        yield document.problem("the object around the list is cut off or broken", len(document.text))


def _is_written_in_lines(text: str) -> bool:
    """Several lines, the first of which looks like a whole object."""
    lines = text.split("\n", 1)
    first = lines[0].strip()
    return len(lines) > 1 and first.startswith("{") and first.endswith("}") and bool(lines[1].strip())


def _holds_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _is_conversation(key: str, value: dict[str, Any]) -> bool:
    """The one list is a conversation's messages: the object is a row itself."""
    first = value[key][0]
    return (key in MESSAGE_KEYS or key in ("prompt", "completion", "tools")) and (
        "role" in first or "from" in first or key == "tools"
    )


def _line_records_of(data: bytes, name: str) -> Iterator[Record]:
    stream = io.BytesIO(data)
    return line_records(stream.readline(), stream, name)


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
            key, position = DECODER.raw_decode(text, position)
            position = _skip(text, _skip(text, position) + 1)  # the colon
            if text[position] == "[":
                lists.append((str(key), position))
            _, position = DECODER.raw_decode(text, position)
            position = _skip(text, position)
            if text[position] == ",":
                position += 1
    except (ValueError, IndexError, RecursionError):
        return lists


def _elements(document: _Document, start: int) -> Generator[Record, None, int | None]:
    """The objects of the list at `start`; returns where the list ends, None when that was not found."""
    text, name = document.text, document.name
    # Line and byte are carried along: counting from the start for every faulty element would be quadratic.
    line, offset, counted = 1, document.skipped, 0
    position = _skip(text, start + 1)
    while position < len(text) and text[position] != "]":
        line += text.count("\n", counted, position)
        offset += len(text[counted:position].encode())
        counted = position
        try:
            value, end = _LENIENT.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            reason, at = str(error), position  # nested too deeply, or an integer of thousands of digits
            if isinstance(error, json.JSONDecodeError):
                reason, at = error.msg, error.pos
            where = f"line {document.line_at(at)}"
            why = f"the JSON is broken at {where} ({reason}); nothing after this point can be read"
            yield document.problem(why, at)._replace(line=line)
            return None
        why_not = why_not_json(text[position:end])[0] if _SUSPICIOUS.search(text, position, end) else ""
        if why_not:
            yield Record(name, line, problem=why_not, byte_offset=offset)
        else:
            yield checked(value, name, line, offset)
        position = _skip(text, end)
        if text.startswith(",", position):
            position = _skip(text, position + 1)
        elif not text.startswith("]", position):
            yield document.problem(
                "the list is cut off or lacks a comma; nothing after this point can be read", position
            )
            return None
    if position >= len(text):
        yield document.problem("the list is cut off: `]` is missing", len(text))
        return None
    return position + 1
