"""A run folder as people have them: whole, in part, damaged, hostile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradian.errors import InputError
from gradian.run.folder import read_run
from support.run_folders import training_args


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def test_a_whole_run(runs: Path) -> None:
    run = read_run(runs / "trl-1.16.0")
    assert run.adapter is not None
    assert run.adapter.name == "."
    assert [(point.step, point.name) for point in run.checkpoints] == [(8, "checkpoint-8")]
    assert run.checkpoints[0].adapter is not None
    assert run.logs is not None
    assert run.logs.file == "trainer_state.json"
    assert run.settings.number("learning_rate") == 2e-4
    assert run.settings.integer("lora_r") == 2
    assert run.base_model == "base"
    assert run.chat_template is not None
    assert run.versions["peft"].version == "0.21.2"
    assert run.problems == ()
    assert {"README.md", "training_args.bin", "trainer_state.json", "adapter_config.json"} <= set(
        run.artefacts
    )
    assert not any(setting.disagreeing for setting in run.settings)


def test_reading_is_repeatable(runs: Path) -> None:
    first, second = read_run(runs / "trl-1.16.0-resumed"), read_run(runs / "trl-1.16.0-resumed")
    assert (first.settings, first.logs, first.profile) == (second.settings, second.logs, second.profile)
    assert (first.artefacts, first.problems) == (second.artefacts, second.problems)


def test_a_checkpoint_knows_the_run_around_it(runs: Path) -> None:
    run = read_run(runs / "trl-1.16.0" / "checkpoint-8")
    assert run.profile.version == "1.16.0"
    assert run.versions["trl"].file == "../README.md"
    assert run.logs is not None
    assert run.logs.file == "trainer_state.json"  # its own, not the one of the whole run
    assert run.adapter is not None
    assert run.checkpoints == ()


def test_an_adapter_in_a_subfolder(runs: Path, tmp_path: Path) -> None:
    run_folder = copy(runs / "trl-1.16.0", tmp_path / "run")
    (run_folder / "final").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors", "training_args.bin"):
        shutil.move(run_folder / name, run_folder / "final" / name)
    run = read_run(run_folder)
    assert run.adapter is not None
    assert run.adapter.name == "final"
    assert run.settings.where("learning_rate") == "final/training_args.bin: learning_rate"
    alone = read_run(run_folder / "final")
    assert alone.profile.version == "1.16.0"
    assert alone.logs is not None
    assert alone.logs.file == "../trainer_state.json"


def test_without_a_final_adapter_the_last_checkpoint_counts(runs: Path, tmp_path: Path) -> None:
    run_folder = copy(runs / "trl-1.16.0", tmp_path / "run")
    (run_folder / "adapter_config.json").unlink()
    (run_folder / "adapter_model.safetensors").unlink()
    (run_folder / "trainer_state.json").unlink()
    run = read_run(run_folder)
    assert run.adapter is not None
    assert run.adapter.name == "checkpoint-8"
    assert run.logs is not None
    assert run.logs.file == "checkpoint-8/trainer_state.json"


def test_the_furthest_log_is_taken(runs: Path, tmp_path: Path) -> None:
    run_folder = copy(runs / "trl-1.16.0-resumed", tmp_path / "run")
    shutil.copy(runs / "trl-1.16.0" / "trainer_state.json", run_folder / "trainer_state.json")
    run = read_run(run_folder)
    assert run.logs is not None
    assert (run.logs.file, run.logs.global_step) == ("checkpoint-12/trainer_state.json", 12)


def test_without_pickle_and_state_the_event_file_is_enough(runs: Path, tmp_path: Path) -> None:
    run_folder = copy(runs / "trl-1.16.0", tmp_path / "run")
    for name in ("training_args.bin", "trainer_state.json", "README.md"):
        (run_folder / name).unlink()
    shutil.rmtree(run_folder / "checkpoint-8")
    run = read_run(run_folder)
    assert run.settings.number("learning_rate") == 2e-4
    assert run.profile.trainer == "trl"
    assert run.profile.max_length == 64
    assert run.profile.eos_token is None
    assert run.logs is not None
    assert len(run.logs.train) == 8


def test_an_empty_folder(tmp_path: Path) -> None:
    run = read_run(tmp_path)
    assert (run.adapter, run.logs, run.artefacts, run.problems) == (None, None, (), ())
    assert run.profile.trainer == "unknown"
    assert len(run.settings) == 0


@pytest.mark.parametrize("path", ["missing", "a\0b", "x" * 5000])
def test_no_such_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError):
        read_run(f"{tmp_path}/{path}")


def test_a_file_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="a file, not a folder") as caught:
        read_run(tmp_path / "adapter_config.json")
    assert caught.value.fix == f"give its folder: {tmp_path}"


def test_every_artefact_damaged(tmp_path: Path) -> None:
    """One problem each, and the rest of the run is still read."""
    names = ["training_args.bin", "trainer_state.json", "adapter_config.json", "adapter_model.safetensors"]
    names += ["README.md", "train.yaml", "tokenizer_config.json", "trainer_log.jsonl"]
    for name in names:
        (tmp_path / name).write_bytes(b"\xff\xfe\x00")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "events.out.tfevents.1").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "checkpoint-5").mkdir()
    run = read_run(tmp_path)
    assert sorted(problem.path for problem in run.problems) == [
        "README.md", "adapter_config.json", "adapter_model.safetensors", "chat template",
        "runs/events.out.tfevents.1", "train.yaml", "trainer_log.jsonl", "trainer_state.json",
        "training_args.bin",
    ]  # fmt: skip
    assert all("\n" not in problem.why for problem in run.problems)
    assert [point.step for point in run.checkpoints] == [5]


def test_folders_in_place_of_files(tmp_path: Path) -> None:
    for name in ("training_args.bin", "trainer_state.json", "adapter_config.json", "README.md", "x.yaml"):
        (tmp_path / name).mkdir()
    run = read_run(tmp_path)
    assert {problem.why for problem in run.problems} == {"is not a regular file"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trainer_state.json")
    assert read_run(tmp_path).problems[0].why == "is not a regular file"


def test_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-1").symlink_to(tmp_path)
    (tmp_path / "trainer_state.json").symlink_to(tmp_path / "trainer_state.json")
    run = read_run(tmp_path)
    assert run.logs is None


def test_a_hostile_pickle_is_named_and_its_values_are_not_used(tmp_path: Path, runs: Path) -> None:
    run_folder = copy(runs / "trl-1.16.0", tmp_path / "run")
    shutil.rmtree(run_folder / "checkpoint-8")
    (run_folder / "training_args.bin").write_bytes(b"cposix\nmkdir\n(S'GRADIAN_CANARY_DIR'\ntR.")
    run = read_run(run_folder)
    assert [problem.kind for problem in run.problems] == ["unsafe_pickle"]
    assert "posix.mkdir" in run.problems[0].why
    assert run.settings.where("learning_rate") is not None
    assert "training_args.bin" not in str(run.settings.where("learning_rate"))
    assert not Path("GRADIAN_CANARY_DIR").exists()


def test_two_configurations_of_different_trainers(tmp_path: Path, runs: Path) -> None:
    shutil.copy(runs / "axolotl-yaml" / "config.yml", tmp_path / "a.yml")
    shutil.copy(runs / "llama-factory" / "train.yaml", tmp_path / "b.yaml")
    run = read_run(tmp_path)
    assert run.profile.trainer == "axolotl"
    assert [(problem.path, problem.kind) for problem in run.problems] == [("b.yaml", "not_read")]


def test_merged_weights_are_noted(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"")
    assert read_run(tmp_path).full_weights == ("model-00001-of-00002.safetensors",)


def test_reading_a_run_imports_no_heavy_package(runs: Path) -> None:
    code = (
        "import sys; from gradian.run.folder import read_run; read_run(sys.argv[1]);"
        "heavy = ('torch', 'transformers', 'sklearn', 'scipy', 'tensorflow');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(runs / "trl-1.16.0")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_axolotl_arguments_have_names_of_their_own(tmp_path: Path) -> None:
    values = {"max_seq_length": 4096, "sample_packing": True, "learning_rate": 2e-4}
    class_name = "axolotl.core.training_args.AxolotlTrainingArguments"
    (tmp_path / "training_args.bin").write_bytes(training_args(values, class_name))
    run = read_run(tmp_path)
    assert (run.profile.trainer, run.profile.max_length, run.profile.packing) == (
        "axolotl",
        4096,
        "sample_packing",
    )


def test_a_number_too_large_to_be_a_count_is_none(tmp_path: Path) -> None:
    (tmp_path / "training_args.bin").write_bytes(training_args({"max_length": 2**60, "max_steps": 1e300}))
    settings = read_run(tmp_path).settings
    assert settings.integer("max_length") is None
    assert settings.integer("max_steps") is None
