"""The command line itself: help, errors, config files, what is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import gradian
from gradian.cli import main
from gradian.cli.app import COMMANDS
from gradian.config import SECTIONS, Config, commented_config, read_config, resolve
from gradian.errors import ConfigError

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


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m gradian doctor | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("gradian")


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
