"""TensorBoard event files, decoded by hand: the log and the arguments of a run, without a pickle or
tensorflow.

A file is a sequence of TFRecords (u64 length, u32 masked CRC-32C of the length, payload, u32 masked CRC-32C
of the payload; all little-endian), each payload a protobuf `Event` {wall_time=1, step=2, file_version=3,
summary=5}, `Summary` {value=1 repeated}, `Value` {tag=1, simple_value=2, tensor=8}, `TensorProto`
{tensor_content=4, float_val=5, string_val=8} (tensorflow/core/util/event.proto, framework/summary.proto,
framework/tensor.proto). transformers' callback logs `train/<name>` and `eval/<name>`, and the whole
arguments as the text `args/text_summary`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradian.run.artefact import ArtefactError, RunProblem, parse_json, read_bytes
from gradian.run.log_history import LogHistory, split_lines

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_FILES = 64
PREFIX = "events.out.tfevents"
MASK_DELTA = 0xA282EAD8  # tensorflow/core/lib/hash/crc32c.h
POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), reflected


@dataclass(frozen=True, slots=True)
class Scalar:
    """One logged number."""

    tag: str
    step: int
    value: float


@dataclass(frozen=True)
class EventLog:
    """What a folder of event files says.

    Attributes:
        files: the files that were read, relative to the run folder, sorted.
        history: the log; None without a scalar of the trainer's.
        arguments: the training arguments as JSON has them (of the last file that has them); empty when they were
            not logged.
    """

    files: tuple[str, ...]
    history: LogHistory | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


def read_event_folder(folder: Path, run_folder: Path) -> tuple[EventLog | None, list[RunProblem]]:
    """Reads every event file below `folder` (three levels at most) as one log, since a resumed run has
    several.
    """
    problems: list[RunProblem] = []
    paths = [path for depth in ("", "*/", "*/*/") for path in folder.glob(f"{depth}{PREFIX}*")]
    paths = sorted(set(paths))
    if len(paths) > MAX_FILES:
        why = f"holds {len(paths)} event files, only the last {MAX_FILES} by name were read"
        problems.append(RunProblem(_name(folder, run_folder), why, "not_read"))
        paths = paths[-MAX_FILES:]
    scalars: list[Scalar] = []
    texts: dict[str, str] = {}
    files: list[str] = []
    for path in paths:
        name = _name(path, run_folder)
        try:
            damage = _read_file(path, scalars, texts)
        except ArtefactError as error:
            problems.append(RunProblem(name, str(error)))
            continue
        if damage:
            problems.append(RunProblem(name, damage))
        files.append(name)
    if not files:
        return None, problems
    return EventLog(tuple(files), _history(scalars, files[0]), _arguments(texts)), problems


def _read_file(path: Path, scalars: list[Scalar], texts: dict[str, str]) -> str | None:
    """Adds a file's scalars and texts; returns why its end was not read, None when all was."""
    data = read_bytes(path, MAX_FILE_BYTES)
    try:
        for record in records(data):
            _decode_event(record, scalars, texts)
    except ArtefactError as error:
        return str(error)
    return None


def records(data: bytes) -> Iterator[bytes]:
    """The payloads of TFRecords. Raises ArtefactError at the first damaged one, after those before it."""
    position = 0
    while position < len(data):
        header = data[position : position + 12]
        if len(header) < 12:
            raise ArtefactError(f"ends in the middle of a record (byte {position})")
        length, length_crc = struct.unpack("<QI", header)
        if masked_crc(header[:8]) != length_crc:
            raise ArtefactError(f"is damaged at byte {position} (checksum of a record's length)")
        payload = data[position + 12 : position + 12 + length]
        trailer = data[position + 12 + length : position + 16 + length]
        if len(payload) < length or len(trailer) < 4:
            raise ArtefactError(f"ends in the middle of a record (byte {position})")
        if masked_crc(payload) != struct.unpack("<I", trailer)[0]:
            raise ArtefactError(f"is damaged at byte {position} (checksum of a record)")
        yield payload
        position += 16 + length


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


CRC_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """The masked CRC-32C of TFRecord framing: rotated right by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF


def fields(message: bytes) -> Iterator[tuple[int, int, Any]]:
    """The fields of a protobuf message: (number, wire type, value). Raises ArtefactError on a malformed
    one.
    """
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value: Any
            value, position = _varint(message, position)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, position = message[position : position + size], position + size
        elif wire == 2:
            length, position = _varint(message, position)
            value, position = message[position : position + length], position + length
        else:
            raise ArtefactError(f"has a protobuf field of unknown wire type {wire}")
        if position > len(message):
            raise ArtefactError("has a protobuf field that runs past its message")
        yield number, wire, value


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise ArtefactError("has a protobuf number that runs past its message")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ArtefactError("has a protobuf number longer than 10 bytes")


def _decode_event(event: bytes, scalars: list[Scalar], texts: dict[str, str]) -> None:
    step, summaries = 0, []
    for number, wire, value in fields(event):
        if number == 2 and wire == 0:
            step = value if value < 2**63 else 0
        elif number == 5 and wire == 2:
            summaries.append(value)
    for summary in summaries:
        for number, wire, value in fields(summary):
            if number == 1 and wire == 2:
                _decode_value(value, step, scalars, texts)


def _decode_value(message: bytes, step: int, scalars: list[Scalar], texts: dict[str, str]) -> None:
    tag, scalar, text = "", None, None
    for number, wire, value in fields(message):
        if number == 1 and wire == 2:
            tag = value.decode("utf-8", "replace")
        elif number == 2 and wire == 5:
            scalar = struct.unpack("<f", value)[0]
        elif number == 8 and wire == 2:
            for inner, inner_wire, content in fields(value):
                if inner == 8 and inner_wire == 2:
                    text = content.decode("utf-8", "replace")
                elif inner in (4, 5) and inner_wire == 2 and len(content) == 4:
                    scalar = struct.unpack("<f", content)[0]
    if text is not None:
        texts[tag] = text  # a resumed run logs its arguments again: the last ones hold
    elif scalar is not None:
        scalars.append(Scalar(tag, step, scalar))


def _history(scalars: list[Scalar], file: str) -> LogHistory | None:
    """The scalars as log lines: one line a step for training, one for evaluation, one for the summary."""
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    for scalar in scalars:
        kind, separator, name = scalar.tag.partition("/")
        if not separator or kind not in ("train", "eval"):
            continue
        if name.startswith(("train_", "total_flos")):
            kind = "summary"
        line = lines.setdefault((kind, scalar.step), {"step": scalar.step})
        line[f"eval_{name}" if kind == "eval" else name] = scalar.value
    if not lines:
        return None
    for (kind, step), line in lines.items():
        if kind == "eval" and ("train", step) in lines and "epoch" in lines["train", step]:
            line["epoch"] = lines["train", step]["epoch"]
    parts = split_lines(
        [line for _, line in sorted(lines.items(), key=lambda item: (item[0][1], item[0][0]))]
    )
    last = max((point.step for point in (*parts["train"], *parts["evals"])), default=None)
    return LogHistory(file=file, global_step=last, **parts)


def _arguments(texts: Mapping[str, str]) -> dict[str, Any]:
    text = texts.get("args/text_summary") or texts.get("args")
    if not text:
        return {}
    try:
        value = parse_json(text.strip().strip("`").strip())
    except ArtefactError:
        return {}
    return value if isinstance(value, dict) else {}


def _name(path: Path, run_folder: Path) -> str:
    return os.path.relpath(path, run_folder).replace(os.sep, "/")
