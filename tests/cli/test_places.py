"""Where the base model, the tokeniser and the index come from, and what happens when half of one is there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest

from gradian.cli import main
from gradian.cli.console import ConsoleListener
from gradian.errors import IndexStoreError, ModelError
from gradian.gradients.layout import make_layout
from gradian.index import build as build_module
from gradian.index.store import IndexStore, open_store
from gradian.model.places import find_base
from gradian.verbs.fine_tune import FineTune

SHARDS = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}


def write(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        text = json.dumps(SHARDS) if name.endswith("index.json") else "{}"
        (folder / name).write_text(text)
    return folder


class Hub:
    """Stands in for the hub: a snapshot in the cache, completed when it is asked for over the network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetched = 0

    def download(self, name: str, *, local_files_only: bool = False, **_: Any) -> str:
        if not local_files_only:
            self.fetched += 1
            write(self.folder, "config.json", *SHARDS["weight_map"].values())
        return str(self.folder)


PARTS = [
    (("config.json", "tokenizer.json"), "weights"),
    (("tokenizer.json",), "config.json"),
    (("config.json", "model.safetensors.index.json", "model-1.safetensors"), "model-2.safetensors"),
]


@pytest.mark.parametrize(("files", "lacking"), PARTS)
def test_a_part_of_a_model_in_the_cache_is_completed_or_named(
    files: tuple[str, ...], lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(write(tmp_path / "snapshot", *files))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.download)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="hf download owner/name") as caught:
        find_base("owner/name")
    assert lacking in str(caught.value)
    assert hub.fetched == 0
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert find_base("owner/name").path == hub.folder
    assert hub.fetched == 1
    find_base("owner/name")
    assert hub.fetched == 1, "whole now: the network is not asked again"


def test_a_local_folder_without_a_shard_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, "config.json", "model.safetensors.index.json", "model-1.safetensors")
    with pytest.raises(ModelError, match=r"model-2\.safetensors is missing"):
        find_base(str(folder))
    (folder / "model.safetensors.index.json").write_text('{"weight_map": []}')
    with pytest.raises(ModelError, match="index of the base model's shards is damaged"):
        find_base(str(folder))
    write(folder, "model.safetensors")
    assert find_base(str(folder)).path == folder, "a single file is read before any shards"


def fine_tune(tmp_path: Path, adapter: Path, run_tokenizer: Path | None, said: list[str]) -> FineTune:
    """A fine-tune whose parts are found already; only the choice of the tokeniser is left."""
    settings = SimpleNamespace(adapter=str(adapter), run="run" if run_tokenizer else None)
    made = FineTune(settings, SimpleNamespace(say=said.append, progress=lambda *_: None))
    made.__dict__["adapter"] = SimpleNamespace(path=adapter)
    made.__dict__["run"] = SimpleNamespace(tokenizer_folder=run_tokenizer) if run_tokenizer else None
    made.__dict__["base"] = SimpleNamespace(path=tmp_path / "base")
    return made


@pytest.mark.parametrize(
    ("holding", "adapter", "run", "chosen"),
    [
        (("out/adapter", "out", "run", "base"), "out/adapter", "run", "out/adapter"),
        (("out", "run", "base"), "out/adapter", "run", "run"),
        (("out", "base"), "out/adapter", None, "out"),
        (("out", "base"), "out/checkpoint-50", None, "out"),
        (("out", "base"), "out/my-lora", None, "base"),
        (("base",), "out/adapter", None, "base"),
    ],
)
def test_which_tokeniser_is_used(
    holding: tuple[str, ...],
    adapter: str,
    run: str | None,
    chosen: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in holding:
        write(tmp_path / name, "tokenizer.json")
    (tmp_path / adapter).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr("gradian.verbs.fine_tune.load_tokenizer", lambda place: place)
    said: list[str] = []
    made = fine_tune(tmp_path, tmp_path / adapter, tmp_path / run if run else None, said)
    assert made.tokenizer == str(tmp_path / chosen)
    if chosen == "base":
        assert said == []
    else:
        assert len(said) == 1
        assert str(tmp_path / chosen) in said[0]


LAYOUT = make_layout([("site", 1, 2, 2)], None)
MANIFEST = {
    "schema_version": 1, "index_id": "i", "gradient_id": "g",
    "identity": {"spec": {"stored_dtype": "float32"}},
    "rows": 1, "tokens": 3, "layout": LAYOUT.as_json(), "vector_bytes": 16, "timings": {"build_seconds": 0.1},
    "gradian": "0.1", "base_model": "base", "adapter": "adapter", "dataset": "train.jsonl", "sites": 1,
}  # fmt: skip


@pytest.fixture
def index(tmp_path: Path) -> Path:
    store = IndexStore(tmp_path / "index", LAYOUT, 1, "float32")
    store.create()
    store.write_rows([0], np.ones((1, 4), np.float32), np.ones(1, np.float32))
    store.write_manifest(MANIFEST)
    return store.folder


@pytest.mark.parametrize("key", [key for key in MANIFEST if key != "schema_version"])
def test_a_manifest_without_a_field_is_refused_by_its_name(index: Path, key: str) -> None:
    open_store(index)
    for damaged in ({name: MANIFEST[name] for name in MANIFEST if name != key}, {**MANIFEST, key: [7]}):
        (index / "manifest.json").write_text(json.dumps(damaged))
        with pytest.raises(IndexStoreError, match=f"manifest.*{key}"):
            open_store(index)
        assert main(["show-index", str(index)]) == 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"layout": {**LAYOUT.as_json(), "blocks": [["site", "C"]]}}, "layout.blocks"),
        ({"layout": {"k": None, "seed": 0}}, "layout.blocks"),
        ({"identity": {"spec": {"stored_dtype": "object"}}}, "identity.spec.stored_dtype"),
        ({"rows": -1}, "rows"),
        ({"timings": {}}, "timings.build_seconds"),
    ],
)
def test_a_manifest_with_a_wrong_value_is_refused_by_its_name(
    index: Path, changes: dict[str, Any], field: str
) -> None:
    (index / "manifest.json").write_text(json.dumps({**MANIFEST, **changes}))
    with pytest.raises(IndexStoreError, match="manifest") as caught:
        open_store(index)
    assert field in str(caught.value)


def test_nothing_of_a_manifest_or_a_remark_steers_the_terminal(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (index / "manifest.json").write_text(json.dumps({**MANIFEST, "base_model": "\x1b]0;owned\x07 \u202egpj"}))
    assert main(["show-index", str(index)]) == 0
    with ConsoleListener() as listener:
        listener.say("loading \x1b[2J\u202egpj")
        listener.progress("stage\x1b[2J", 1, 3)
    printed = capsys.readouterr()
    assert "owned" in printed.out
    assert "loading" in printed.err
    assert "stage" in printed.err
    for text in (printed.out, printed.err):
        assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_free_space_is_asked_for_without_st_blocks(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows: a stat result has no st_blocks; a file that is there counts with its length."""
    store, _ = open_store(index)
    monkeypatch.setattr(build_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    size = os.stat(index / "vectors.bin").st_size
    stat = Path.stat

    def without_blocks(path: Path, **options: Any) -> Any:
        real = stat(path, **options)
        return SimpleNamespace(st_size=real.st_size, st_mode=real.st_mode)

    monkeypatch.setattr(Path, "stat", without_blocks)
    assert size == store.vector_bytes
    build_module._check_space(store, index.parent)
    (index / "vectors.bin").unlink()
    with pytest.raises(IndexStoreError, match="are free"):
        build_module._check_space(store, index.parent)
