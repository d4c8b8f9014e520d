"""report.json there and back, what is wrong with a file, and writing whole files."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gradian.errors import ConfigError, InputError
from gradian.report.json_file import load_report, to_json
from gradian.report.model import SCHEMA_VERSION, Timings
from gradian.report.render import render, write_report
from support.reports import MECHANICAL, REPORTS


@pytest.mark.parametrize("name", REPORTS)
def test_json_round_trip(name: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(to_json(REPORTS[name]))
    assert load_report(path) == REPORTS[name]
    assert to_json(load_report(path)) == path.read_bytes()


def test_json_has_the_promised_names_and_timings_come_last() -> None:
    fields = json.loads(to_json(MECHANICAL))
    assert next(iter(fields)) == "schema_version"
    assert list(fields)[-1] == "timings"
    assert fields["verdict"]["outcome"] == "regression"
    assert fields["findings"][1]["fix"]["from"] is None  # not `from_`
    assert fields["groups"][0]["removal_effects"] == {"0.1": -7.204, "1": -6.713, "10": -1.041}
    assert to_json(MECHANICAL).endswith(b"\n}\n")


def test_equal_reports_differ_only_in_timings() -> None:
    slower = MECHANICAL.model_copy(update={"timings": Timings(seconds={"evaluate": 9e9})})
    first, second = to_json(MECHANICAL), to_json(slower)
    assert first != second
    assert first.split(b'"timings"')[0] == second.split(b'"timings"')[0]


def test_what_json_cannot_hold_survives(tmp_path: Path) -> None:
    assert MECHANICAL.evaluation is not None
    evaluation = MECHANICAL.evaluation.model_copy(update={"delta": math.nan, "ci": (-math.inf, math.inf)})
    report = MECHANICAL.model_copy(update={"evaluation": evaluation, "title": "lone \ud800"})
    path = tmp_path / "report.json"
    path.write_bytes(to_json(report))
    assert b"NaN" in path.read_bytes()
    json.loads(path.read_bytes(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    again = load_report(path)
    assert again.evaluation is not None
    assert math.isnan(again.evaluation.delta)
    assert again.evaluation.ci == (-math.inf, math.inf)
    assert again.title == "lone \\ud800"
    for format in ("text", "markdown", "html"):
        assert "not a number" in render(report, format)


def test_configuration_values_of_any_type_are_written(tmp_path: Path) -> None:
    config = {
        "path": Path("a/b"),
        "n": np.int64(3),
        "flag": np.bool_(True),
        "x": np.float32(0.5),
        "bad": np.nan,
    }
    provenance = MECHANICAL.provenance.model_copy(update={"config": config})
    report = MECHANICAL.model_copy(update={"provenance": provenance})
    path = tmp_path / "report.json"
    path.write_bytes(to_json(report))
    again = load_report(path).provenance.config
    assert again == {"path": "a/b", "n": 3, "flag": True, "x": 0.5, "bad": "NaN"}
    for format in ("markdown", "html"):  # a terminal leaves the configuration to gradian.yaml
        assert "a/b" in render(report, format)


def test_a_byte_order_mark_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"\xef\xbb\xbf" + to_json(MECHANICAL).replace(b"\n", b"\r\n"))
    assert load_report(path) == MECHANICAL


def edited(**changes: object) -> bytes:
    return json.dumps(json.loads(to_json(MECHANICAL)) | changes).encode()


def test_wrong_files_are_named_with_what_is_wrong(tmp_path: Path) -> None:
    bad_group = json.loads(to_json(MECHANICAL))["groups"]
    bad_group[3]["share"] = "much"
    cases: list[tuple[bytes, str]] = [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b'{"verdict": ', "report.json:1: the report is not JSON"),
        (b"\xff\xfe{}", "byte 0 is not UTF-8"),
        (b"[1]", "holds a list"),
        (b'{"checks": {}}', "looks like the output of `gradian diagnose`"),
        (b"[" * 100_000, "not JSON that can be read"),
        (edited(schema_version=SCHEMA_VERSION + 1), "made by a newer Gradian"),
        (edited(schema_version="1"), 'schema_version is "1", not a whole number'),
        (edited(schema_version=True), "not a whole number"),
        (edited(groups=bad_group), r"the field groups\[3\].share cannot be used"),
        (edited(novelty=1), "the field novelty is not known"),
        (edited(verdict={}), r"the field verdict.outcome cannot be used\n  why: Field required \(3 more\)"),
    ]
    for number, (data, message) in enumerate(cases):
        path = tmp_path / str(number) / "report.json"
        path.parent.mkdir()
        path.write_bytes(data)
        with pytest.raises(InputError, match=message) as raised:
            load_report(path)
        assert str(path) in str(raised.value)


def test_wrong_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        load_report(tmp_path / "nothing.json")
    with pytest.raises(InputError, match=r"this is a folder[\s\S]*report\.json"):
        load_report(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        load_report(str(tmp_path / "nul\0.json"))


def test_write_report(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    paths = write_report(MECHANICAL, folder, ["json", "html", "markdown", "text", "json"])
    assert [path.name for path in paths] == ["report.json", "report.html", "report.md", "report.txt"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in paths)
    assert paths[0].read_bytes() == to_json(MECHANICAL)
    assert paths[1].read_text(encoding="utf-8") == render(MECHANICAL, "html")
    assert paths[0].stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_unknown_format_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pdf"):
        write_report(MECHANICAL, tmp_path, ["json", "pdf"])
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_file_and_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(MECHANICAL, tmp_path, ["html"])
    old = (tmp_path / "report.html").read_bytes()
    real = os.replace

    def full(source: str, target: Path) -> None:
        if Path(target).name != "report.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError) as raised:
        write_report(REPORTS["diffuse"], tmp_path, ["json", "html", "markdown"])
    message = "No space left on device; not written: report.html, report.md; written: report.json"
    assert message in str(raised.value)
    assert (tmp_path / "report.html").read_bytes() == old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match=r"not written: report\.json"):
        write_report(MECHANICAL, tmp_path / "out", ["json"])


def test_showing_a_report_needs_no_heavy_library(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(to_json(MECHANICAL))
    program = (
        "import sys; from gradian.report.json_file import load_report;"
        "from gradian.report.render import render;"
        f"render(load_report({str(path)!r}), 'html');"
        "print([name for name in ('torch', 'transformers', 'sklearn', 'scipy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
