"""The command line itself: help, errors, config files, what is imported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

import gradian
from gradian.cli import main
from gradian.cli.app import COMMANDS
from gradian.cli.flags import write_resolved
from gradian.config import (
    SECTIONS,
    BuildIndexSettings,
    Config,
    DiagnoseSettings,
    EvaluateSettings,
    commented_config,
    read_config,
    resolve,
)
from gradian.errors import ConfigError, MissingDependencyError

HEAVY = ("torch", "transformers", "sklearn", "scipy", "peft", "pyarrow")


def imported_by(program: str) -> list[str]:
    code = f"import sys\n{program}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return list(yaml.safe_load(found.stdout.splitlines()[-1]))


def test_help_and_the_package_import_nothing_heavy() -> None:
    assert imported_by("from gradian.cli import main\nmain(['--help'])") == []
    assert imported_by("import gradian\ndir(gradian)") == []
    assert imported_by("from gradian.cli import main\nmain(['explain', 'data.empty_completion'])") == []


def test_diagnose_never_imports_torch_or_transformers(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "a question", "completion": "an answer"}) + "\n")
    found = imported_by(f"from gradian.cli import main\nmain(['diagnose', '--dataset', {str(rows)!r}])")
    assert not {"torch", "transformers", "sklearn", "peft"} & set(found)


def test_help_takes_little_time() -> None:
    def cpu_seconds() -> float:
        code = "import time\nfrom gradian.cli import main\nmain(['--help'])\nprint(time.process_time())"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return float(found.stdout.splitlines()[-1])

    # Processor time, the best of three, with room for a slow machine; measured 0.2 s.
    assert min(cpu_seconds() for _ in range(3)) < 1.0


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert len(capsys.readouterr().out) > 100


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["atribute"], "attribute"),
        (["attribute", "--metrc", "exact"], "--metric"),
        (["attribute", "--resamples", "3"], "resamples"),
        (["attribute", "--dtype", "int3"], "dtype"),
        (["show", "no-such.json"], "no-such.json"),
        (["show-index", "no-such-folder"], "no-such-folder"),
        (["explain", "data.empty_completon"], "data.empty_completion"),
        (["diagnose"], "--dataset"),
        (["diagnose", "--dataset", "x.jsonl", "--select", "dta."], "--list-checks"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert "Traceback" not in printed.err
    assert "pydantic" not in printed.err


def test_errors_are_json_when_json_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "no-such.json", "--json"]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert set(error) == {"what", "where", "why", "fix"}


@pytest.mark.parametrize(
    "format", ["text", "sarif"], ids=["less than a pipe holds", "more than a pipe holds"]
)
def test_a_closed_pipe_is_no_error(tmp_path: Path, format: str) -> None:
    """`gradian ... | head`, with a reader that is gone before the first byte: every write is refused."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{"p" * n}", "completion": "a"}}\n' for n in range(1, 9)))
    command = [sys.executable, "-m", "gradian", "diagnose", "--dataset", str(rows), "--format", format, "-q"]
    whole = subprocess.run(command, capture_output=True, check=False)
    assert (len(whole.stdout) > 65536) == (format == "sarif")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*command, "--exit-zero"], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60
        )
    finally:
        os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 0


def test_only_debug_prints_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import gradian.cli.app as app

    def broken() -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(app, "make_app", lambda: lambda *_, **__: broken())
    monkeypatch.delenv("GRADIAN_DEBUG", raising=False)
    assert main(["doctor"]) == 2
    plain = capsys.readouterr().err
    assert "internal error: ZeroDivisionError: a fault of ours" in plain
    assert "Traceback" not in plain
    assert main(["doctor", "--debug"]) == 2
    with_flag = capsys.readouterr().err
    monkeypatch.setenv("GRADIAN_DEBUG", "1")
    assert main(["doctor"]) == 2
    for printed in (with_flag, capsys.readouterr().err):
        assert "Traceback" in printed
        assert "in broken" in printed
        assert "internal error: ZeroDivisionError" in printed


@pytest.mark.parametrize("format", ["json", "text", "markdown"])
def test_text_that_a_code_page_lacks_is_spelled_out(tmp_path: Path, format: str) -> None:
    rows = tmp_path / "\u6587.jsonl"
    rows.write_text('{"prompt": "\u6587\u2192", "completion": ""}\n', encoding="utf-8")
    command = [sys.executable, "-m", "gradian", "diagnose", "--dataset", str(rows), "--format", format]
    done = subprocess.run(
        command, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "cp1252"}
    )
    assert done.returncode == 1, done.stderr
    assert b"\\u6587.jsonl" in done.stdout
    assert b"internal error" not in done.stderr


