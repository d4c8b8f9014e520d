"""What makes one index different from another: the inputs that its id hashes.

The damping is not among them: it is applied when vectors are scored, so that asking again with another damping
computes no gradient. Two ids exist: the *gradient id* (checkpoint, gradient spec, versions), under which the
vector of one row can be reused by any dataset that holds the same tokens, and the *index id*, which adds the
rows in their order.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gradian.gradients.batch import TokenSequence

#: Raise it when vectors of the same inputs would come out differently.
FORMAT = 1

_BLOB_NAME = re.compile(r"^[0-9a-f]{64}$")
_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "config.json", "adapter_config.json")


@dataclass(frozen=True)
class GradientSpec:
    """How a row becomes a vector.

    Attributes:
        projection: width of projected sides; None for exact vectors.
        seed: of the projection matrices.
        stored_dtype: `float32` or `float16` (with a scale a block and row).
        compute_dtype, device: dtype of the model's weights and kind of device; other kinds round differently.
        reduction: `sum` over the row's targets.
    """

    projection: int | None
    seed: int
    stored_dtype: str
    compute_dtype: str
    device: str = "cpu"
    reduction: str = "sum"


@dataclass(frozen=True)
class Identity:
    """The inputs of an index.

    Attributes:
        base_sha256, adapter_sha256: digests of the weights.
        spec: the gradient spec.
        rows_sha256: digest of all rows' token hashes in order.
        versions: of the libraries that compute gradients.
    """

    base_sha256: str
    adapter_sha256: str
    spec: GradientSpec
    rows_sha256: str
    versions: Mapping[str, str]

    @property
    def gradient_id(self) -> str:
        """Equal for every index whose row vectors may be mixed."""
        data = asdict(self)
        del data["rows_sha256"]
        return _digest({"format": FORMAT, **data})[:16]

    @property
    def index_id(self) -> str:
        return _digest({"format": FORMAT, **asdict(self)})[:16]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def row_hash(sequence: TokenSequence) -> str:
    """Hash of a row's ids and targets: two rows with the same hash have the same gradient."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(sequence.ids.astype("<i4").tobytes())
    digest.update(b"|")
    digest.update(sequence.loss_mask.astype("u1").tobytes())
    return digest.hexdigest()


def rows_digest(hashes: Sequence[str]) -> str:
    """Digest of all rows in their order."""
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file; read off the name where the hub's cache has put it there."""
    real = path.resolve()
    if real.parent.name == "blobs" and _BLOB_NAME.match(real.name):
        return real.name
    digest = hashlib.sha256()
    with real.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def weights_sha256(folder: Path) -> str:
    """Digest of a model folder's weights and config, file by file in the order of their names."""
    files = sorted({path for pattern in _WEIGHT_FILES for path in folder.glob(pattern)})
    return _digest({path.name: file_sha256(path) for path in files})


def computing_versions() -> dict[str, str]:
    """Versions of what computes gradients; `absent` where a package is not installed."""
    found = {}
    for package in ("torch", "transformers", "peft"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
