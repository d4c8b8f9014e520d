"""Build an index: every row's vector, once, resumable at any moment.

Batches depend on the rows' lengths alone, so a build that was killed meets the same batches again and ends with
the same bytes. Rows whose tokens another index of the same checkpoint already holds are copied from it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout

from gradian.errors import IndexStoreError
from gradian.gradients.batch import TokenSequence, plan_batches
from gradian.gradients.layout import Layout
from gradian.index.identity import Identity
from gradian.index.store import (
    COPIED,
    MISSING,
    SCHEMA_VERSION,
    IndexStore,
    RowEntry,
    open_store,
    read_manifest,
)

if TYPE_CHECKING:
    from gradian.gradients.capture import GradientCapture

#: Padded tokens in one pass. On a CPU larger batches gain nothing (measured on two cores: 512 to 2048 within 15 %).
TOKENS_PER_BATCH = {"cpu": 1024, "mps": 2048, "cuda": 16384}


@dataclass(frozen=True)
class Sizing:
    """What a build will take, stated before it starts.

    Attributes:
        rows, tokens: what goes through the model.
        dimension: length of a vector. bytes: of all vectors on disk.
        projection: width of projected sides, None for exact vectors.
        free_bytes: free space where the index goes.
    """

    rows: int
    tokens: int
    dimension: int
    bytes: int
    projection: int | None
    stored_dtype: str
    free_bytes: int

    def __str__(self) -> str:
        how = "exact" if self.projection is None else f"projected to {self.projection}"
        return (
            f"{self.rows:,} rows, {self.tokens:,} tokens, {self.dimension:,} values a row ({how}, "
            f"{self.stored_dtype}): "
            f"{format_bytes(self.bytes)} on disk, {format_bytes(self.free_bytes)} free"
        )


@dataclass(frozen=True)
class BuildResult:
    """A complete index and how it came about: rows computed now, copied from another index, found done."""

    store: IndexStore
    manifest: dict[str, Any]
    computed: int
    copied: int
    found: int


def size_up(sequences: Sequence[TokenSequence], layout: Layout, stored_dtype: str, root: Path) -> Sizing:
    """What building would take.

    Raises:
        IndexStoreError: there is not enough free space.
    """
    place = root
    while not place.exists() and place != place.parent:
        place = place.parent
    needed = layout.dimension * len(sequences) * np.dtype(stored_dtype).itemsize
    return Sizing(
        rows=len(sequences),
        tokens=sum(len(s) for s in sequences),
        dimension=layout.dimension,
        bytes=needed,
        projection=layout.k,
        stored_dtype=stored_dtype,
        free_bytes=shutil.disk_usage(place).free,
    )


def find_complete(root: Path, index_id: str) -> tuple[IndexStore, dict[str, Any]] | None:
    """The index of that id when it is complete, else None."""
    folder = root / index_id
    return open_store(folder) if (folder / "manifest.json").is_file() else None


def build(
    root: Path,
    identity: Identity,
    layout: Layout,
    sequences: Sequence[TokenSequence],
    entries: Sequence[RowEntry],
    open_capture: Callable[[], GradientCapture],
    *,
    tokens_per_batch: int,
    describe: dict[str, Any],
    progress: Callable[[int, int], None] | None = None,
    announce: Callable[[str], None] | None = None,
) -> BuildResult:
    """Build the index of these rows, or finish it, or find it finished.

    Args:
        root: the folder of all indexes.
        entries: the row table, one entry a sequence.
        open_capture: gives the hooks on the loaded model; called only when a row has to be computed.
        describe: what else the manifest should say (names and paths, for people).
        progress: called with tokens done and tokens in all.
        announce: called with a sentence when something takes the user's time for another reason.

    Raises:
        IndexStoreError: no space, cannot be written, damaged.
    """
    folder = root / identity.index_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if announce:
                announce(f"another process is building this index; waiting for it ({folder})")
            lock.acquire()
    except OSError as error:
        raise IndexStoreError("the index cannot be made here", where=str(folder), why=str(error)) from None
    try:
        if done := find_complete(root, identity.index_id):
            return BuildResult(*done, computed=0, copied=0, found=len(sequences))
        store = IndexStore(folder, layout, len(sequences), identity.spec.stored_dtype)
        _check_space(store, root)
        store.create()
        started = time.monotonic()
        found = int((store.state() != MISSING).sum())
        copied = _copy_known_rows(root, identity, store, entries)
        computed = _compute(store, sequences, open_capture, tokens_per_batch, progress)
        store.write_table(entries)
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "index_id": identity.index_id,
            "gradient_id": identity.gradient_id,
            "identity": identity.as_json(),
            "rows": len(sequences),
            "tokens": sum(len(s) for s in sequences),
            "layout": layout.as_json(),
            "vector_bytes": store.vector_bytes,
            **describe,
            "timings": {"build_seconds": round(time.monotonic() - started, 3)},
        }
        store.write_manifest(manifest)
        return BuildResult(store, manifest, computed, copied, found)
    finally:
        lock.release()


def _check_space(store: IndexStore, root: Path) -> None:
    held = store.folder / "vectors.bin"
    # What the file takes already. Windows knows no st_blocks: there a file is taken to hold what it is long.
    taken = 0
    if held.exists():
        stat = held.stat()
        blocks = getattr(stat, "st_blocks", None)
        taken = stat.st_size if blocks is None else blocks * 512
    needed = store.vector_bytes - taken
    free = shutil.disk_usage(root).free
    if needed > free:
        raise IndexStoreError(
            f"the index needs {format_bytes(needed)} and {format_bytes(free)} are free",
            where=str(root),
            fix="--projection 32 makes it smaller, --stored-dtype float16 halves it, --index-dir puts it elsewhere",
        )


def _compute(
    store: IndexStore,
    sequences: Sequence[TokenSequence],
    open_capture: Callable[[], GradientCapture],
    tokens_per_batch: int,
    progress: Callable[[int, int], None] | None,
) -> int:
    state = store.state()
    # Planned over everything that is not copied, done or not: a resumed build must meet the same batches.
    own = [row for row in range(len(sequences)) if state[row] != COPIED]
    batches = [
        [own[i] for i in batch] for batch in plan_batches([len(sequences[r]) for r in own], tokens_per_batch)
    ]
    waiting = [batch for batch in batches if any(state[row] == MISSING for row in batch)]
    total = sum(len(sequences[row]) for batch in batches for row in batch)
    done = total - sum(len(sequences[row]) for batch in waiting for row in batch)
    if not waiting:
        return 0
    with open_capture() as capture:
        for batch in waiting:
            if progress:
                progress(done, total)
            vectors, losses = capture.gradients([sequences[row] for row in batch])
            _require_finite(vectors, batch)
            store.write_rows(batch, vectors, losses)
            done += sum(len(sequences[row]) for row in batch)
    if progress:
        progress(done, total)
    return sum(len(batch) for batch in waiting)


def _require_finite(vectors: np.ndarray[Any, np.dtype[np.float32]], rows: Sequence[int]) -> None:
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        bad = [row for row, good in zip(rows, finite, strict=True) if not good]
        raise IndexStoreError(
            f"the gradient of row {bad[0]} is not finite",
            why="the adapter or the base holds NaN or infinite values, or half precision overflowed",
            fix="--dtype float32, and gradian diagnose --run ... for the adapter's tensors",
        )


def _copy_known_rows(root: Path, identity: Identity, store: IndexStore, entries: Sequence[RowEntry]) -> int:
    """Copy the vectors of rows whose tokens a finished index with the same gradient id holds."""
    copied = 0
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and path != store.folder):
        try:
            if read_manifest(folder)["gradient_id"] != identity.gradient_id:
                continue
            other, _ = open_store(folder)
            known = {entry.hash: number for number, entry in enumerate(other.table())}
        except (IndexStoreError, OSError, ValueError, KeyError, TypeError):
            continue  # of another version, unfinished or damaged: nothing to learn from it, and no reason to stop
        state = store.state()
        wanted = [n for n, entry in enumerate(entries) if state[n] == MISSING and entry.hash in known]
        losses = other.losses()
        for start in range(0, len(wanted), 64):
            rows = wanted[start : start + 64]
            sources = [known[entries[row].hash] for row in rows]
            store.write_rows(rows, other.vectors(sources), losses[sources], state=COPIED)
        copied += len(wanted)
    return copied


def format_bytes(size: float) -> str:
    """`1.4 GB`; decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit in ("B", "kB") else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
