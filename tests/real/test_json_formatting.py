"""The real run and its control, as `examples/json_formatting/README.md` tells them. `scripts/test --real` runs this.

The control is the same training without the 40 broken rows; it is not part of the repository and is looked for
beside the checkout, in `../shared/runs/json_formatting/control`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from sklearn.metrics import average_precision_score

import gradian
from gradian.attribution.cause import Cause
from gradian.report.json_file import to_json
from gradian.report.model import Outcome, Report

REPOSITORY = Path(__file__).parent.parent.parent
EXAMPLE = REPOSITORY / "examples" / "json_formatting"
CONTROL = REPOSITORY.parent / "shared" / "runs" / "json_formatting" / "control"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif("GRADIAN_MODEL" not in os.environ, reason="scripts/test --real sets GRADIAN_MODEL"),
]


def settings(state: Path, **changes: Any) -> dict[str, Any]:
    return {
        "base_model": os.environ["GRADIAN_MODEL"],
        "run": str(EXAMPLE / "run"),
        "dataset": str(EXAMPLE / "train.jsonl"),
        "eval_dataset": str(EXAMPLE / "eval.jsonl"),
        "capability": "json_formatting",
        "metric": "json_valid",
        "index_dir": str(state),
        **changes,
    }


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def first(state: Path) -> tuple[Report, float]:
    started = time.monotonic()
    return gradian.attribute(**settings(state)), time.monotonic() - started


@pytest.fixture(scope="module")
def planted() -> set[int]:
    return set(json.loads((EXAMPLE / "planted_rows.json").read_text()))


def test_the_regression_is_measured(first: tuple[Report, float]) -> None:
    evaluation = first[0].evaluation
    assert evaluation is not None
    assert first[0].verdict.outcome is Outcome.REGRESSION
    assert (round(evaluation.base, 3), round(evaluation.tuned, 3)) == (0.958, 0.283)
    assert (evaluation.lost, evaluation.gained) == (81, 0)


def test_the_planted_group_is_accused_of_a_mechanical_fault(
    first: tuple[Report, float], planted: set[int]
) -> None:
    report = first[0]
    worst, second = report.groups[:2]
    assert worst.accused
    assert len(set(worst.rows) & planted) >= 36
    assert len(set(worst.rows) - planted) <= 15
    assert worst.share > 3 * worst.row_share
    assert worst.removal_effect < 3 * second.removal_effect < 0
    assert report.verdict.cause is Cause.MECHANICAL
    assert (
        f"{len(set(worst.rows) & planted)} of its {worst.size} rows have truncated completions"
        in report.verdict.text
    )


def test_the_planted_rows_rank_high(first: tuple[Report, float], planted: set[int]) -> None:
    rows = first[0].rows
    assert average_precision_score([row.row in planted for row in rows], [-row.score for row in rows]) >= 0.75


def test_asking_again_is_fast_and_gives_the_same_bytes(first: tuple[Report, float], state: Path) -> None:
    started = time.monotonic()
    again = gradian.attribute(**settings(state))
    seconds = time.monotonic() - started
    one, two = (to_json(report).split(b'"timings"')[0] for report in (first[0], again))
    assert one == two
    assert seconds < first[1] / 5
    assert again.timings.reused


@pytest.mark.skipif(not CONTROL.is_dir(), reason="the control run is not beside this checkout")
def test_the_control_is_diffuse_by_one_metric_and_not_diagnosed_by_the_other(state: Path) -> None:
    control = {"run": str(CONTROL / "run"), "dataset": str(CONTROL / "train.jsonl")}
    exact = gradian.attribute(**settings(state, metric="exact", **control))
    assert exact.verdict.outcome is not Outcome.REGRESSION
    assert exact.verdict.cause is Cause.NONE
    assert exact.groups == ()
    valid = gradian.attribute(**settings(state, **control))
    assert valid.verdict.outcome is Outcome.REGRESSION
    assert valid.verdict.cause is Cause.DIFFUSE
    assert not any(group.accused for group in valid.groups)
    assert "fewer steps" in valid.verdict.text
