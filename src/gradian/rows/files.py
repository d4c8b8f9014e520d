"""Files of rows: one reader for every format, streaming, with the line of each record.

`iter_records` yields a `Row` or a `RowProblem` for every record, so that nothing is left out in silence;
`read_rows` collects them. What a row means is not decided here.
"""

from __future__ import annotations

import difflib
import gc
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradian.errors import InputError
from gradian.rows import json_documents, jsonlines, saved, tables
from gradian.rows.records import Record
from gradian.rows.row import Row, RowProblem

_Reader = Callable[[Path, str], Iterator[Record]]
_READERS: Mapping[str, tuple[str, _Reader]] = {
    ".jsonl": ("jsonl", jsonlines.read_lines),
    ".ndjson": ("jsonl", jsonlines.read_lines),
    ".jsonl.gz": ("jsonl.gz", jsonlines.read_gzip_lines),
    ".ndjson.gz": ("jsonl.gz", jsonlines.read_gzip_lines),
    ".jsonl.zst": ("jsonl.zst", jsonlines.read_zstd_lines),
    ".ndjson.zst": ("jsonl.zst", jsonlines.read_zstd_lines),
    ".json": ("json", json_documents.read_document),
    ".parquet": ("parquet", tables.read_parquet),
    ".csv": ("csv", tables.read_csv),
    ".tsv": ("tsv", tables.read_tsv),
}
KINDS = ".jsonl, .json, .jsonl.gz, .jsonl.zst, .parquet, .csv, .tsv, or a folder written by save_to_disk"
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_GROUP_KEYS = ("cluster", "cluster_id")


@dataclass(frozen=True)
class Dataset:
    """The records of one file or folder.

    Attributes:
        path: as the user gave it.
        kind: `jsonl`, `json`, `jsonl.gz`, `jsonl.zst`, `parquet`, `csv`, `tsv` or `save_to_disk`.
        rows: the records that could be read, ascending by `row`.
        problems: those that could not, ascending by `row`.
        sha256: digest of the data files' bytes.
    """

    path: str
    kind: str
    rows: tuple[Row, ...]
    problems: tuple[RowProblem, ...]
    sha256: str


def iter_records(path: str | Path, *, split: str = "train") -> Iterator[Row | RowProblem]:
    """Every record of a dataset in order, one at a time.

    Args:
        path: a file or a folder; the kind is told from the name.
        split: which split of a saved DatasetDict; `eval` takes `test`, else `validation`.

    Raises:
        InputError: the path cannot be read as rows, or holds none.
        MissingDependencyError: the format needs a package that is not installed.
    """
    name = os.fspath(path)
    source = _existing(name)
    if source.is_dir():
        records = saved.read_saved(source, name, split)
    else:
        records = _reader_of(name)[1](source, name)
    return _rows_of(records, name)


def read_rows(path: str | Path, *, split: str = "train") -> Dataset:
    """All records of a dataset. Arguments and errors as `iter_records`."""
    rows: list[Row] = []
    problems: list[RowProblem] = []
    with _collector_paused():
        for record in iter_records(path, split=split):
            if isinstance(record, Row):
                rows.append(record)
            else:
                problems.append(record)
    name = os.fspath(path)
    source = _existing(name)
    folder = source.is_dir()
    return Dataset(
        path=name,
        kind="save_to_disk" if folder else _reader_of(name)[0],
        rows=tuple(rows),
        problems=tuple(problems),
        sha256=_digest(saved.data_files(source, name, split) if folder else [source]),
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Records hold no cycles, and walking all of them again and again takes longer than reading them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def require_clean(dataset: Dataset) -> Dataset:
    """The dataset itself, when every record could be read.

    Raises:
        InputError: for the first record that could not, naming how many more there are.
    """
    if not dataset.problems:
        return dataset
    first, more = dataset.problems[0], len(dataset.problems) - 1
    others = f"; {more} more record{'s' if more > 1 else ''} cannot be read either" if more else ""
    raise InputError(
        first.why + others,
        where=first.where,
        why="a row that is left out would change which rows are blamed",
        fix=f"mend or remove it; `gradian diagnose --dataset {dataset.path}` lists all of them",
    )


def _rows_of(records: Iterator[Record], name: str) -> Iterator[Row | RowProblem]:
    empty = True
    for index, record in enumerate(records):
        empty = False
        if record.problem is not None:
            yield RowProblem(index, record.file, record.line, record.problem, record.byte_offset)
        else:
            yield Row(index, record.file, record.line, record.fields, _group_of(record.fields))
    if empty:
        raise InputError(
            "the dataset holds no rows",
            where=name,
            why="the file is empty, or has nothing but blank lines or a header",
            fix="check the path, and the script that wrote the file",
        )


def _group_of(fields: Mapping[str, Any]) -> str | None:
    for key in _GROUP_KEYS:
        value = fields.get(key)
        if value is not None and value == value:  # NaN is how tables write "none"
            text = str(value).strip()
            if text:
                return text
    return None


def _reader_of(name: str) -> tuple[str, _Reader]:
    lower = name.lower()
    for suffix in sorted(_READERS, key=len, reverse=True):
        if lower.endswith(suffix):
            return _READERS[suffix]
    raise InputError(
        "the kind of file cannot be told from its name",
        where=name,
        why=f"rows are read from {KINDS}",
        fix="convert the file, or give it the ending of what it holds",
    )


def _existing(name: str) -> Path:
    """The path, when it exists and can be read."""
    if not name.strip():
        raise InputError("the path of the dataset is empty", fix="pass a file or a folder")
    source = Path(name).expanduser()
    try:
        exists = source.exists()
    except (OSError, ValueError) as error:  # name too long, null byte, no permission on a parent
        raise InputError("the path cannot be read", where=name, why=str(error)) from None
    if not exists:
        raise _missing(name, source)
    if source.is_dir():
        return source
    if not source.is_file():
        raise InputError(
            "this is no regular file",
            where=name,
            why="a pipe or device cannot be read twice",
            fix="write it to a file",
        )
    if not os.access(source, os.R_OK):
        raise InputError(
            "the file may not be read", where=name, why="permission denied", fix=f"chmod +r {name}"
        )
    return source


def _missing(name: str, source: Path) -> InputError:
    close = _close_name(source)
    if close is not None:
        return InputError("there is no such file", where=name, fix=f"did you mean {close}?")
    if name.startswith(("http://", "https://", "hf://", "s3://", "gs://")):
        return InputError(
            "an address is not a file",
            where=name,
            why="Gradian downloads nothing by itself",
            fix="download it first",
        )
    if _HUB_ID.match(name) and not any(name.lower().endswith(suffix) for suffix in _READERS):
        return InputError(
            "there is no such file or folder, and Gradian does not download datasets",
            where=name,
            why="it looks like the id of a dataset on the hub",
            fix="download it with two lines of Python, then pass train.jsonl:\n"
            "    from datasets import load_dataset\n"
            f'    load_dataset("{name}", split="train").to_json("train.jsonl")',
        )
    return InputError(
        "there is no such file", where=name, why=f"looked in {source.parent.absolute()}", fix="check the path"
    )


def _close_name(path: Path) -> Path | None:
    """What lies beside a missing path under nearly the same name."""
    try:
        names = sorted(item.name for item in path.parent.iterdir())
    except OSError:
        return None
    same_stem = [item for item in names if path.stem and item.split(".")[0] == path.name.split(".")[0]]
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75) or same_stem
    return path.parent / close[0] if close else None


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