def test_the_floors_are_those_of_what_is_called() -> None:
    """`from_pretrained(dtype=...)` came with transformers 4.56, `torch.OutOfMemoryError` with torch 2.5."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    floors = dict(re.findall(r'"(torch|transformers|jsonschema)>=([\d.]+)"', text))
    as_numbers = {name: tuple(map(int, floor.split("."))) for name, floor in floors.items()}
    assert as_numbers["torch"] >= (2, 5)
    assert as_numbers["transformers"] >= (4, 56)
    assert as_numbers["jsonschema"] >= (4, 18)


def test_a_missing_schema_package_is_installed_by_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradian.evaluation.metrics import get_metric

    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(MissingDependencyError) as caught:
        get_metric("json_schema", schema={"type": "object"})
    extra = re.search(r"gradian\[(\w+)\]", str(caught.value))
    assert extra is not None
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(rf'^{extra[1]} = \["jsonschema', text, flags=re.MULTILINE)


class TestConfigFile:
    def test_every_key_is_written_explained_and_read_back(self) -> None:
        text = commented_config(base_model="owner/model")
        keys = {key for section in SECTIONS for key in section.model_fields}
        assert keys == set(Config.model_fields)
        for key in keys:
            assert f"\n{key}:" in text or f"\n# {key}:" in text
            assert Config.model_fields[key].description
        assert yaml.safe_load(text)["base_model"] == "owner/model"
        assert Config(**yaml.safe_load(text)).base_model == "owner/model"

    def test_init_config_writes_it_once(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "gradian.yaml"
        assert main(["init-config", "--base-model", "owner/model", "--output", str(path)]) == 0
        assert read_config(path)["base_model"] == "owner/model"
        assert main(["init-config", "--base-model", "other", "--output", str(path)]) == 2
        assert "exists already" in capsys.readouterr().err
        assert read_config(path)["base_model"] == "owner/model"

    def test_flags_override_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "c.yaml"
        path.write_text("metric: exact\nseed: 7\n")
        settings = resolve(Config, {"metric": "f1"}, path)
        assert (settings.metric, settings.seed) == ("f1", 7)

    @pytest.mark.parametrize(
        ("text", "where", "says"),
        [
            ("seed: 1\nmetrc: exact\n", "c.yaml:2", "did you mean metric?"),
            ("metric: [\n", "c.yaml:", "YAML"),
            ("- metric\n", "c.yaml", "keys and values"),
            ("resamples: few\n", "c.yaml: resamples", "not a value"),
        ],
    )
    def test_a_mistake_is_named_with_its_place(
        self, tmp_path: Path, text: str, where: str, says: str
    ) -> None:
        path = tmp_path / "c.yaml"
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            resolve(Config, {}, path)
        assert where in str(caught.value)
        assert says in str(caught.value)

    @pytest.mark.parametrize("kind", [DiagnoseSettings, EvaluateSettings, BuildIndexSettings, Config])
    def test_what_a_command_writes_replays_it(self, kind: type[BaseModel], tmp_path: Path) -> None:
        """Every key is set away from its default: one that was not read back would show."""
        values: dict[str, object] = {
            "dtype": "float16", "stored_dtype": "float16", "engine": "fisher", "projection": "64",
            "metric_options": {"pattern": "a+"}, "select": ["data."], "ignore": ["logs."],
            "thresholds": {"config.lr_high.factor": 2.0}, "index_budget_gb": 2.5, "equivalence_margin": 0.1,
        }  # fmt: skip
        for key, field in kind.model_fields.items():
            if key not in values:
                if isinstance(field.default, bool):
                    values[key] = not field.default
                elif isinstance(field.default, int) or field.annotation == int | None:
                    values[key] = (field.default or 0) + 500
                else:
                    values[key] = f"some-{key}"
        settings = kind(**{key: value for key, value in values.items() if key in kind.model_fields})
        assert all(getattr(settings, key) != field.default for key, field in kind.model_fields.items())
        path = write_resolved(settings, tmp_path)
        assert resolve(kind, {}, path) == settings
        if kind is DiagnoseSettings:
            assert resolve(Config, {}, path).response_marker == "some-response_marker"

    def test_natural_values(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("USERPROFILE", str(tmp_path))
        places = ("dataset", "run", "adapter", "base_model", "eval_dataset", "out", "index_dir")
        path = tmp_path / "c.yaml"
        path.write_text("projection: 64\n" + "".join(f"{key}: ~/there\n" for key in places))
        settings = resolve(Config, {}, path)
        assert settings.projection == "64"
        for key in places:
            assert getattr(settings, key) == str(tmp_path / "there")
            assert getattr(resolve(Config, {key: Path("~/x")}, None), key) == str(tmp_path / "x")
        for key in ("dataset", "eval_dataset", "base_model", "out"):
            assert getattr(resolve(DiagnoseSettings, {key: Path("~/x")}, None), key) == str(tmp_path / "x")
        assert resolve(Config, {"base_model": "owner/name"}, None).base_model == "owner/name"
        for wrong in (True, 0, -4, 1.5):
            with pytest.raises(ConfigError, match="projection"):
                resolve(Config, {"projection": wrong}, None)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="init-config"):
            resolve(Config, {}, tmp_path / "none.yaml")


def test_doctor_reports_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["packages"]["torch"]
    assert state["devices"][0].startswith("cpu")


def test_the_public_names_are_sorted_and_exist() -> None:
    assert gradian.__all__ == sorted(gradian.__all__)
    for name in gradian.__all__:
        assert getattr(gradian, name)
    with pytest.raises(AttributeError):
        gradian.nothing_of_this_name  # noqa: B018


def test_interrupting_says_what_happens_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import gradian.cli.app as app

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "make_app", lambda: lambda *_, **__: interrupted())
    assert main(["doctor"]) == 130
    assert "goes on from there" in capsys.readouterr().err
