"""An index on disk.

    <root>/<index id>/
        manifest.json   schema version, every input of the id, layout, sizes, versions, timings; written last of all
        vectors.bin     [rows, dimension], float32 or float16, row-major: the block of a row is one run of bytes
        scales.npy      [rows, blocks] float32, only with float16: value = stored x scale
        state.bin       one byte a row: 0 missing, 1 computed here, 2 copied from another index
        losses.npy      [rows] float32, nats
        rows.jsonl      one line a row: row, file, line, hash, tokens, loss_tokens, group
        gram.npy        [rows, rows] float64, K = G G^T
        queries/        vectors of questions that were asked, by the hash of their tokens
        lock            held while one process builds

Plain files written with plain writes: a full disk is an error at the write, not a crash of a memory map.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradian.errors import IndexStoreError
from gradian.gradients.layout import Layout

SCHEMA_VERSION = 1
MISSING, COMPUTED, COPIED = 0, 1, 2

_ABSENT = object()


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_blocks(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, list)
        and len(entry) == 6
        and _is_text(entry[0])
        and entry[1] in ("A", "B")
        and all(_is_count(number) for number in entry[2:])
        for entry in value
    )


#: What a manifest holds, and what a value must be: whatever reads one may rely on it.
MANIFEST_FIELDS: dict[str, Callable[[Any], bool]] = {
    "index_id": _is_text,
    "gradient_id": _is_text,
    "identity.spec.stored_dtype": lambda value: value in ("float32", "float16"),
    "rows": _is_count,
    "tokens": _is_count,
    "layout.k": lambda value: value is None or _is_count(value),
    "layout.seed": _is_count,
    "layout.blocks": _are_blocks,
    "vector_bytes": _is_count,
    "timings.build_seconds": _is_seconds,
    "gradian": _is_text,
    "base_model": _is_text,
    "adapter": _is_text,
    "dataset": _is_text,
    "sites": _is_count,
}


@dataclass(frozen=True)
class RowEntry:
    """A line of the row table."""

    row: int
    file: str
    line: int | None
    hash: str
    tokens: int
    loss_tokens: int
    group: str | None


class IndexStore:
    """Read and write one index folder. Values pass as float32 whatever is stored."""

    def __init__(self, folder: Path, layout: Layout, count: int, stored_dtype: str) -> None:
        self.folder = folder
        self.layout = layout
        self.count = count
        self.dtype = np.dtype(stored_dtype)

    # ---- writing -------------------------------------------------------------------------------------------------

    @property
    def _row_bytes(self) -> int:
        return self.layout.dimension * self.dtype.itemsize

    @property
    def vector_bytes(self) -> int:
        """Size of the vectors on disk."""
        return self._row_bytes * self.count

    def create(self) -> None:
        """Make the files that are not there yet; what is there stays, so that a killed build goes on."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # The state first: were it written last, a kill in between would leave rows marked as done without a vector.
        sizes = {"state.bin": self.count, "vectors.bin": self.vector_bytes}
        sound = all(
            (self.folder / name).exists() and (self.folder / name).stat().st_size == size
            for name, size in sizes.items()
        )
        if not sound:  # both anew: a row marked as done must have its vector
            for name, size in sizes.items():
                with (self.folder / name).open("wb") as file:
                    file.truncate(size)
        for name, array in self._side_arrays():
            path = self.folder / name
            if not path.exists():
                _save_array(path, array)

    def _side_arrays(self) -> list[tuple[str, NDArray[np.float32]]]:
        arrays = [("losses.npy", np.zeros(self.count, dtype=np.float32))]
        if self.dtype == np.float16:
            arrays.append(("scales.npy", np.ones((self.count, len(self.layout.blocks)), dtype=np.float32)))
        return arrays

    def write_rows(
        self,
        rows: Sequence[int],
        vectors: NDArray[np.float32],
        losses: NDArray[np.float32],
        state: int = COMPUTED,
    ) -> None:
        """Store vectors [len(rows), dimension] and only then mark the rows as done.

        Raises:
            IndexStoreError: the disk is full or cannot be written. What was stored before stays valid.
        """
        try:
            stored, scales = self._encode(vectors)
            with (self.folder / "vectors.bin").open("r+b") as file:
                for row, vector in zip(rows, stored, strict=True):
                    file.seek(row * self._row_bytes)
                    file.write(vector.tobytes())
                file.flush()
                os.fsync(file.fileno())
            self._update("losses.npy", rows, losses)
            if scales is not None:
                self._update("scales.npy", rows, scales)
            with (self.folder / "state.bin").open("r+b") as file:
                for row in rows:
                    file.seek(row)
                    file.write(bytes([state]))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise IndexStoreError(
                "the index cannot be written",
                where=str(self.folder),
                why=error.strerror or str(error),
                fix="free some space or pass --index-dir; the same command then goes on where it stopped",
            ) from None

    def _encode(self, vectors: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        if self.dtype == np.float32:
            return vectors, None
        # One scale a block, not one a row: B gradients are tens of times larger than A's, which would otherwise fall
        # into float16's subnormals; unscaled sums over long rows would overflow it at 65504.
        scales = np.ones((len(vectors), len(self.layout.blocks)), dtype=np.float32)
        stored = np.empty(vectors.shape, dtype=np.float16)
        for index, block in enumerate(self.layout.blocks):
            part = vectors[:, block.offset : block.stop]
            largest = np.abs(part).max(axis=1)
            scales[:, index] = np.where(largest > 0, largest, 1)
            stored[:, block.offset : block.stop] = part / scales[:, index, None]
        return stored, scales

    def _update(self, name: str, rows: Sequence[int], values: NDArray[np.float32]) -> None:
        array = np.load(self.folder / name)
        array[list(rows)] = values
        _save_array(self.folder / name, array)

    # ---- reading -------------------------------------------------------------------------------------------------

    def state(self) -> NDArray[np.uint8]:
        """One byte a row: MISSING, COMPUTED or COPIED."""
        return np.fromfile(self.folder / "state.bin", dtype=np.uint8)

    def losses(self) -> NDArray[np.float32]:
        """Summed loss of each row, nats [rows]."""
        return np.asarray(np.load(self.folder / "losses.npy"))

    def _mapped(self) -> NDArray[Any]:
        return np.memmap(
            self.folder / "vectors.bin", dtype=self.dtype, mode="r", shape=(self.count, self.layout.dimension)
        )

    def vectors(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """Whole vectors of some rows, float32 [len(rows), dimension]."""
        out = np.asarray(self._mapped()[list(rows)], dtype=np.float32)
        if self.dtype == np.float16:
            scales = np.load(self.folder / "scales.npy")[list(rows)]
            for index, block in enumerate(self.layout.blocks):
                out[:, block.offset : block.stop] *= scales[:, index, None]
        return out

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """The matrix [rows, size] of each block in turn, float32."""
        mapped = self._mapped()
        scales = np.load(self.folder / "scales.npy") if self.dtype == np.float16 else None
        for index, block in enumerate(self.layout.blocks):
            part = np.ascontiguousarray(mapped[:, block.offset : block.stop], dtype=np.float32)
            if scales is not None:
                part = part * scales[:, index, None]
            yield part

    # ---- small files ----------------------------------------------------------------------------------------------

    def write_table(self, entries: Sequence[RowEntry]) -> None:
        """The row table, one JSON object a line."""
        lines = [json.dumps(vars(entry), ensure_ascii=False) + "\n" for entry in entries]
        write_atomically(self.folder / "rows.jsonl", "".join(lines).encode("utf-8", "surrogatepass"))

    def table(self) -> list[RowEntry]:
        """The row table."""
        raw = (self.folder / "rows.jsonl").read_bytes().decode("utf-8", "surrogatepass")
        return [RowEntry(**json.loads(line)) for line in raw.splitlines()]

    def array(self, name: str) -> NDArray[Any] | None:
        """An array that was kept under that name, or None."""
        path = self.folder / f"{name}.npy"
        try:
            return np.asarray(np.load(path, allow_pickle=False)) if path.exists() else None
        except (ValueError, OSError, EOFError):
            return None  # a half-written file: it is computed again

    def keep_array(self, name: str, array: NDArray[Any]) -> None:
        """Keep an array under that name."""
        path = self.folder / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        _save_array(path, array)

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        write_atomically(self.folder / "manifest.json", (json.dumps(manifest, indent=2) + "\n").encode())


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a complete index.

    Raises:
        IndexStoreError: no index, an unfinished one, a damaged one, or one of a newer Gradian.
    """
    path = folder / "manifest.json"
    if not path.is_file():
        unfinished = (folder / "state.bin").exists()
        raise IndexStoreError(
            "this index is not finished" if unfinished else "no index here",
            where=str(folder),
            fix="run the command that built it again: it goes on where it stopped"
            if unfinished
            else "gradian index --help",
        )
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        schema = manifest["schema_version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise IndexStoreError(
            "the manifest is damaged", where=str(path), why=str(error), fix=f"rm -r {folder}"
        ) from None
    if schema != SCHEMA_VERSION:
        raise IndexStoreError(
            f"schema version {schema} is not the one that this Gradian reads ({SCHEMA_VERSION})",
            where=str(path),
            fix="pip install -U gradian, or build the index again",
        )
    for field, fits in MANIFEST_FIELDS.items():
        if not fits(_field(manifest, field)):
            raise IndexStoreError(
                f"the manifest's field {field} is missing or has a value that it cannot have",
                where=str(path),
                why="the index is damaged, or another program wrote it",
                fix=f"rm -r {folder} and build the index again",
            )
    return manifest


def _field(manifest: dict[str, Any], name: str) -> Any:
    """The value at `identity.spec.stored_dtype`; `_ABSENT` where there is none."""
    value: Any = manifest
    for key in name.split("."):
        value = value.get(key, _ABSENT) if isinstance(value, dict) else _ABSENT
    return value


def open_store(folder: Path) -> tuple[IndexStore, dict[str, Any]]:
    """A complete index and its manifest.

    Raises:
        IndexStoreError: as `read_manifest`, or the files are not of the size that the manifest states.
    """
    manifest = read_manifest(folder)
    layout = Layout.from_json(manifest["layout"])
    store = IndexStore(folder, layout, int(manifest["rows"]), manifest["identity"]["spec"]["stored_dtype"])
    vectors = folder / "vectors.bin"
    if (
        not vectors.is_file()
        or vectors.stat().st_size != store.vector_bytes
        or (store.state() == MISSING).any()
    ):
        raise IndexStoreError(
            "the vectors are damaged or incomplete",
            where=str(vectors),
            fix=f"rm -r {folder} and build the index again",
        )
    return store, manifest


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target and rename, so that a reader sees the old file or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise IndexStoreError("cannot write", where=str(path), why=error.strerror or str(error)) from None


def _save_array(path: Path, array: NDArray[Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.npy")
    try:
        with temporary.open("wb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise IndexStoreError("cannot write", where=str(path), why=error.strerror or str(error)) from None
