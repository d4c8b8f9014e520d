"""The adapter on disk: a header that may lie, and matrices that may be zero or NaN."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.run.adapter import LORA_KEY, read_adapter
from gradian.run.artefact import ArtefactError
from gradian.run.safetensors_header import decode, read_header, scan_tensor


def raw_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def save(path: Path, tensors: dict[str, np.ndarray], dtypes: dict[str, str] | None = None) -> Path:
    """Writes a safetensors file; bfloat16 is given as uint16 with its dtype named."""
    names = {"float32": "F32", "float16": "F16", "float64": "F64", "uint8": "U8"}
    header, data = {}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        dtype = (dtypes or {}).get(name) or names[str(array.dtype)]
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    return raw_file(path, header, data)


def bfloat16(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("dtype", ["F32", "F16", "F64", "BF16"])
def test_a_scan_in_every_dtype(tmp_path: Path, dtype: str) -> None:
    values = np.array([0.5, -2.0, np.nan, np.inf, -np.inf, 0.0, 1.5], dtype=np.float32)
    stored = {"F32": values, "F16": values.astype(np.float16), "F64": values.astype(np.float64),
              "BF16": bfloat16(values)}[dtype]  # fmt: skip
    path = save(tmp_path / "a.safetensors", {"t": stored}, {"t": dtype})
    header = read_header(path)
    scan = scan_tensor(path, header.tensors[0])
    assert (scan.max_abs, scan.nan, scan.infinite) == (2.0, 1, 2)
    assert scan.sum_squares == 0.25 + 4 + 2.25
    assert not scan.zero
    np.testing.assert_array_equal(decode(np.frombuffer(stored.tobytes(), np.uint8), dtype), values)


def test_negative_zero_is_zero(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", {"t": np.array([0.0, -0.0], dtype=np.float32)})
    assert scan_tensor(path, read_header(path).tensors[0]).zero


def test_a_scan_in_chunks_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    path = save(tmp_path / "a.safetensors", {"t": values})
    tensor = read_header(path).tensors[0]
    whole = scan_tensor(path, tensor)
    monkeypatch.setattr("gradian.run.safetensors_header.SCAN_CHUNK_BYTES", 64)
    parts = scan_tensor(path, tensor)
    assert parts.max_abs == whole.max_abs
    assert parts.sum_squares == pytest.approx(whole.sum_squares)


@pytest.mark.filterwarnings("error")
def test_values_beyond_the_range_of_float32(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", {"t": np.array([1e200, -3.0])})
    scan = scan_tensor(path, read_header(path).tensors[0])
    assert scan.max_abs == 1e200
    assert scan.sum_squares == float("inf")
    path = save(tmp_path / "b.safetensors", {"t": np.array([1e30, 1e30], dtype=np.float32)})
    assert scan_tensor(path, read_header(path).tensors[0]).sum_squares == pytest.approx(2e60)


def test_an_unknown_dtype_can_still_be_zero(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", {"t": np.zeros(8, dtype=np.uint8)}, {"t": "F8_E4M3"})
    scan = scan_tensor(path, read_header(path).tensors[0])
    assert scan.zero
    assert not scan.known


def test_a_tensor_without_elements(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", {"t": np.zeros((0, 4), dtype=np.float32)})
    header = read_header(path)
    assert header.tensors[0].size == 0
    assert scan_tensor(path, header.tensors[0]).zero


def entry(**changes: Any) -> dict[str, Any]:
    return {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    ("header", "data", "why"),
    [
        (entry(data_offsets=[0, 800]), b"12345678", "cut short"),
        (entry(data_offsets=[-8, 0]), b"12345678", "lies at bytes"),
        (entry(data_offsets=[8, 0]), b"12345678", "lies at bytes"),
        (entry(shape=[3]), b"12345678", "holds 8 bytes"),
        (entry(shape=[2**40, 2**40]), b"12345678", "holds 8 bytes"),
        (entry(shape=[-2]), b"12345678", "malformed"),
        (entry(shape=[True, 2]), b"12345678", "malformed"),
        (entry(shape="2"), b"12345678", "malformed"),
        (entry(data_offsets=[0]), b"12345678", "malformed"),
        (entry(dtype=3), b"12345678", "malformed"),
        ({"t": None}, b"", "malformed"),
        ([1], b"", "not a JSON object"),
        (b"{", b"", "not JSON"),
        (b"\xff\xfe", b"", "not JSON"),
        (b"[" * 100_000, b"", "not JSON"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: Any, data: bytes, why: str) -> None:
    with pytest.raises(ArtefactError, match=why):
        read_header(raw_file(tmp_path / "a.safetensors", header, data))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "0 bytes long"),
        (b"\xff" * 8 + b"{}", "claims a header"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "claims a header"),
    ],
)
def test_other_files_under_that_name(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match=why):
        read_header(path)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120), st.booleans())
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, framed: bool
) -> None:
    path = tmp_path_factory.mktemp("adapter") / "a.safetensors"
    path.write_bytes((len(data).to_bytes(8, "little") if framed else b"") + data)
    with contextlib.suppress(ArtefactError):
        read_header(path)


@pytest.mark.parametrize(
    ("name", "module", "matrix"),
    [
        (
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
            "model.layers.0.self_attn.q_proj",
            "lora_A",
        ),
        ("base_model.model.model.embed_tokens.lora_embedding_B", "model.embed_tokens", "lora_embedding_B"),
        ("base_model.model.x.lora_magnitude_vector.weight", "x", "lora_magnitude_vector"),
        ("layers.0.q.lora_B.default.weight", "layers.0.q", "lora_B"),
    ],
)
def test_tensor_names(name: str, module: str, matrix: str) -> None:
    match = LORA_KEY.match(name)
    assert match is not None
    assert (match["module"], match["matrix"]) == (module, matrix)


def test_an_adapter_of_a_real_run(runs: Path) -> None:
    adapter, problems = read_adapter(runs / "trl-1.16.0", ".")
    assert problems == []
    assert adapter.config["r"] == 2
    assert len(adapter.matrices("lora_B")) == 4
    assert all(not scan.zero for scan in adapter.b_scans.values())
    assert adapter.files == ("adapter_config.json", "adapter_model.safetensors")


def test_a_pickle_is_named_and_not_opened(tmp_path: Path) -> None:
    weights = tmp_path / "adapter_model.bin"
    weights.write_bytes(b"cos\nsystem\n(S'touch canary'\ntR.")
    weights.chmod(0)
    adapter, problems = read_adapter(tmp_path, "adapter")
    assert adapter.pickle == "adapter_model.bin"
    assert adapter.tensors == ()
    assert [(problem.path, problem.kind) for problem in problems] == [
        ("adapter/adapter_model.bin", "not_read")
    ]


def test_damaged_weights_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    (tmp_path / "adapter_config.json").write_text("{")
    adapter, problems = read_adapter(tmp_path, ".")
    assert adapter.damage is not None
    assert not adapter.has_config
    assert sorted(problem.path for problem in problems) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
