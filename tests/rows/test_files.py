"""Every kind of file: the same records, the right lines, and a clear word about what cannot be read."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradian.errors import InputError, MissingDependencyError
from gradian.rows.files import iter_records, read_rows, require_clean
from gradian.rows.row import Row

RECORDS = [{"prompt": f"p{i}", "completion": f"c\n{i}", "cluster": "a" if i % 2 else None} for i in range(5)]


def lines(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def write_arrow(path: Path, records: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(records)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def save_to_disk(folder: Path, shards: list[list[dict[str, Any]]], indices: list[int] | None = None) -> Path:
    """What `Dataset.save_to_disk` writes (and older versions for a dataset with an indices mapping)."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{len(shards):05d}.arrow" for i in range(len(shards))]
    for name, records in zip(names, shards, strict=True):
        write_arrow(folder / name, records)
    state: dict[str, Any] = {"_data_files": [{"filename": name} for name in names], "_split": None}
    if indices is not None:
        table = pa.table({"indices": pa.array(indices, pa.uint64())})
        with (
            pa.OSFile(str(folder / "indices.arrow"), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as out,
        ):
            out.write_table(table)
        state["_indices_files"] = [{"filename": "indices.arrow"}]
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def write_every_kind(folder: Path) -> dict[str, Path]:
    paths = {
        name: folder / f"train{suffix}"
        for name, suffix in {
            "jsonl": ".jsonl",
            "json": ".json",
            "jsonl.gz": ".jsonl.gz",
            "jsonl.zst": ".jsonl.zst",
            "parquet": ".parquet",
        }.items()
    }
    paths["jsonl"].write_bytes(lines(RECORDS))
    paths["json"].write_text(json.dumps(RECORDS, indent=2))
    paths["jsonl.gz"].write_bytes(gzip.compress(lines(RECORDS)))
    paths["jsonl.zst"].write_bytes(zstandard.compress(lines(RECORDS)))
    pq.write_table(pa.Table.from_pylist(RECORDS), paths["parquet"])
    paths["save_to_disk"] = save_to_disk(folder / "saved", [RECORDS[:2], RECORDS[2:]])
    return paths


def test_every_kind_gives_the_same_rows(tmp_path: Path) -> None:
    for kind, path in write_every_kind(tmp_path).items():
        dataset = read_rows(path)
        assert dataset.kind == kind
        assert [row.fields for row in dataset.rows] == RECORDS, kind
        assert [row.row for row in dataset.rows] == [0, 1, 2, 3, 4]
        assert [row.group for row in dataset.rows] == [None, "a", None, "a", None]
        assert dataset.problems == ()
        assert require_clean(dataset) is dataset
        assert len(dataset.sha256) == 64


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst"])
def test_lines_count_blank_lines_and_crlf_and_bom(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train{suffix}"
    data = b'\xef\xbb\xbf{"text": "a"}\r\n\r\n{"text": "b"}\r\n   \n{"text": "c"}'
    if suffix.endswith("gz"):
        data = gzip.compress(data)
    elif suffix.endswith("zst"):
        data = zstandard.compress(data)
    path.write_bytes(data)
    rows = read_rows(path).rows
    assert [(row.row, row.line, row.fields["text"]) for row in rows] == [
        (0, 1, "a"),
        (1, 3, "b"),
        (2, 5, "c"),
    ]
    assert rows[1].where == f"{path}:3"


BAD_LINES = [
    (b'{"a": 1', "cut off", 7),
    (b"[1, 2]", "a list, not an object", 0),
    (b'"text"', "text, not an object", 0),
    (b"17", "a number, not an object", 0),
    (b"null", "null, not an object", 0),
    (b"true", "a boolean, not an object", 0),
    (b'{"a": NaN}', "NaN is not a JSON value", 6),
    (b'{"a": "NaN", "b": -Infinity}', "-Infinity is not a JSON value", 18),
    (b'{"a": Infinity}', "Infinity is not a JSON value", 6),
    ('{"é": oops}'.encode(), "not JSON", 7),
    (b"{'a': 1}", "not JSON", 1),
    (b'{"a": "\xe9"}', "byte 0xE9 is not UTF-8", 7),
    (b'{"a": "\\ud83d"}', "surrogate", 0),
    (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply", 0),
    (b"\x00\x01\x02", "not JSON", 0),
]


@pytest.mark.parametrize(("bad", "why", "offset"), BAD_LINES)
def test_a_bad_line_is_named_and_the_others_are_read(
    tmp_path: Path, bad: bytes, why: str, offset: int
) -> None:
    first = b'{"text": "a"}\n'
    path = tmp_path / "train.jsonl"
    path.write_bytes(first + bad + b'\n{"text": "c"}\n')
    dataset = read_rows(path)
    assert [row.row for row in dataset.rows] == [0, 2]
    (problem,) = dataset.problems
    assert (problem.row, problem.line) == (1, 2)
    assert why in problem.why
    assert problem.byte_offset == len(first) + offset
    with pytest.raises(InputError, match=r"train\.jsonl:2") as error:
        require_clean(dataset)
    assert "gradian diagnose" in str(error.value)


def test_require_clean_says_how_many_more(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"text": "a"}\nx\ny\nz\n')
    with pytest.raises(InputError, match="2 more records"):
        require_clean(read_rows(path))


def test_json_list_gives_the_line_of_each_object(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text('[\n  {"text": "a"},\n\n  {"text":\n "b"}, {"text": "c"},\n  {"n": NaN},\n  7\n]\n')
    dataset = read_rows(path)
    assert [(row.row, row.line) for row in dataset.rows] == [(0, 2), (1, 4), (2, 5)]
    assert [(item.row, item.line, item.why) for item in dataset.problems] == [
        (3, 6, "NaN is not a JSON value"),
        (4, 7, "the record is a number, not an object"),
    ]


@pytest.mark.parametrize(
    ("text", "rows", "line"),
    [
        ('[{"text": "a"},\n{"text": "b"', 1, 2),
        ('[{"text": "a"}\n{"text": "b"}]', 1, 2),
        ('[{"text": "a"},\n{"text": "b"},\n', 2, 3),
        ('[{"text": "a"},\n oops, {"text": "b"}]', 1, 2),
    ],
)
def test_a_broken_json_list_keeps_what_came_before(tmp_path: Path, text: str, rows: int, line: int) -> None:
    path = tmp_path / "train.json"
    path.write_text(text)
    dataset = read_rows(path)
    assert len(dataset.rows) == rows
    assert [problem.line for problem in dataset.problems] == [line]


def test_text_after_a_list_is_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_bytes('\ufeff[{"text": "é"}]\n[{"text": "b"}]'.encode())
    dataset = read_rows(path)
    assert (len(dataset.rows), [item.line for item in dataset.problems]) == (1, [2])
    assert dataset.problems[0].byte_offset == len('\ufeff[{"text": "é"}]\n'.encode())
    path.write_text('{"data": [{"text": "a"}], "x": ')
    dataset = read_rows(path)
    assert (len(dataset.rows), len(dataset.problems)) == (1, 1)


def test_json_lines_with_a_bad_first_line_in_a_json_file(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text('{"messages": [{"role": "user", "content": "a"}], "n": NaN}\n{"text": "b"}\n')
    dataset = read_rows(path)
    assert [dict(row.fields) for row in dataset.rows] == [{"text": "b"}]
    assert [item.line for item in dataset.problems] == [1]


def test_json_object_with_one_list_of_objects(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text('{"version": [1],\n "data": [\n{"text": "a"},\n{"text": "b"}]}')
    assert [row.line for row in read_rows(path).rows] == [3, 4]
    path.write_text('{"data": [{"text": "a"}, {"text": NaN}], "version": 1}')
    dataset = read_rows(path)
    assert (len(dataset.rows), len(dataset.problems)) == (1, 1)
    path.write_text('{"train": [{"text": "a"}], "test": [{"text": "b"}]}')
    with pytest.raises(InputError, match="`train`, `test`"):
        read_rows(path)


def test_json_file_with_one_row_or_with_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    message = {"role": "user", "content": "hi"}
    path.write_text(json.dumps({"messages": [message]}, indent=1))
    assert [row.fields for row in read_rows(path).rows] == [{"messages": [message]}]
    path.write_bytes(lines(RECORDS))
    assert [row.line for row in read_rows(path).rows] == [1, 2, 3, 4, 5]


def test_a_json_list_in_a_jsonl_file_is_read_as_a_list(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(RECORDS, indent=1))
    assert [row.fields for row in read_rows(path).rows] == RECORDS
    path.write_text(json.dumps(RECORDS))
    assert [row.fields for row in read_rows(path).rows] == RECORDS
    path.write_text('[1, 2]\n{"text": "a"}\n')
    dataset = read_rows(path)
    assert ([row.line for row in dataset.rows], [item.line for item in dataset.problems]) == ([2], [1])
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(json.dumps(RECORDS).encode()))
    assert [row.fields for row in read_rows(path.with_suffix(".jsonl.gz")).rows] == RECORDS


def test_csv_lines_with_quoted_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(
        b'\xef\xbb\xbfprompt,completion\r\n"a,\r\nb",c\r\nd,e\r\n\r\nonly one\r\nx,caf\xe9\r\nf,"g ""h"""\r\n'
    )
    dataset = read_rows(path)
    assert [(row.row, row.line, dict(row.fields)) for row in dataset.rows] == [
        (0, 2, {"prompt": "a,\r\nb", "completion": "c"}),
        (1, 4, {"prompt": "d", "completion": "e"}),
        (4, 8, {"prompt": "f", "completion": 'g "h"'}),
    ]
    assert [(item.row, item.line) for item in dataset.problems] == [(2, 6), (3, 7)]
    assert "1 cells under 2 columns" in dataset.problems[0].why
    assert "0xE9" in dataset.problems[1].why


def test_csv_long_cells_unclosed_quotes_and_headers(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text\n" + "x" * 300_000 + "\n")
    assert len(read_rows(path).rows[0].fields["text"]) == 300_000
    path.write_text('text\nok\n"never closed\nmore\n')
    dataset = read_rows(path)
    assert (len(dataset.rows), [item.line for item in dataset.problems]) == (1, [3])
    path.write_text("text,text\na,b\n")
    with pytest.raises(InputError, match="`text` twice"):
        read_rows(path)
    tabs = tmp_path / "train.tsv"
    tabs.write_text("prompt\tcompletion\na,b\tc\n")
    assert read_rows(tabs).rows[0].fields == {"prompt": "a,b", "completion": "c"}


def test_null_fields_of_tables_stay(tmp_path: Path) -> None:
    records = [
        {
            "messages": [
                {"role": "user", "content": "a", "name": None},
                {"role": "x", "content": None, "name": "n"},
            ]
        }
    ]
    path = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist(records), path)
    assert read_rows(path).rows[0].fields == records[0]


def test_saved_indices_are_honoured(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "saved", [RECORDS[:2], RECORDS[2:]], indices=[4, 0, 4, 2])
    rows = read_rows(folder).rows
    assert [row.fields["prompt"] for row in rows] == ["p4", "p0", "p4", "p2"]
    assert [row.row for row in rows] == [0, 1, 2, 3]
    assert [Path(row.file).name[:10] for row in rows] == [
        "data-00001",
        "data-00000",
        "data-00001",
        "data-00001",
    ]
    bad = save_to_disk(tmp_path / "bad", [RECORDS], indices=[9])
    with pytest.raises(InputError, match="indices do not fit"):
        read_rows(bad)


def test_splits_of_a_saved_dict(tmp_path: Path) -> None:
    root = tmp_path / "dict"
    for split in ("train", "validation", "test"):
        save_to_disk(root / split, [[{"text": split}]])
    (root / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation", "test"]}))
    assert read_rows(root).rows[0].fields == {"text": "train"}
    assert read_rows(root, split="eval").rows[0].fields == {"text": "test"}
    assert read_rows(root, split="validation").rows[0].fields == {"text": "validation"}
    (root / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))
    with pytest.raises(InputError, match="no `test` or `validation` split"):
        read_rows(root, split="eval")
    (root / "dataset_dict.json").write_text(json.dumps({"splits": ["../dict"]}))
    with pytest.raises(InputError):
        read_rows(root)


@pytest.mark.parametrize("filename", ["../secret.arrow", "/etc/passwd", "missing.arrow", 7])
def test_saved_state_cannot_point_elsewhere(tmp_path: Path, filename: object) -> None:
    write_arrow(tmp_path / "secret.arrow", RECORDS)
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": filename}]}))
    with pytest.raises(InputError, match="damaged"):
        read_rows(folder)


def test_damaged_containers(tmp_path: Path) -> None:
    for name, data in {
        "cut.jsonl.gz": gzip.compress(lines(RECORDS) * 500)[:-20],
        "no.jsonl.gz": b"plain",
        "no.jsonl.zst": b"plain",
        "cut.jsonl.zst": zstandard.compress(os.urandom(5000))[:-100],
        "no.parquet": b"plain",
    }.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(InputError, match=name):
            read_rows(path)
    saved = save_to_disk(tmp_path / "saved", [RECORDS])
    next(saved.glob("*.arrow")).write_bytes(b"plain")
    with pytest.raises(InputError, match="damaged"):
        read_rows(saved)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.jsonl.gz"])
@pytest.mark.parametrize("content", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_no_rows_is_an_error(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(InputError, match="no rows"):
        read_rows(path)
    path.write_bytes(gzip.compress(b"") if name.endswith("gz") else b"[]" if name.endswith(".json") else b"")
    with pytest.raises(InputError, match="no rows"):
        read_rows(path)


def test_utf16_is_named(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.json", "a.csv"):
        (tmp_path / name).write_text('{"text": "a"}', encoding="utf-16")
        with pytest.raises(InputError, match="UTF-16"):
            read_rows(tmp_path / name)


def test_missing_paths_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.jsonl").write_bytes(lines(RECORDS))
    monkeypatch.chdir(tmp_path)
    for wrong in ("trian.jsonl", "train.json", str(tmp_path / "train.jsnl")):
        with pytest.raises(InputError, match=r"did you mean .*train\.jsonl"):
            read_rows(wrong)
    with pytest.raises(InputError) as error:
        read_rows("tatsu-lab/alpaca")
    assert 'load_dataset("tatsu-lab/alpaca", split="train").to_json("train.jsonl")' in str(error.value)
    with pytest.raises(InputError, match="address"):
        read_rows("https://example.com/a.jsonl")
    for wrong in ("", "nowhere/to/be/found.jsonl", "a\0b", "x" * 5000):
        with pytest.raises(InputError):
            read_rows(wrong)
    (tmp_path / "train.txt").write_text("x")
    with pytest.raises(InputError, match="kind of file"):
        read_rows("train.txt")
    with pytest.raises(InputError, match=r"pass one of its files: .*train\.jsonl"):
        read_rows(str(tmp_path))
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InputError, match="no regular file"):
        read_rows("pipe.jsonl")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(lines(RECORDS))
    path.chmod(stat.S_IWUSR)
    with pytest.raises(InputError, match="permission"):
        read_rows(path)


def test_zst_without_zstandard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(lines(RECORDS)))
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "gradian\[zst\]"'):
        read_rows(path)


@pytest.mark.parametrize(
    ("value", "group"), [("a", "a"), (" b ", "b"), (3, "3"), (0, "0"), ("", None), (None, None), ("  ", None)]
)
def test_groups(tmp_path: Path, value: object, group: str | None) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(lines([{"text": "a", "cluster_id": value}]))
    assert read_rows(path).rows[0].group == group


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    records=st.lists(st.dictionaries(st.text(), JSON, max_size=4), min_size=1, max_size=6),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
    newline=st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_what_is_written_is_read(
    tmp_path: Path, records: list[dict[str, Any]], ascii_only: bool, indent: int | None, newline: str
) -> None:
    by_line = tmp_path / "a.jsonl"
    by_line.write_bytes(newline.join(json.dumps(item, ensure_ascii=ascii_only) for item in records).encode())
    document = tmp_path / "a.json"
    document.write_bytes(json.dumps(records, ensure_ascii=ascii_only, indent=indent).encode())
    for path in (by_line, document):
        dataset = read_rows(path)
        assert [row.fields for row in dataset.rows] == records
        assert [row.row for row in dataset.rows] == list(range(len(records)))
        text = path.read_bytes().decode()
        for row in dataset.rows:
            assert row.line is not None
            assert text.split("\n")[row.line - 1].lstrip(" [\r")[:1] == "{"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    data=st.binary(max_size=200),
    name=st.sampled_from(["a.jsonl", "a.json", "a.csv", "a.jsonl.gz", "a.parquet"]),
)
def test_garbage_never_ends_in_a_traceback(tmp_path: Path, data: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    try:
        records = list(iter_records(path))
    except InputError:
        return  # the whole file is refused, with a message
    assert [record.row for record in records] == list(range(len(records)))
    assert all(isinstance(record, Row) or record.why for record in records)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    cells=st.lists(
        st.tuples(st.text("ab,\"\n\r'é", max_size=6), st.text("xy\n", max_size=4)), min_size=1, max_size=5
    )
)
def test_csv_round_trip(tmp_path: Path, cells: list[tuple[str, str]]) -> None:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, quoting=csv.QUOTE_ALL)
    writer.writerow(["prompt", "completion"])
    writer.writerows(cells)
    path = tmp_path / "a.csv"
    path.write_bytes(buffer.getvalue().encode())
    rows = read_rows(path).rows
    assert [(row.fields["prompt"], row.fields["completion"]) for row in rows] == cells
