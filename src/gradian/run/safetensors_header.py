"""The header of a safetensors file, and a scan of single tensors, without loading the file.

Format (huggingface/safetensors, README): 8 bytes little-endian header length, a JSON header
`{name: {dtype, shape, data_offsets}}`, then the tensors' bytes. Every number in it is checked against the
file
before it is used: a header may claim a length, an offset or a shape that the file does not have.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradian.run.artefact import ArtefactError

MAX_HEADER_BYTES = 100 * 1000 * 1000  # the limit of the reference implementation
DTYPE_BYTES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
MAX_DIMENSION = 2**48  # keeps products of a hostile shape small integers
SCAN_CHUNK_BYTES = 1024 * 1024  # bounds the memory of a scan, and stays in the processor's cache


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the header. `start` and `end` are byte offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class TensorFile:
    """The header of a safetensors file: its tensors by name, its metadata and its `bytes` on disk."""

    path: Path
    bytes: int
    tensors: tuple[Tensor, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TensorScan:
    """What is in a tensor's bytes.

    Attributes:
        max_abs: largest magnitude of the finite elements; 0.0 when there are none.
        nan, infinite: number of such elements.
        sum_squares: sum of the squares of the finite elements (to about 1e-5 of it).
        known: False for a dtype whose values are not decoded (8-bit floats); then only `max_abs == 0` is
            meaningful: it says that every byte is zero.
    """

    max_abs: float
    nan: int
    infinite: int
    sum_squares: float
    known: bool = True

    @property
    def zero(self) -> bool:
        """Every element is exactly zero."""
        return self.max_abs == 0.0 and self.nan == 0 and self.infinite == 0


def read_header(path: Path) -> TensorFile:
    """Reads the header. Raises ArtefactError when the file is no sound safetensors file."""
    try:
        if not path.is_file():
            raise ArtefactError("is not a regular file")
        with path.open("rb") as stream:
            total = os.fstat(stream.fileno()).st_size
            prefix = stream.read(8)
            if len(prefix) < 8:
                raise ArtefactError(f"is {total} bytes long, shorter than a safetensors header")
            length = int.from_bytes(prefix, "little")
            if prefix == b"version " or prefix.startswith(b"versio"):
                raise ArtefactError("is a Git LFS pointer, not the weights (run `git lfs pull`)")
            if length > min(MAX_HEADER_BYTES, total - 8):
                raise ArtefactError(
                    f"claims a header of {length} bytes in a file of {total}: cut short or no safetensors"
                )
            raw = stream.read(length)
    except OSError as error:
        raise ArtefactError(f"cannot be opened ({error.strerror or error})") from None
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        raise ArtefactError("has a header that is not JSON") from None
    if not isinstance(header, dict):
        raise ArtefactError("has a header that is not a JSON object")
    metadata = header.pop("__metadata__", None)
    data_start = 8 + length
    tensors = tuple(_tensor(name, entry, data_start, total) for name, entry in sorted(header.items()))
    texts = {k: v for k, v in metadata.items() if isinstance(v, str)} if isinstance(metadata, dict) else {}
    return TensorFile(path, total, tensors, texts)


def _tensor(name: str, entry: Any, data_start: int, total: int) -> Tensor:
    shape = entry.get("shape") if isinstance(entry, dict) else None
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    dtype = entry.get("dtype") if isinstance(entry, dict) else None
    if (
        not isinstance(dtype, str)
        or not isinstance(shape, list)
        or not all(type(size) is int and 0 <= size < MAX_DIMENSION for size in shape)
        or not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(type(offset) is int for offset in offsets)
    ):
        raise ArtefactError(f"has a malformed header entry for {name[:100]!r}")
    start, end = data_start + offsets[0], data_start + offsets[1]
    if not data_start <= start <= end <= total:
        raise ArtefactError(
            f"says that {name[:100]!r} lies at bytes {start} to {end} of {total}: the file was cut short"
        )
    width = DTYPE_BYTES.get(dtype)
    if width is not None and math.prod(shape) * width != end - start:
        raise ArtefactError(
            f"says that {name[:100]!r} has shape {shape} but holds {end - start} bytes of {dtype}"
        )
    return Tensor(name, dtype, tuple(shape), start, end)


def scan_tensor(path: Path, tensor: Tensor) -> TensorScan:
    """Scans a tensor's values in chunks, memory-mapped. Raises ArtefactError when the file cannot be read."""
    if tensor.end == tensor.start:
        return TensorScan(0.0, 0, 0, 0.0)
    try:
        raw = np.memmap(
            path, dtype=np.uint8, mode="r", offset=tensor.start, shape=(tensor.end - tensor.start,)
        )
    except (OSError, ValueError) as error:
        raise ArtefactError(f"cannot be read ({error})") from None
    max_abs, nan, infinite, sum_squares = 0.0, 0, 0, 0.0
    known = tensor.dtype in ("F64", "F32", "F16", "BF16")
    for begin in range(0, len(raw), SCAN_CHUNK_BYTES):
        chunk = np.asarray(raw[begin : begin + SCAN_CHUNK_BYTES])
        if not known:
            max_abs = max(max_abs, float(chunk.max(initial=0)))
            continue
        values = decode(chunk, tensor.dtype)
        # Largest and smallest are NaN or infinite as soon as one element is, so sound tensors need no other pass.
        high, low = float(values.max()), float(values.min())
        if not (math.isfinite(high) and math.isfinite(low)):
            bad_nan = int(np.isnan(values).sum())
            nan, infinite = nan + bad_nan, infinite + int(np.isinf(values).sum())
            values = values[np.isfinite(values)]
            high, low = (float(values.max()), float(values.min())) if values.size else (0.0, 0.0)
        max_abs = max(max_abs, high, -low)
        sum_squares += _sum_squares(values)
    return TensorScan(max_abs, nan, infinite, sum_squares, known)


def _sum_squares(values: NDArray[Any]) -> float:
    """Sum of squares: in float32 where its range suffices, which is many times faster, else in float64."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32, copy=False)
        total = float(np.dot(single, single))
    if math.isfinite(total):
        return total
    with np.errstate(over="ignore"):
        wide = values.astype(np.float64)
        return float(np.dot(wide, wide))


def decode(raw: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    """Little-endian bytes as floats. bfloat16 is the upper half of a float32 (no numpy dtype has it)."""
    if dtype == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return raw.view({"F64": "<f8", "F32": "<f4", "F16": "<f2"}[dtype])
