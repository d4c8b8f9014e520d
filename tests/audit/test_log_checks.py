"""Each check on the log where it must fire, and where it must not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.audit.curve import Curve, noise_band
from gradian.audit.finding import Finding
from support.auditing import FIXTURES, finding, ids, pair, sound_rows
from support.run_folders import (
    base_folder,
    diagnosed,
    eval_lines,
    falling,
    linear_rates,
    log_lines,
    write_adapter,
    write_run,
    write_state,
)

NAN = float("nan")


def found(tmp_path: Path, id: str, **run: Any) -> Finding | None:
    given = {name: run.pop(name) for name in ("rows", "base") if name in run}
    result = diagnosed(write_run(tmp_path / "run", **run), id, **given)
    return finding(result, id) if ids(result) else None


def severity_of(tmp_path: Path, id: str, **run: Any) -> str | None:
    raised = found(tmp_path, id, **run)
    return None if raised is None else raised.severity.value


def headlines(tmp_path: Path, **run: Any) -> set[str]:
    return {raised.id for raised in diagnosed(write_run(tmp_path / "run", **run), "logs.").headlines}


# NaN and zero


@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_loss_nan(tmp_path: Path, value: float) -> None:
    losses = [*falling(20), value, *[NAN] * 19]
    raised = found(tmp_path, "logs.loss_nan", lines=log_lines(losses))
    assert raised is not None
    assert raised.severity.value == "error"
    assert raised.values["first_step"] == 21
    assert raised.count == 20


def test_nan_fix_depends_on_the_precision(tmp_path: Path) -> None:
    lines = log_lines([1.0, NAN])
    half = found(tmp_path, "logs.loss_nan", lines=lines, settings={"fp16": True, "bf16": False})
    assert half is not None
    assert half.fix is not None
    assert half.fix.text == "fp16 true -> bf16 true"


@pytest.mark.parametrize(
    ("losses", "norms", "fires"),
    [
        ([2.0, 1.9, 0.0, 0.0, 0.0], [1.0, 1.0, NAN, NAN, NAN], True),
        ([2.0, 1.9, 1.8, 1.7, 0.0], [1.0, 1.0, 1.0, 1.0, NAN], True),  # the last one
        ([2.0, 0.0, 1.8, 1.7, 1.6], [1.0, NAN, 1.0, 1.0, 1.0], False),  # one skipped step
        ([2.0, 1.9, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0, 0.0], False),
        ([2.0, 1.9, 1.8, 1.7, 1.6], [1.0, 1.0, 1.0, NAN, NAN], False),
    ],
)
def test_loss_nan_hidden(tmp_path: Path, losses: list[float], norms: list[float], fires: bool) -> None:
    lines = log_lines(losses, rates=[1e-4] * 5, norms=norms)
    assert (found(tmp_path, "logs.loss_nan_hidden", lines=lines) is not None) is fires


def test_hidden_nan_is_the_headline(tmp_path: Path) -> None:
    lines = log_lines([*falling(10), *[0.0] * 30], norms=[*[0.6] * 10, *[NAN] * 30])
    assert headlines(tmp_path, lines=lines) == {"logs.loss_nan_hidden"}


def test_a_real_run_that_became_nan() -> None:
    result = diagnosed(FIXTURES / "runs" / "trl-1.16.0-nan", "logs.", "adapter.")
    assert {raised.id for raised in result.headlines if raised.severity.value != "info"} == {
        "logs.loss_nan_hidden"
    }
    assert "From step 4 on" in finding(result, "logs.loss_nan_hidden").title
    assert finding(result, "adapter.nan").follows_from == "logs.loss_nan_hidden"


@pytest.mark.parametrize(
    ("losses", "norms", "fires"),
    [
        ([0.0] * 18, [0.0] * 18, True),
        ([0.0] * 18, None, True),
        ([1e-8] * 18, [0.0] * 18, True),
        ([2.0, 1.5, *[0.0] * 16], [0.6, 0.6, *[0.0] * 16], True),
        ([0.0] * 18, [NAN] * 18, False),  # hidden NaN
        ([0.0] * 18, [0.5] * 18, False),  # rounded: there is a gradient
        (falling(18, 0.4, 0.01), [0.5] * 18, False),
    ],
)
def test_loss_zero(tmp_path: Path, losses: list[float], norms: Sequence[float] | None, fires: bool) -> None:
    lines = log_lines(losses, rates=[1e-4] * 18, norms=norms or [0.0] * 18)
    if norms is None:
        for line in lines:
            del line["grad_norm"]
    raised = found(tmp_path, "logs.loss_zero", lines=lines)
    assert (raised is not None) is fires


def test_a_zero_loss_is_normal_in_reinforcement_learning(tmp_path: Path) -> None:
    lines = [{**line, "reward": 0.4} for line in log_lines([0.0] * 30, norms=[0.0] * 30)]
    result = diagnosed(write_run(tmp_path / "run", lines=lines), "logs.")
    assert ids(result) == set()
    assert "reinforcement" in result.checks_skipped["logs.loss_zero"]


def test_a_zero_loss_is_not_memorisation(tmp_path: Path) -> None:
    assert "logs.memorised" not in ids(
        diagnosed(write_run(tmp_path / "run", lines=log_lines([0.0] * 30, norms=[0.0] * 30)), "logs.")
    )


# Trend


@pytest.mark.parametrize(
    ("losses", "severity"),
    [
        (falling(40, 2.0, 2.0), "warning"),
        (falling(40, 2.0, 2.4), "error"),
        (falling(40, 2.0, 1.86), None),  # 7 % is a fall
        (falling(40, 0.4, 0.4), None),  # nothing to gain
        (falling(15, 2.0, 2.0), None),  # too few points
    ],
)
def test_not_learning(tmp_path: Path, losses: list[float], severity: str | None) -> None:
    assert severity_of(tmp_path, "logs.not_learning", lines=log_lines(losses)) == severity


def test_a_loss_like_that_of_random_weights(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base", vocab_size=32000)  # ln 32000 = 10.4
    raised = found(tmp_path, "logs.not_learning", lines=log_lines(falling(40, 10.3, 10.3)), base=base)
    assert raised is not None
    assert "without pretrained weights" in raised.message


@pytest.mark.parametrize(
    ("losses", "fires"),
    [
        ([*falling(30, 2.0, 1.0), *falling(30, 1.2, 4.0)], True),
        (falling(60, 2.0, 1.0), False),
        ([*falling(30, 2.0, 1.0), *falling(30, 1.0, 1.4)], False),  # still below the start
    ],
)
def test_loss_diverged(tmp_path: Path, losses: list[float], fires: bool) -> None:
    raised = found(tmp_path, "logs.loss_diverged", lines=log_lines(losses))
    assert (raised is not None) is fires
    if raised is not None:
        assert raised.fix is not None
        assert raised.fix.text.startswith("learning_rate 2e-04 -> 7e-05")
        assert ids(diagnosed(tmp_path / "run", "logs.not_learning")) == set()


def spiky(count: int, *at: int, height: float = 6.0) -> list[float]:
    losses = falling(count, 2.0, 1.2)
    for place in at:
        losses[place] = height
    return losses


@pytest.mark.parametrize(
    ("losses", "severity"),
    [
        (spiky(100, 40), "info"),
        (spiky(100, 20, 47, 52, 90), "warning"),
        (spiky(100, 0, 1), None),  # a loss starts high
        (spiky(100, 40, height=2.5), None),  # below 1.8 times
        (falling(100, noise=0.2), None),
    ],
)
def test_loss_spike(tmp_path: Path, losses: list[float], severity: str | None) -> None:
    assert severity_of(tmp_path, "logs.loss_spike", lines=log_lines(losses)) == severity


def test_regular_spikes_are_one_finding(tmp_path: Path) -> None:
    lines = log_lines(spiky(100, 19, 39, 59, 79), epochs=5)
    result = diagnosed(write_run(tmp_path / "run", lines=lines), "logs.")
    assert ids(result) == {"logs.periodic_spike"}
    raised = finding(result, "logs.periodic_spike")
    assert "every 20 steps" in raised.title
    assert "at the end of epochs" in raised.title
    assert raised.fix is not None
    assert raised.fix.key == "dataloader_drop_last"


def test_irregular_spikes_are_not_periodic(tmp_path: Path) -> None:
    assert found(tmp_path, "logs.periodic_spike", lines=log_lines(spiky(100, 19, 30, 59, 90))) is None


# Memory


def stepped(per_epoch: int, *levels: float) -> list[float]:
    random = np.random.default_rng(3)
    return [float(level + noise) for level in levels for noise in random.normal(0, 0.01, per_epoch)]


@pytest.mark.parametrize(
    ("losses", "epochs", "fires"),
    [
        (stepped(20, 1.6, 0.9, 0.3), 3, True),
        (stepped(20, 1.6, 0.9), 2, True),
        (stepped(20, 1.6, 1.5, 1.4), 3, False),  # small steps
        (falling(60, 2.0, 0.6), 3, False),  # falls all the time
        ([2 * 0.97**place for place in range(60)], 3, False),
        (stepped(60, 1.6), 1, False),
    ],
)
def test_epoch_step_drop(tmp_path: Path, losses: list[float], epochs: int, fires: bool) -> None:
    raised = found(tmp_path, "logs.epoch_step_drop", lines=log_lines(losses, epochs=epochs))
    assert (raised is not None) is fires


def test_epoch_steps_with_an_eval_that_improves_are_info(tmp_path: Path) -> None:
    lines = [*log_lines(stepped(20, 1.6, 0.9, 0.3), epochs=3), *eval_lines({20: 1.5, 40: 1.2, 60: 1.0})]
    assert severity_of(tmp_path, "logs.epoch_step_drop", lines=lines) == "info"


LONG = [pair(f"Tell {n}.", f" {n} is a long answer of many tokens, and it goes on.") for n in range(40)]
SHORT = [pair(f"Label {n}.", " yes") for n in range(40)]


@pytest.mark.parametrize(
    ("end", "rows", "severity"),
    [
        (0.01, LONG, "warning"),
        (0.12, LONG, "info"),
        (0.4, LONG, None),
        (0.01, SHORT, None),
        (0.01, None, "warning"),
    ],
)
def test_memorised(tmp_path: Path, end: float, rows: list[Any] | None, severity: str | None) -> None:
    lines = log_lines([*falling(20, 2.0, end), *falling(20, end, end, noise=0.001)])
    assert severity_of(tmp_path, "logs.memorised", lines=lines, rows=rows, tokenizer="chatml") == severity


def test_token_accuracy_and_entropy(tmp_path: Path) -> None:
    rising, falls = list(np.linspace(0.5, 0.8, 40)), [*np.linspace(0.5, 0.8, 20), *np.linspace(0.8, 0.6, 20)]
    entropy = [*np.linspace(1.5, 0.02, 30), *[0.02] * 10]
    lines = log_lines(falling(40), mean_token_accuracy=falls, entropy=entropy)
    result = diagnosed(write_run(tmp_path / "a", lines=lines), "logs.")
    assert ids(result) == {"logs.token_accuracy_drop", "logs.entropy_collapse"}
    sound = log_lines(falling(40), mean_token_accuracy=rising, entropy=list(np.linspace(1.5, 0.8, 40)))
    assert ids(diagnosed(write_run(tmp_path / "b", lines=sound), "logs.")) == set()


# Evaluation


@pytest.mark.parametrize(
    ("evals", "severity"),
    [
        ({10: 2.0, 20: 1.5, 30: 1.6, 40: 1.8}, "error"),
        ({10: 2.0, 20: 1.5, 30: 1.52, 40: 1.57}, "warning"),
        ({10: 2.0, 20: 1.5, 30: 1.51, 40: 1.52}, None),
        ({10: 2.0, 20: 1.8, 30: 1.6, 40: 1.5}, None),
        ({20: 1.5, 40: 1.8}, None),  # too few
    ],
)
def test_overfitting(tmp_path: Path, evals: dict[int, float], severity: str | None) -> None:
    lines = [*log_lines(falling(40), epochs=4), *eval_lines(evals)]
    assert severity_of(tmp_path, "logs.overfitting", lines=lines) == severity


def test_overfitting_names_the_checkpoint(tmp_path: Path) -> None:
    lines = [*log_lines(falling(40), epochs=4), *eval_lines({10: 2.0, 20: 1.5, 30: 1.6, 40: 1.8})]
    run = write_run(tmp_path / "run", lines=lines)
    without = finding(diagnosed(run, "logs.overfitting"), "logs.overfitting")
    assert without.fix is not None
    assert without.fix.text == "num_train_epochs 2 -> 2"
    write_adapter(run / "checkpoint-20")
    with_one = finding(diagnosed(run, "logs.overfitting"), "logs.overfitting")
    assert with_one.fix is not None
    assert with_one.fix.text == "use checkpoint-20"


def test_overfitting_by_another_metric_is_not_judged(tmp_path: Path) -> None:
    lines = [*log_lines(falling(40)), *eval_lines({10: 2.0, 20: 1.5, 30: 1.6, 40: 1.8})]
    settings = {"metric_for_best_model": "eval_accuracy"}
    assert found(tmp_path, "logs.overfitting", lines=lines, settings=settings) is None


def test_a_wavering_eval_loss_is_not_overfitting(tmp_path: Path) -> None:
    evals = dict(zip(range(5, 45, 5), [2.0, 1.7, 1.9, 1.6, 1.85, 1.62, 1.8, 1.7], strict=True))
    lines = [*log_lines(falling(40)), *eval_lines(evals)]
    assert found(tmp_path, "logs.overfitting", lines=lines) is None


def test_stopped_improving(tmp_path: Path) -> None:
    flat = [*log_lines(falling(60)), *eval_lines({10: 2.0, 20: 1.5, 30: 1.501, 40: 1.5, 50: 1.499, 60: 1.5})]
    raised = found(tmp_path / "a", "logs.stopped_improving", lines=flat)
    assert raised is not None
    assert raised.values["first_equal_step"] == 20
    better = [*log_lines(falling(60)), *eval_lines({10: 2.0, 20: 1.8, 30: 1.6, 40: 1.4, 50: 1.2, 60: 1.0})]
    assert found(tmp_path / "b", "logs.stopped_improving", lines=better) is None


@pytest.mark.parametrize(("evals", "fires"), [({20: 0.9, 40: 0.7}, True), ({20: 1.5, 40: 1.1}, False)])
def test_eval_below_train(tmp_path: Path, evals: dict[int, float], fires: bool) -> None:
    lines = [*log_lines(falling(40)), *eval_lines(evals)]
    assert (found(tmp_path, "logs.eval_below_train", lines=lines) is not None) is fires


def test_eval_loss_missing(tmp_path: Path) -> None:
    without = [*log_lines(falling(40)), *eval_lines({20: 12.0, 40: 12.1}, name="eval_runtime")]
    raised = found(tmp_path / "a", "logs.eval_loss_missing", lines=without)
    assert raised is not None
    assert raised.fix is not None
    assert raised.fix.key == "label_names"
    several = [*log_lines(falling(40)), *eval_lines({20: 1.5}, name="eval_math_loss")]
    assert found(tmp_path / "b", "logs.eval_loss_missing", lines=several) is None
    assert found(tmp_path / "c", "logs.eval_loss_missing") is None


# Gradients


@pytest.mark.parametrize(
    ("norms", "settings", "severity"),
    [
        ([0.6] * 39 + [NAN], {}, "error"),
        ([NAN, NAN, *[0.6] * 38], {}, "error"),
        ([0.6, NAN, *[0.6] * 38], {"fp16": True, "bf16": False}, "info"),
        ([0.6] * 40, {}, None),
    ],
)
def test_grad_norm_nan(
    tmp_path: Path, norms: list[float], settings: dict[str, Any], severity: str | None
) -> None:
    lines = log_lines(falling(40), norms=norms)
    assert severity_of(tmp_path, "logs.grad_norm_nan", lines=lines, settings=settings) == severity


@pytest.mark.parametrize(("zeros", "severity"), [(40, "error"), (10, "warning"), (4, None)])
def test_grad_norm_zero(tmp_path: Path, zeros: int, severity: str | None) -> None:
    lines = log_lines(falling(40), norms=[0.0] * zeros + [0.6] * (40 - zeros))
    raised = found(tmp_path, "logs.grad_norm_zero", lines=lines)
    assert (raised and raised.severity.value) == severity
    if raised is not None:
        assert raised.fix is not None
        assert "enable_input_require_grads" in raised.fix.text  # the loss is not zero


def test_grad_norm_spike(tmp_path: Path) -> None:
    norms = [0.6 + 0.01 * (place % 7) for place in range(100)]
    norms[50] = 30.0
    assert (
        severity_of(tmp_path / "a", "logs.grad_norm_spike", lines=log_lines(falling(100), norms=norms))
        == "info"
    )
    both = log_lines(spiky(100, 50), norms=norms)
    assert severity_of(tmp_path / "b", "logs.grad_norm_spike", lines=both) == "warning"
    norms[50] = 3.0
    assert (
        severity_of(tmp_path / "c", "logs.grad_norm_spike", lines=log_lines(falling(100), norms=norms))
        is None
    )


@pytest.mark.parametrize(("level", "severity"), [(50.0, "warning"), (5.0, None)])
def test_grad_norm_high(tmp_path: Path, level: float, severity: str | None) -> None:
    assert (
        severity_of(tmp_path, "logs.grad_norm_high", lines=log_lines(falling(40), norms=[level] * 40))
        == severity
    )


@pytest.mark.parametrize(
    ("level", "rate", "severity"), [(1e-5, 1e-5, "warning"), (1e-5, 2e-4, None), (0.5, 1e-5, None)]
)
def test_grad_norm_tiny(tmp_path: Path, level: float, rate: float, severity: str | None) -> None:
    lines = log_lines(falling(40), norms=[level] * 40, rates=linear_rates(40, rate))
    assert (
        severity_of(tmp_path, "logs.grad_norm_tiny", lines=lines, settings={"learning_rate": rate})
        == severity
    )


# Progress


def test_lr_constant_zero(tmp_path: Path) -> None:
    assert (
        severity_of(tmp_path / "a", "logs.lr_constant_zero", lines=log_lines([2.0] * 10, rates=[0.0] * 10))
        == "error"
    )
    assert severity_of(tmp_path / "b", "logs.lr_constant_zero") is None


@pytest.mark.parametrize(("dead", "severity"), [(20, "warning"), (7, "info"), (1, None), (0, None)])
def test_lr_dead_tail(tmp_path: Path, dead: int, severity: str | None) -> None:
    rates = [*linear_rates(100 - dead), *[0.0] * dead]
    assert severity_of(tmp_path, "logs.lr_dead_tail", lines=log_lines(falling(100), rates=rates)) == severity


@pytest.mark.parametrize(
    ("configured", "rates", "fires"),
    [
        (1e-4, linear_rates(40, 2e-4), True),
        (2e-4, linear_rates(40, 5e-5), True),
        (2e-4, linear_rates(40, 2e-4), False),
        (2e-4, [2e-4] * 40, False),
    ],
)
def test_lr_mismatch(tmp_path: Path, configured: float, rates: list[float], fires: bool) -> None:
    lines = log_lines(falling(40), rates=rates)
    raised = found(tmp_path, "logs.lr_mismatch", lines=lines, settings={"learning_rate": configured})
    assert (raised is not None) is fires


def test_sparse_logging_is_no_lr_mismatch(tmp_path: Path) -> None:
    """Three points at steps 100, 200 and 300 of 300: the largest rate that a linear schedule shows is 2/3 of
    it."""
    lines = log_lines([2.0, 1.8, 1.6], rates=[2e-4 * share for share in (2 / 3, 1 / 3, 0)], every=100)
    assert found(tmp_path, "logs.lr_mismatch", lines=lines) is None


@pytest.mark.parametrize(
    ("planned", "with_adapter", "stop", "severity"),
    [
        (100, False, False, "warning"),
        (100, True, False, "info"),
        (40, False, False, None),
        (40, True, True, None),
    ],
)
def test_run_incomplete(
    tmp_path: Path, planned: int, with_adapter: bool, stop: bool, severity: str | None
) -> None:
    run = write_run(tmp_path / "run", lines=[], with_adapter=with_adapter)
    state = {
        "max_steps": planned,
        "stateful_callbacks": {"TrainerControl": {"args": {"should_training_stop": stop}}},
    }
    write_state(run / "checkpoint-40", log_lines(falling(40)), **state)
    write_adapter(run / "checkpoint-40")
    result = diagnosed(run, "logs.run_incomplete")
    assert (finding(result, "logs.run_incomplete").severity.value if ids(result) else None) == severity
    assert ids(diagnosed(run / "checkpoint-40", "logs.run_incomplete")) == set()


def test_too_sparse(tmp_path: Path) -> None:
    raised = found(
        tmp_path / "a", "logs.too_sparse", lines=log_lines([2.0, 1.5], rates=[1e-4, 0.0], every=500)
    )
    assert raised is not None
    assert raised.fix is not None
    assert raised.fix.text == "logging_steps 1 -> 20"
    assert found(tmp_path / "b", "logs.too_sparse", lines=log_lines([2.0] * 8)) is None  # a run of 8 steps


# The curve


def curve(values: Sequence[float]) -> Curve:
    return Curve.of((np.arange(1, len(values) + 1), np.array(values, dtype=float)))


def test_head_and_tail_are_medians_of_a_tenth() -> None:
    """Worked by hand: 40 points, a tenth is four."""
    values = [4.0, 2.0, 3.0, 100.0, *[2.0] * 32, 1.0, 1.0, 1.0, 9.0]
    assert (curve(values).head, curve(values).tail) == (3.5, 1.0)
    assert curve(values).change == pytest.approx(1.0 / 3.5 - 1)


def test_points_that_are_not_finite_are_left_out() -> None:
    assert len(curve([1.0, NAN, float("inf"), 2.0])) == 2


def test_noise_band_of_a_straight_line_is_the_least() -> None:
    assert noise_band(np.array([4.0, 3.0, 2.0, 1.0])) == 0.01
    assert noise_band(np.array([1.0])) == 0.01


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=20, max_size=60), st.floats(0.01, 100))
def test_spikes_do_not_depend_on_the_unit(values: list[float], factor: float) -> None:
    first = curve(values).spikes(ratio=1.8, z=6)
    scaled = curve([value * factor for value in values]).spikes(ratio=1.8, z=6)
    assert set(first.tolist()) ^ set(scaled.tolist()) <= set(np.flatnonzero(np.isclose(
        np.array(values), 1.8 * curve(values).local_median(), rtol=1e-6)).tolist())  # fmt: skip


def test_a_sound_log_is_silent(tmp_path: Path) -> None:
    lines = [*log_lines(falling(60, noise=0.1)), *eval_lines({15: 2.0, 30: 1.7, 45: 1.5, 60: 1.4})]
    assert ids(diagnosed(write_run(tmp_path / "run", lines=lines), "logs.", rows=sound_rows(240))) == set()
