"""Building an index: resumable to the byte, shared by processes, reused by other datasets."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from gradian.errors import IndexStoreError
from gradian.gradients.batch import TokenSequence
from gradian.gradients.layout import Layout, choose_projection, make_layout
from gradian.index.build import build, format_bytes, size_up
from gradian.index.identity import GradientSpec, Identity, row_hash, rows_digest
from gradian.index.store import RowEntry, open_store
from support.tiny import random_sequences

SHAPES = [("layers.0.q", 2, 12, 8), ("layers.1.q", 3, 5, 7)]
LAYOUT = make_layout(SHAPES, None)
DESCRIBE = {"gradian": "0", "base_model": "base", "adapter": "adapter", "dataset": "train.jsonl", "sites": 2}


class FakeCapture:
    """Vectors that depend on the row *and* on its batch, as rounding makes real ones: so a resume that meets
    other batches
    is caught. `stop_after` batches it is interrupted."""

    def __init__(self, stop_after: int | None = None, layout: Layout = LAYOUT) -> None:
        self.calls = 0
        self.rows = 0
        self._stop_after = stop_after
        self._layout = layout

    def __enter__(self) -> FakeCapture:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def gradients(self, sequences: list[TokenSequence]) -> tuple[np.ndarray, np.ndarray]:
        if self._stop_after is not None and self.calls >= self._stop_after:
            raise KeyboardInterrupt
        self.calls += 1
        self.rows += len(sequences)
        noise = sum(int(s.ids.sum()) for s in sequences) * 1e-6
        vectors = [
            np.random.default_rng(int(s.ids.sum())).standard_normal(self._layout.dimension) for s in sequences
        ]
        return np.asarray(vectors, dtype=np.float32) + np.float32(noise), np.asarray(
            [s.ids.sum() for s in sequences], dtype=np.float32
        )


def identity_of(sequences: list[TokenSequence], stored: str = "float32", adapter: str = "a") -> Identity:
    return Identity(
        "base",
        adapter,
        GradientSpec(None, 0, stored, "float32"),
        rows_digest([row_hash(s) for s in sequences]),
        {},
    )


def entries_of(sequences: list[TokenSequence]) -> list[RowEntry]:
    return [
        RowEntry(n, "train.jsonl", n + 1, row_hash(s), len(s), int(s.loss_mask.sum()), None)
        for n, s in enumerate(sequences)
    ]


def make(root: Path, sequences: list[TokenSequence], capture: FakeCapture, **identity: str):
    return build(
        root,
        identity_of(sequences, **identity),
        LAYOUT,
        sequences,
        entries_of(sequences),
        lambda: capture,
        tokens_per_batch=60,
        describe=DESCRIBE,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.name not in ("manifest.json", "lock")
    }


def test_what_is_stored_is_what_was_computed(tmp_path: Path) -> None:
    sequences = random_sequences(17)
    built = make(tmp_path, sequences, FakeCapture())
    store, manifest = open_store(tmp_path / built.manifest["index_id"])
    assert (built.computed, built.copied, built.found) == (17, 0, 0)
    assert manifest["rows"] == 17
    whole = store.vectors(range(17))
    for row, sequence in enumerate(sequences):
        alone, loss = FakeCapture().gradients([sequence])
        np.testing.assert_allclose(whole[row], alone[0], atol=1e-2)
        assert store.losses()[row] == loss[0]
    columns = np.concatenate(list(store.blocks()), axis=1)
    np.testing.assert_array_equal(columns, whole)
    assert [entry.line for entry in store.table()] == list(range(1, 18))


@pytest.mark.parametrize("stop_after", [0, 1, 3, 5])
def test_a_killed_build_goes_on_and_ends_with_the_same_bytes(tmp_path: Path, stop_after: int) -> None:
    sequences = random_sequences(23)
    straight = make(tmp_path / "straight", sequences, FakeCapture())
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "killed", sequences, FakeCapture(stop_after))
    folder = tmp_path / "killed" / straight.manifest["index_id"]
    with pytest.raises(IndexStoreError, match="not finished"):
        open_store(folder)
    resumed_capture = FakeCapture()
    resumed = make(tmp_path / "killed", sequences, resumed_capture)
    assert contents(folder) == contents(tmp_path / "straight" / straight.manifest["index_id"])
    assert resumed.found + resumed.computed == 23
    assert resumed_capture.rows == resumed.computed < 23 or stop_after == 0


def test_asking_again_computes_nothing(tmp_path: Path) -> None:
    sequences = random_sequences(9)
    make(tmp_path, sequences, FakeCapture())

    def never() -> FakeCapture:
        raise AssertionError("a row was computed again")

    again = build(
        tmp_path,
        identity_of(sequences),
        LAYOUT,
        sequences,
        entries_of(sequences),
        never,
        tokens_per_batch=60,
        describe=DESCRIBE,
    )
    assert (again.computed, again.found) == (0, 9)


def test_added_rows_are_the_only_ones_computed(tmp_path: Path) -> None:
    sequences = random_sequences(12)
    first = make(tmp_path, sequences, FakeCapture())
    more = random_sequences(15, seed=77)[:3]
    capture = FakeCapture()
    mixed = [more[0], *sequences[::-1], *more[1:]]
    second = make(tmp_path, mixed, capture)
    assert (second.copied, second.computed, capture.rows) == (12, 3, 3)
    np.testing.assert_array_equal(
        second.store.vectors(range(1, 13)), first.store.vectors(range(11, -1, -1)),
    )  # fmt: skip
    assert second.store.losses()[1] == first.store.losses()[11]


def test_another_adapter_shares_nothing(tmp_path: Path) -> None:
    sequences = random_sequences(6)
    one = make(tmp_path, sequences, FakeCapture())
    two = make(tmp_path, sequences, FakeCapture(), adapter="b")
    assert one.manifest["index_id"] != two.manifest["index_id"]
    assert two.computed == 6


def test_float16_keeps_small_blocks_beside_large_ones(tmp_path: Path) -> None:
    sequences = random_sequences(8)

    class Uneven(FakeCapture):
        def gradients(self, batch: list[TokenSequence]) -> tuple[np.ndarray, np.ndarray]:
            vectors, losses = super().gradients(batch)
            block = LAYOUT.blocks[0]
            vectors[:, block.offset : block.stop] *= 1e-6
            vectors[:, LAYOUT.blocks[1].offset : LAYOUT.blocks[1].stop] *= (
                1e6  # beyond float16 without a scale
            )
            return vectors, losses

    exact = make(tmp_path / "32", sequences, Uneven()).store.vectors(range(8))
    half = make(tmp_path / "16", sequences, Uneven(), stored="float16")
    assert half.store.vector_bytes * 2 == exact.nbytes
    got = half.store.vectors(range(8))
    for block in LAYOUT.blocks:
        part, wanted = got[:, block.offset : block.stop], exact[:, block.offset : block.stop]
        assert np.abs(part - wanted).max() <= 1e-3 * np.abs(wanted).max()
    np.testing.assert_array_equal(np.concatenate(list(half.store.blocks()), axis=1), got)


def _build_in_a_process(root: str, results: multiprocessing.Queue) -> None:
    sequences = random_sequences(40)
    built = make(Path(root), sequences, FakeCapture())
    results.put((built.computed, built.found))


def test_two_processes_build_one_index(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue = context.Queue()
    workers = [context.Process(target=_build_in_a_process, args=(str(tmp_path), results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    outcomes = sorted(results.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert outcomes == [(0, 40), (40, 0)]
    alone = make(tmp_path / "alone", random_sequences(40), FakeCapture())
    shared = tmp_path / alone.manifest["index_id"]
    assert contents(shared) == contents(tmp_path / "alone" / alone.manifest["index_id"])


def test_a_gradient_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    class Broken(FakeCapture):
        def gradients(self, batch: list[TokenSequence]) -> tuple[np.ndarray, np.ndarray]:
            vectors, losses = super().gradients(batch)
            vectors[0, 0] = np.nan
            return vectors, losses

    with pytest.raises(IndexStoreError, match="not finite"):
        make(tmp_path, random_sequences(4), Broken())


def test_damage_is_named_with_the_way_out(tmp_path: Path) -> None:
    built = make(tmp_path, random_sequences(4), FakeCapture())
    folder = tmp_path / built.manifest["index_id"]
    vectors = folder / "vectors.bin"
    vectors.write_bytes(vectors.read_bytes()[:-8])
    with pytest.raises(IndexStoreError, match="damaged or incomplete"):
        open_store(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(IndexStoreError, match="manifest is damaged"):
        open_store(folder)
    (folder / "manifest.json").write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(IndexStoreError, match="schema version 99"):
        open_store(folder)
    with pytest.raises(IndexStoreError, match="no index here"):
        open_store(tmp_path)


def test_a_full_disk_is_one_clear_error_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gradian.index.store as store_module

    sequences = random_sequences(23)
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 4:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store_module.os, "fsync", full)
        with pytest.raises(IndexStoreError, match="No space left") as caught:
            make(tmp_path, sequences, FakeCapture())
    assert "goes on where it stopped" in str(caught.value)
    resumed = make(tmp_path, sequences, FakeCapture())
    assert 0 < resumed.found < 23
    straight = make(tmp_path / "straight", sequences, FakeCapture())
    assert contents(tmp_path / straight.manifest["index_id"]) == contents(
        tmp_path / "straight" / straight.manifest["index_id"]
    )


def test_sizing_and_the_choice_of_projection(tmp_path: Path) -> None:
    sequences = random_sequences(10)
    sizing = size_up(sequences, LAYOUT, "float32", tmp_path / "not" / "there")
    assert sizing.bytes == 10 * LAYOUT.dimension * 4
    assert f"{sizing.rows} rows" in str(sizing)
    wide = [("a", 8, 576, 576)]
    exact = make_layout(wide, None).dimension * 4 * 10
    assert choose_projection(wide, 10, exact) is None
    assert choose_projection(wide, 10, exact - 1) == 512
    assert choose_projection(wide, 10, 10 * 2 * 8 * 64 * 4) == 64
    assert choose_projection(wide, 10, 1) == 16
    assert format_bytes(999) == "999 B"
    assert format_bytes(1_400_000_000) == "1.4 GB"
