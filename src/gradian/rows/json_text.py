"""Records out of JSON text, and what is wrong with a text that is none.

orjson reads a record; what it refuses is read again with the standard library, whose error says where and
why, and which tells a NaN literal from broken text.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import orjson

from gradian.errors import InputError
from gradian.rows.records import Record

WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class _BadConstantError(ValueError):
    """NaN or an infinity, which JSON does not have."""


def _refuse_constant(name: str) -> NoReturn:
    raise _BadConstantError(name)


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def opened(path: Path, name: str) -> BinaryIO:
    """The file, open for reading bytes; an InputError names what stands in the way."""
    try:
        return path.open("rb")
    except OSError as error:
        raise InputError("the file cannot be opened", where=name, why=error.strerror or str(error)) from None


def line_records(first: bytes, rest: Iterable[bytes], name: str) -> Iterator[Record]:
    """Records of JSON lines: the first line, and those that follow it. Blank lines are no records."""
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
                yield read_again(text, name, number, offset + len(line) - len(text))
            else:
                if type(fields) is dict:
                    yield Record(name, number, fields)
                else:
                    yield checked(fields, name, number, offset)
        offset += len(line)
        number += 1
        line = next(lines, b"")


def checked(value: Any, name: str, line: int, offset: int) -> Record:
    """The record of a JSON value, which must be an object."""
    if isinstance(value, dict):
        return Record(name, line, value)
    kinds = {list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    why = f"the record is {kinds.get(type(value), 'a number')}, not an object"
    return Record(name, line, problem=why, byte_offset=offset)


def read_again(text: bytes, name: str, line: int, offset: int) -> Record:
    """The record of a line that orjson refuses, or the reason in the standard library's words."""
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        why = f"byte 0x{text[error.start]:02X} is not UTF-8 (was the file written in another encoding?)"
        return Record(name, line, problem=why, byte_offset=offset + error.start)
    why, position = why_not_json(decoded)
    if not why:
        return checked(json.loads(decoded), name, line, offset)
    return Record(name, line, problem=why, byte_offset=offset + len(decoded[:position].encode()))


def why_not_json(text: str) -> tuple[str, int]:
    """What is wrong with a JSON text and at which character; empty when nothing is."""
    try:
        value = DECODER.decode(text)
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


def wide(name: str) -> InputError:
    """The error for a file that starts with a UTF-16 mark."""
    return InputError(
        "the file is UTF-16, not UTF-8",
        where=name,
        why="JSON files are UTF-8",
        fix=f"iconv -f UTF-16 -t UTF-8 {name} > utf8.jsonl",
    )
