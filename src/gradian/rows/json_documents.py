"""A JSON document with a list of rows: a list, or an object that holds one."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
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
        value, end = DECODER.raw_decode(text, start)
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
    return line_records(next(lines, b""), lines, name)


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
        why_not = why_not_json(text[position:end])[0] if _suspicious(text, position, end) else ""
        if why_not:
            yield Record(name, line, problem=why_not, byte_offset=len(text[:position].encode()))
        else:
            yield checked(value, name, line, position)
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


def _suspicious(text: str, start: int, end: int) -> bool:
    """The element may hold a constant or a surrogate that JSON text must not."""
    return _SUSPICIOUS.search(text, start, end) is not None
