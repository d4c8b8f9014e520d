"""Where the base model's files are: a local folder, or a snapshot in the hub's cache.

Everything after this works on a local folder, so that a run can be repeated offline and its inputs can be hashed.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from gradian.errors import ModelError

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "*.txt"]


@dataclass(frozen=True)
class BaseFolder:
    """A base model on disk: `name` as the user gave it, `path` where its files are, `commit` on the hub."""

    name: str
    path: Path
    commit: str | None = None

    @property
    def short_name(self) -> str:
        """The last part of the name, without folders or owner."""
        return self.name.rstrip("/").rpartition("/")[2] or self.name


def find_base(name: str, revision: str | None = None, *, trust_remote_code: bool = False) -> BaseFolder:
    """The folder of a base model; a hub id is fetched when it is not in the cache and the hub may be asked.

    Raises:
        ModelError: no such folder, no weights that can be read without unpickling, or offline and not in the cache.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return BaseFolder(name, _checked(folder, name))
    if folder.exists():
        raise ModelError(
            "the base model is a folder, this is a file", where=name, fix="give the folder that holds it"
        )
    if name.startswith((".", "/", "~")) or not _HUB_ID.match(name):
        raise ModelError(
            "base model folder not found", where=name, fix="give an existing folder or a hub id (owner/name)"
        )
    snapshot = _snapshot(name, revision, trust_remote_code)
    return BaseFolder(name, _checked(snapshot, name), snapshot.name)


def _snapshot(name: str, revision: str | None, trust_remote_code: bool) -> Path:
    from huggingface_hub import snapshot_download

    patterns = [*_FILES, "*.py"] if trust_remote_code else _FILES
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
    try:
        cached = Path(
            snapshot_download(name, revision=revision, allow_patterns=patterns, local_files_only=True)
        )
        lacking = _lacking(cached)
    except Exception as error:  # the cache says in many ways that something is not there
        if offline:
            raise _absent(name, revision, "HF_HUB_OFFLINE=1 is set") from error
    else:
        if lacking is None:
            return cached
        if offline:  # a tokenizer that was fetched alone leaves a snapshot without weights
            raise _absent(
                name, revision, f"the cache holds a part of it, without {lacking}; HF_HUB_OFFLINE=1 is set"
            )
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:
        text = str(error).strip()
        raise _absent(name, revision, text.splitlines()[0] if text else type(error).__name__) from None


def _lacking(folder: Path) -> str | None:
    """What a model folder needs and does not hold: `config.json`, `weights` or a shard's name; None when whole."""
    if not (folder / "config.json").is_file():
        return "config.json"
    if (folder / "model.safetensors").is_file():
        return None  # read before any shards
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    for index in indexes:
        for shard in _shards(index):
            if not (folder / shard).is_file():
                return shard
    return None if indexes or any(folder.glob("*.safetensors")) else "weights (*.safetensors)"


def _shards(index: Path) -> list[str]:
    """The files that an index of shards names, sorted.

    Raises:
        ModelError: it is not such an index.
    """
    try:
        return sorted({str(shard) for shard in json.loads(index.read_bytes())["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            "the index of the base model's shards is damaged",
            where=str(index),
            why=f"{type(error).__name__}: {error}",
            fix="fetch or copy the base model again",
        ) from None


def _absent(name: str, revision: str | None, why: str) -> ModelError:
    at = f" --revision {revision}" if revision else ""
    return ModelError(
        "the base model is not in the local cache and cannot be fetched",
        where=f"{name}@{revision}" if revision else name,
        why=why,
        fix=f"on a machine with network: hf download {name}{at}; or give --base-model a local folder",
    )


def _checked(folder: Path, name: str) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelError(
            "no config.json in this folder",
            where=name,
            fix="give the folder that holds the base model's config.json and its safetensors files",
        )
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
        raise ModelError(
            "the base model's weights are pickled, which Gradian does not open"
            if pickles
            else "no weights in this folder",
            where=f"{name}/{pickles[0]}" if pickles else name,
            why="opening a pickle can run any code" if pickles else "no *.safetensors file",
            fix="use a revision with safetensors, or load it once with transformers and save_pretrained() it",
        )
    if (lacking := _lacking(folder)) is not None:
        raise ModelError(
            f"the base model is not complete: {lacking} is missing",
            where=name,
            why="its index of shards names that file",
            fix="fetch or copy the base model again",
        )
    return folder
