"""Folders that `datasets` writes with `save_to_disk`: a Dataset, or a DatasetDict with splits.

A Dataset is `state.json`, which names Arrow files in stream format, and an optional table of indices when
rows were selected or shuffled without being rewritten.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradian.errors import InputError
from gradian.rows.records import Record

EVAL_SPLITS = ("test", "validation", "eval", "valid", "dev")
_BATCH_ROWS = 1024


def read_saved(folder: Path, name: str, split: str) -> Iterator[Record]:
    """Records of a saved Dataset, or of one split of a saved DatasetDict; null struct fields stay."""
    import pyarrow

    pa: Any = pyarrow
    root = _split_folder(folder, name, split)
    state = _read_json(root / "state.json")
    paths = _named_files(root, state, "_data_files")
    tables = [_open_table(path) for path in paths]
    files = [_shown(path, folder, name) for path in paths]
    starts = [0]
    for table in tables:
        starts.append(starts[-1] + table.num_rows)
    index_paths = _named_files(root, state, "_indices_files")
    if not index_paths:
        for file, table in zip(files, tables, strict=True):
            for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
                for fields in batch.to_pylist():
                    yield Record(file, None, fields)
        return
    try:
        whole = pa.concat_tables(tables)
        chosen = pa.concat_tables([_open_table(path) for path in index_paths]).column(0)
        for start in range(0, len(chosen), _BATCH_ROWS):
            positions = chosen.slice(start, _BATCH_ROWS)
            fields_list = whole.take(positions).to_pylist()
            for position, fields in zip(positions.to_pylist(), fields_list, strict=True):
                yield Record(files[_file_of(position, starts)], None, fields)
    except (pa.ArrowException, IndexError) as error:
        raise InputError(
            "the saved indices do not fit the saved rows",
            where=name,
            why=str(error).splitlines()[0],
            fix="save the dataset again with `dataset.flatten_indices().save_to_disk(...)`",
        ) from None


def data_files(folder: Path, name: str, split: str) -> list[Path]:
    """The files that hold the rows, in order: what a digest of the dataset must cover."""
    root = _split_folder(folder, name, split)
    state = _read_json(root / "state.json")
    return [*_named_files(root, state, "_data_files"), *_named_files(root, state, "_indices_files")]


def _file_of(position: int, starts: list[int]) -> int:
    return bisect_right(starts, position) - 1


def _shown(path: Path, folder: Path, name: str) -> str:
    return f"{name.rstrip('/')}/{path.relative_to(folder).as_posix()}"


def _split_folder(folder: Path, name: str, split: str) -> Path:
    """The folder that holds the rows of the wanted split."""
    if (folder / "state.json").is_file():
        return folder
    if not (folder / "dataset_dict.json").is_file():
        raise _no_dataset(folder, name)
    splits = _read_json(folder / "dataset_dict.json").get("splits")
    names = [item for item in splits if isinstance(item, str)] if isinstance(splits, list) else []
    wanted = EVAL_SPLITS if split == "eval" else (split,)
    chosen = next((item for item in wanted if item in names), None)
    if chosen is None and len(names) == 1 and split == "train":
        chosen = names[0]
    if chosen is None:
        raise InputError(
            f"the saved dataset has no {' or '.join(f'`{item}`' for item in wanted[:2])} split",
            where=name,
            why="it has " + (", ".join(f"`{item}`" for item in names) or "none"),
            fix=f"pass the folder of one split: {name.rstrip('/')}/{names[0] if names else '...'}",
        )
    root = folder / chosen
    if Path(chosen).name != chosen or not (root / "state.json").is_file():
        raise InputError(
            f"the split `{chosen}` is not in the folder",
            where=name,
            why="dataset_dict.json names it, and its state.json is missing",
            fix="save the dataset again",
        )
    return root


def _no_dataset(folder: Path, name: str) -> InputError:
    readable = (".jsonl", ".json", ".parquet", ".csv", ".tsv", ".gz", ".zst")
    try:
        found = sorted(path.name for path in folder.iterdir() if path.name.endswith(readable))
    except OSError as error:
        return InputError("the folder cannot be read", where=name, why=error.strerror or str(error))
    fix = f"pass one of its files: {name.rstrip('/')}/{found[0]}" if found else "check the path"
    return InputError(
        "the folder was not written by save_to_disk",
        where=name,
        why="it has neither state.json nor dataset_dict.json",
        fix=fix,
    )


def _named_files(root: Path, state: dict[str, Any], key: str) -> list[Path]:
    entries = state.get(key) or []
    names = [entry.get("filename") for entry in entries if isinstance(entry, dict)]
    if not isinstance(entries, list) or len(names) != len(entries):
        raise _damaged(root / "state.json", f"`{key}` is no list of files")
    files = []
    for name in names:
        # A name with folders could point anywhere on the disk.
        if not isinstance(name, str) or Path(name).name != name:
            raise _damaged(root / "state.json", f"`{key}` names {name!r}, which is no file of the folder")
        if not (root / name).is_file():
            raise _damaged(root / name, "state.json names it, and it is missing")
        files.append(root / name)
    return files


def _open_table(path: Path) -> Any:
    import pyarrow

    pa: Any = pyarrow
    try:
        source = pa.memory_map(str(path))
        try:
            return pa.ipc.open_stream(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_file(source).read_all()
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, str(error).splitlines()[0]) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(value, dict):
        raise _damaged(path, "it holds no object")
    return value


def _damaged(path: Path, why: str) -> InputError:
    return InputError(
        "the saved dataset is damaged", where=str(path), why=why, fix="save or copy the dataset again"
    )
