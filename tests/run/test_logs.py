"""The log of a run, from each source that trainers write."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.run.artefact import ArtefactError
from gradian.run.log_history import split_lines
from gradian.run.tensorboard import masked_crc, read_event_folder, records
from gradian.run.torchtune import read_torchtune_log
from gradian.run.trainer_log import read_trainer_log
from gradian.run.trainer_state import read_trainer_state


def state_file(folder: Path, text: str) -> Path:
    path = folder / "trainer_state.json"
    path.write_text(text)
    return path


def test_bare_nan_and_infinity_are_values(tmp_path: Path) -> None:
    path = state_file(
        tmp_path,
        '{"global_step": 2, "max_steps": 4, "log_history": ['
        '{"step": 1, "epoch": 0.5, "loss": NaN, "grad_norm": Infinity, "learning_rate": 1e-4},'
        '{"step": 2, "epoch": 1.0, "loss": "nan", "grad_norm": -Infinity}]}',
    )
    log = read_trainer_state(path, "trainer_state.json")
    steps, losses = log.series("loss")
    assert steps.tolist() == [1, 2]
    assert np.isnan(losses).all()
    assert log.series("grad_norm")[1].tolist() == [math.inf, -math.inf]
    assert log.max_steps == 4


def test_kinds_of_lines_are_told_apart(runs: Path) -> None:
    log = read_trainer_state(runs / "trl-1.16.0" / "trainer_state.json", "trainer_state.json")
    assert [point.step for point in log.train] == list(range(1, 9))
    assert [point.step for point in log.evals] == [4, 8]
    assert log.summary["train_runtime"] > 0
    assert (log.global_step, log.max_steps, log.num_train_epochs) == (8, 8, 2.0)
    assert log.should_training_stop is True
    assert log.kind == "sft"
    assert "eval_loss" in log.eval_names()
    assert "eval_runtime" not in log.eval_names()


def test_a_real_run_with_nan(runs: Path) -> None:
    log = read_trainer_state(runs / "trl-1.16.0-nan" / "trainer_state.json", "trainer_state.json")
    _, losses = log.series("loss")
    _, norms = log.series("grad_norm")
    assert (losses[-3:] == 0.0).all()  # logging_nan_inf_filter hides it
    assert np.isnan(norms[-3:]).all()


def test_a_resumed_log_keeps_the_last_line_of_a_step() -> None:
    lines = [{"step": s, "loss": 1.0} for s in (1, 2, 3, 4)] + [{"step": s, "loss": 2.0} for s in (3, 4, 5)]
    parts = split_lines(lines)
    assert [point.values["loss"] for point in parts["train"]] == [1.0, 1.0, 2.0, 2.0, 2.0]
    assert parts["restarts"] == (3,)
    assert parts["repeated"] == 2


def test_a_second_line_of_the_same_step_is_no_restart() -> None:
    parts = split_lines([{"step": 1, "loss": 1.0}, {"step": 1, "grad_norm": 2.0}, {"step": 2, "loss": 1.0}])
    assert parts["restarts"] == ()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ({"step": 1, "loss": 0.0, "reward": 0.3}, "rl"),
        ({"step": 1, "loss": 0.0, "rewards/format/mean": 0.3}, "rl"),
        ({"step": 1, "loss": 0.69, "rewards/chosen": 0.0, "rewards/margins": 0.0}, "preference"),
        ({"step": 1, "loss": 0.0, "mean_token_accuracy": 1.0}, "sft"),
    ],
)
def test_reinforcement_and_preference_runs_are_known(line: dict[str, float], kind: str) -> None:
    assert split_lines([line])["kind"] == kind


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("[1, 2]", "holds a JSON list"),
        ('{"global_step": 5, "log_his', "is not JSON"),
        ('{"model_type": "llama"}', "no trainer state"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_state_is_one_clause(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ArtefactError, match=why):
        read_trainer_state(state_file(tmp_path, text), "trainer_state.json")


KEYS = st.sampled_from(["step", "loss", "epoch", "log_history", "eval_loss", "max_steps", "x"])
LEAVES = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5)
ANY_JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(ANY_JSON)
def test_any_state_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = state_file(tmp_path_factory.mktemp("state"), json.dumps({"log_history": value}))
    log = read_trainer_state(path, "trainer_state.json")
    assert all(isinstance(value, float) for point in log.train for value in point.values.values())


def test_llama_factory_log(runs: Path) -> None:
    log = read_trainer_log(runs / "llama-factory" / "trainer_log.jsonl", "trainer_log.jsonl")
    assert [point.step for point in log.train] == [10, 20, 30]
    assert log.series("loss")[1].tolist() == [1.92, 1.54, 1.31]  # step 20 was logged again after a resume
    assert log.series("learning_rate")[1][0] == 9e-5
    assert log.eval_series("eval_loss")[1].tolist() == [1.61]
    assert (log.global_step, log.max_steps, log.epoch) == (30, 30, 3.0)


def test_llama_factory_log_of_a_killed_run(tmp_path: Path) -> None:
    path = tmp_path / "trainer_log.jsonl"
    path.write_text('{"current_steps": 1, "total_steps": 9, "loss": 1.0}\n{"current_steps": 2, "tot')
    log = read_trainer_log(path, path.name)
    assert (len(log.train), log.global_step, log.max_steps) == (1, 1, 9)


def test_torchtune_log(runs: Path) -> None:
    log = read_torchtune_log(runs / "torchtune" / "logs" / "log_1740000000.txt", "logs/log_1740000000.txt")
    _, losses = log.series("loss")
    assert losses[:2].tolist() == [2.1234567165374756, 1.9876543283462524]
    assert math.isnan(losses[2])
    assert log.series("learning_rate")[1].tolist() == pytest.approx([3e-6, 6e-6, 9e-6])


def test_a_text_file_is_no_torchtune_log(tmp_path: Path) -> None:
    path = tmp_path / "log_1.txt"
    path.write_text("hello\n")
    with pytest.raises(ArtefactError, match="Step 1"):
        read_torchtune_log(path, path.name)


# TensorBoard


def test_the_checksum_is_crc32c() -> None:
    """The check value of CRC-32C for "123456789" is E3069283 (RFC 3720, appendix B.4), then masked."""
    crc = 0xE3069283
    assert masked_crc(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize(
    "fixture", ["trl-0.15.2", "trl-0.19.1", "trl-0.24.0", "trl-1.16.0", "transformers-5.24.0"]
)
def test_event_files_say_the_same_as_the_state(runs: Path, fixture: str) -> None:
    folder = runs / fixture
    state = read_trainer_state(folder / "trainer_state.json", "trainer_state.json")
    events, problems = read_event_folder(folder / "runs", folder)
    assert problems == []
    assert events is not None
    assert events.history is not None
    for name in ("loss", "learning_rate", "grad_norm"):
        steps, values = state.series(name)
        event_steps, event_values = events.history.series(name)
        assert event_steps.tolist() == steps.tolist()
        np.testing.assert_allclose(event_values, values, rtol=1e-6)  # event files hold float32
    np.testing.assert_allclose(
        events.history.eval_series("eval_loss")[1], state.eval_series("eval_loss")[1], rtol=1e-6
    )
    assert events.arguments["learning_rate"] == 2e-4


def test_a_resumed_run_has_two_event_files_and_one_log(runs: Path) -> None:
    folder = runs / "trl-1.16.0-resumed"
    events, _ = read_event_folder(folder / "runs", folder)
    assert events is not None
    assert len(events.files) == 2
    assert events.history is not None
    assert [point.step for point in events.history.train] == list(range(1, 13))


def test_a_cut_event_file_is_read_up_to_the_cut(runs: Path, tmp_path: Path) -> None:
    source = next((runs / "trl-1.16.0" / "runs").rglob("events*"))
    (tmp_path / source.name).write_bytes(source.read_bytes()[:-50])
    events, problems = read_event_folder(tmp_path, tmp_path)
    assert events is not None
    assert events.history is not None
    assert "ends in the middle of a record" in problems[0].why


def test_a_changed_byte_is_found(runs: Path, tmp_path: Path) -> None:
    source = next((runs / "trl-1.16.0" / "runs").rglob("events*"))
    data = bytearray(source.read_bytes())
    data[300] ^= 1
    (tmp_path / source.name).write_bytes(bytes(data))
    _, problems = read_event_folder(tmp_path, tmp_path)
    assert "checksum" in problems[0].why


def test_a_record_of_absurd_length_is_refused() -> None:
    header = struct.pack("<Q", 2**62)
    with pytest.raises(ArtefactError, match="middle of a record"):
        list(records(header + struct.pack("<I", masked_crc(header)) + b"abc"))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_event_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, payload: bytes) -> None:
    folder = tmp_path_factory.mktemp("events")
    header = struct.pack("<Q", len(payload))
    framed = header + struct.pack("<I", masked_crc(header)) + payload + struct.pack("<I", masked_crc(payload))
    (folder / "events.out.tfevents.1").write_bytes(framed)
    events, problems = read_event_folder(folder, folder)
    assert events is not None or problems
