"""Fixes as files: a patch of the configuration, a cleaned copy of the rows, and which rows were left out and
why.

Nothing that the user has is changed: everything is written into a new folder.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from gradian.audit.baseline import write_atomically
from gradian.audit.finding import Finding
from gradian.audit.output.plain import plain
from gradian.audit.source import FileSource
from gradian.errors import InputError
from gradian.rows.row import Row, RowProblem, location

if TYPE_CHECKING:
    from gradian.audit.runner import AuditResult

PATCH = "config_patch.yaml"
REMOVED = "removed_rows.jsonl"


def emit_fixes(result: AuditResult, folder: str | Path) -> list[Path]:
    """Write what follows from the findings; returns the files, nothing for an audit without such a fix.

    - `config_patch.yaml`: the settings to change, with the old values as comments.
    - `<name>.clean.jsonl`: the rows without those that a fix removes. Lines of a JSON-lines file are copied
    byte for
      byte; other kinds are written as JSON lines.
    - `removed_rows.jsonl`: each row that was left out, where it is, and the findings that say so.

    Raises:
        InputError: the folder exists and is not empty, or cannot be written.
    """
    target = Path(folder)
    changes = [
        f for f in result.findings if f.fix is not None and f.fix.key is not None and f.fix.to is not None
    ]
    removed: dict[int, list[str]] = {}
    for finding in result.findings:
        for row in finding.fix.remove_rows if finding.fix is not None else ():
            removed.setdefault(row, []).append(finding.id)
    if not changes and not removed:
        return []
    _new_folder(target)
    written = []
    if changes:
        write_atomically(target / PATCH, _patch(changes).encode())
        written.append(target / PATCH)
    if removed:
        written += _clean_rows(str(result.inputs["dataset"]["path"]), removed, target)
    return written


def _new_folder(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
        occupied = any(target.iterdir())
    except OSError as error:
        raise InputError(
            "the folder cannot be made", where=str(target), why=error.strerror or str(error)
        ) from None
    if occupied:
        raise InputError(
            "the folder for the fixes is not empty",
            where=str(target),
            why="no file of yours is ever overwritten",
            fix="name a new folder",
        )


def _patch(changes: list[Finding]) -> str:
    """YAML whose values are JSON, which YAML contains; the keys are the user's own names of the settings."""
    lines = ["# Changes that the diagnosis computed. Copy the values into your configuration."]
    seen: set[str] = set()
    for finding in changes:
        fix = finding.fix
        assert fix is not None
        assert fix.key is not None
        if fix.key in seen:
            lines.append(f"# {fix.key} is also the fix of {finding.id}: {json.dumps(plain(fix.to))}")
            continue
        seen.add(fix.key)
        where = f" in {fix.file}" if fix.file else ""
        lines.append(f"# {finding.id}: was {json.dumps(plain(fix.from_))}{where}")
        lines.append(f"{json.dumps(fix.key)}: {json.dumps(plain(fix.to))}")
    return "\n".join(lines) + "\n"


def _clean_rows(path: str, removed: dict[int, list[str]], target: Path) -> list[Path]:
    name = Path(path).name
    for suffix in (".gz", ".zst", ".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv"):
        name = name.removesuffix(suffix)
    clean = target / f"{name or 'train'}.clean.jsonl"
    records = list(_removed_records(path, removed))
    write_atomically(target / REMOVED, b"".join(orjson.dumps(record) + b"\n" for record in records))
    if Path(path).suffix in (".jsonl", ".ndjson") or path.endswith((".jsonl.gz", ".ndjson.gz")):
        lines = {record["line"] for record in records}
        write_atomically(clean, b"".join(_lines_without(path, lines)))
    else:
        kept = (record for record in FileSource(path).records() if record.row not in removed)
        write_atomically(clean, b"".join(_as_line(record) for record in kept))
    return [target / REMOVED, clean]


def _removed_records(path: str, removed: dict[int, list[str]]) -> Iterator[dict[str, Any]]:
    for record in FileSource(path).records():
        if record.row in removed:
            yield {
                "row": record.row,
                "line": record.line,
                "where": location(record.file, record.line, record.row),
                "findings": sorted(set(removed[record.row])),
            }


def _lines_without(path: str, lines: set[int]) -> Iterator[bytes]:
    with gzip.open(path) if path.endswith(".gz") else Path(path).open("rb") as opened:
        for number, line in enumerate(opened, 1):
            if number not in lines:
                yield line if line.endswith(b"\n") else line + b"\n"


def _as_line(record: Row | RowProblem) -> bytes:
    if isinstance(record, RowProblem):
        return b""  # it is among the removed rows: `data.parse_error` says so
    try:
        return orjson.dumps(dict(record.fields)) + b"\n"
    except TypeError:  # a lone surrogate, or an integer beyond 64 bits
        return json.dumps(dict(record.fields), default=str).encode() + b"\n"
