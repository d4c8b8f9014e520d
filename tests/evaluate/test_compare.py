"""The statistics, by golden values worked by hand and against scipy."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from gradian.errors import ConfigError
from gradian.evaluation import intervals
from gradian.evaluation.compare import compare, items_needed, judge, mcnemar, units_of, without_spread
from gradian.evaluation.comparison import Comparison


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table(kept: int, lost: int, gained: int, both_wrong: int, **options: object) -> Comparison:
    """A 0/1 comparison with these counts."""
    base = [1] * kept + [1] * lost + [0] * gained + [0] * both_wrong
    tuned = [1] * kept + [0] * lost + [1] * gained + [0] * both_wrong
    return compare(base, tuned, rng=rng(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    [
        (6, 0, 0.03125),  # 2 / 2^6
        (5, 0, 0.0625),
        (4, 0, 0.125),
        (0, 6, 0.03125),
        (5, 1, 0.21875),  # 2 * (1 + 6) / 2^6
        (3, 3, 1.0),
        (0, 0, 1.0),
    ],
)
def test_mcnemar_by_hand(lost: int, gained: int, p: float) -> None:
    assert mcnemar(lost, gained) == pytest.approx(p, abs=1e-15)


@pytest.mark.parametrize(
    ("items", "changed", "points"),
    [
        (100, 0.1, 8.9), (200, 0.1, 6.3), (500, 0.1, 4.0), (1000, 0.1, 2.8),
        (100, 0.2, 12.5), (200, 0.2, 8.9), (500, 0.2, 5.6), (1000, 0.2, 4.0),
    ],
)  # fmt: skip
def test_minimum_detectable_effect_by_hand(items: int, changed: float, points: float) -> None:
    """2.80 * sqrt(p_disc / n), in points."""
    moved = round(items * changed)
    result = table(items - moved, moved // 2, moved - moved // 2, 0)
    assert result.minimum_detectable_effect is not None
    assert round(100 * result.minimum_detectable_effect, 1) == points


def test_counts_and_means() -> None:
    result = table(kept=50, lost=30, gained=5, both_wrong=15)
    assert (result.kept, result.lost, result.gained, result.both_wrong) == (50, 30, 5, 15)
    assert (result.base, result.tuned, result.items) == (0.8, 0.55, 100)
    assert result.delta == pytest.approx(-0.25)
    assert result.outcomes[0] == "kept"
    assert result.outcomes[50] == "lost"
    assert result.outcomes[80] == "gained"
    assert result.outcomes[-1] == "both_wrong"
    assert result.outcome == "regression"
    assert not result.weak


def test_four_losses_in_a_hundred_are_weak_evidence() -> None:
    """No loss is drawn with probability .96^100 = .017 < .025, so 0 is excluded; McNemar has p = .125."""
    result = table(96, 4, 0, 0)
    assert result.outcome == "regression"
    assert result.ci[1] < 0
    assert result.mcnemar_p == 0.125
    assert result.weak
    assert any(note.startswith("Weak evidence") for note in result.notes)


def test_three_losses_in_a_hundred_are_inconclusive() -> None:
    """.97^100 = .048 > .025: the upper end is exactly 0, which is not below 0."""
    result = table(97, 3, 0, 0)
    assert result.ci[1] == 0
    assert result.outcome == "inconclusive"
    assert any("does not mean unchanged" in note for note in result.notes)


def test_no_change_is_the_rule_of_three_and_no_interval_of_nothing() -> None:
    result = table(100, 0, 0, 0, margin=0.05)
    assert result.ci == pytest.approx((-0.03, 0.03))
    assert (result.ci_method, result.resamples) == ("rule of three", 0)
    assert result.outcome == "equivalent"
    assert result.minimum_detectable_effect is None
    assert result.items_needed is None
    assert "3.0%" in result.notes[0]
    assert table(20, 0, 0, 0, margin=0.05).outcome == "inconclusive"  # 3/20 is wider than the margin


def test_everything_lost() -> None:
    few, many = table(0, 3, 0, 0), table(0, 10, 0, 0)
    assert few.ci == (-1, 1)  # three items say nothing of the rest
    assert few.outcome == "inconclusive"
    assert many.ci == pytest.approx((-1.0, -0.4))
    assert many.outcome == "regression"


def test_one_item_is_not_evidence() -> None:
    assert table(0, 1, 0, 0).outcome == "inconclusive"
    assert compare([-1.0], [-9.0], graded=True, scale="nats", rng=rng()).outcome == "inconclusive"


def test_improvement_is_said_as_such() -> None:
    result = table(50, 0, 30, 20)
    assert result.outcome == "equivalent"
    assert result.improved
    assert any(note.startswith("Improved") for note in result.notes)


@pytest.mark.parametrize(
    ("ci", "margin", "outcome", "improved"),
    [
        ((-0.2, -0.1), None, "regression", False),
        ((-0.02, -0.01), 0.05, "regression", False),  # small, and still real
        ((-0.04, 0.04), 0.05, "equivalent", False),
        ((-0.06, 0.04), 0.05, "inconclusive", False),
        ((-0.04, 0.04), None, "inconclusive", False),
        ((0.01, 0.2), None, "equivalent", True),
        ((-0.1, 0.0), None, "inconclusive", False),
        ((-0.1, -1e-16), None, "inconclusive", False),  # rounding
    ],
)
def test_judge(ci: tuple[float, float], margin: float | None, outcome: str, improved: bool) -> None:
    assert judge(ci, margin) == (outcome, improved)


def test_items_needed_by_hand() -> None:
    assert items_needed(math.sqrt(0.1), -0.05) == 314  # 2.8^2 * .1 / .05^2 = 313.6
    assert items_needed(0.3, 0.0) is None


@pytest.mark.parametrize(
    ("sums", "counts"),
    [
        ([-1.0] * 30 + [0.0] * 65 + [1.0] * 5, None),
        (list(np.random.default_rng(5).normal(-0.1, 0.4, 80)), None),
        (list(np.random.default_rng(6).normal(-0.1, 0.4, 30)), [1.0, 2.0, 3.0] * 10),
    ],
    ids=["zero-one", "graded", "clusters"],
)
@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_bootstrap_against_scipy(sums: list[float], counts: list[float] | None, method: str) -> None:
    top, bottom = np.array(sums), np.ones(len(sums)) if counts is None else np.array(counts)
    ours = intervals.interval(top, bottom, method=method, level=0.95, resamples=40_000, rng=rng())  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        theirs = scipy.stats.bootstrap(
            (top, bottom),
            lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis),
            paired=True,
            vectorized=True,
            method=method,
            n_resamples=40_000,
            random_state=np.random.default_rng(1),
        ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.012)


def test_student_by_the_textbook() -> None:
    deltas = np.array([-0.5, 0.0, 0.25, -1.0, 0.5])
    theirs = scipy.stats.ttest_1samp(deltas, 0).confidence_interval(0.95)
    assert intervals.student(deltas, np.ones(5), 0.95) == pytest.approx((theirs.low, theirs.high))


def test_counting_and_indexing_resamples_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The multinomial route for few distinct differences has the distribution of plain resampling."""
    deltas = np.array([-1.0] * 12 + [0.0] * 80 + [1.0] * 8)
    counted = intervals.bootstrap_means(deltas, np.ones(100), 40_000, rng())
    monkeypatch.setattr(intervals, "_MOST_DISTINCT_COUNTED", 0)
    drawn = intervals.bootstrap_means(deltas, np.ones(100), 40_000, rng())
    assert counted.std() == pytest.approx(deltas.std() / 10, rel=0.02)
    assert np.quantile(counted, [0.025, 0.5, 0.975]) == pytest.approx(
        np.quantile(drawn, [0.025, 0.5, 0.975]), abs=0.011
    )


def test_same_seed_same_bytes_and_the_seed_matters() -> None:
    base, tuned = rng(1).random(60), rng(2).random(60)
    first = compare(base, tuned, graded=True, rng=rng(3))
    assert compare(base, tuned, graded=True, rng=rng(3)) == first
    assert compare(base, tuned, graded=True, rng=rng(4)).ci != first.ci


def test_clusters_widen_the_interval() -> None:
    """Ten copies of each of ten items hold the evidence of ten items."""
    base = np.ones(100)
    tuned = np.repeat([0, 1, 1, 0, 1, 1, 1, 0, 1, 1], 10).astype(float)
    keys = np.repeat(np.arange(10), 10).tolist()
    plain, clustered = compare(base, tuned, rng=rng()), compare(base, tuned, rng=rng(), clusters=keys)
    assert clustered.clusters == 10
    assert clustered.ci[1] - clustered.ci[0] > 2.5 * (plain.ci[1] - plain.ci[0])
    assert clustered.delta == plain.delta
    assert clustered.minimum_detectable_effect is not None
    assert plain.minimum_detectable_effect is not None
    assert clustered.minimum_detectable_effect > plain.minimum_detectable_effect
    one_each = compare(base[::10], tuned[::10], rng=rng())
    assert clustered.ci == pytest.approx(one_each.ci, abs=1e-12)


def test_units_keep_the_order_of_appearance() -> None:
    sums, counts = units_of(np.array([1.0, 2.0, 4.0]), ["b", "a", "b"])
    assert sums.tolist() == [5.0, 2.0]
    assert counts.tolist() == [2.0, 1.0]


def test_graded_scores_fall_and_rise() -> None:
    result = compare([0.5, 0.5, 0.5, 0.0], [0.4, 0.6, 0.5, 0.0], graded=True, rng=rng())
    assert result.outcomes == ("lost", "gained", "kept", "both_wrong")
    assert result.mcnemar_p is None


def test_nats_change_only_beyond_rounding() -> None:
    result = compare([-1.0, -2.0], [-1.0005, -3.0], graded=True, scale="nats", change=1e-3, rng=rng())
    assert result.outcomes == ("kept", "lost")


@pytest.mark.parametrize(
    "options",
    [{"resamples": 10}, {"method": "normal"}, {"margin": 0.0}, {"margin": math.nan}, {"resamples": 10**9}],
)
def test_options_that_cannot_be_used(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        table(5, 5, 0, 0, **options)


@pytest.mark.parametrize(
    ("base", "tuned"), [([1], [1, 0]), ([], []), ([0.5], [1]), ([math.nan], [1]), ([2], [1])]
)
def test_arrays_that_no_metric_makes(base: list[float], tuned: list[float]) -> None:
    with pytest.raises(AssertionError):
        compare(base, tuned, rng=rng())


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40))
def test_properties_of_zero_one(pairs: list[tuple[int, int]]) -> None:
    base, tuned = [p[0] for p in pairs], [p[1] for p in pairs]
    result = compare(base, tuned, rng=rng(), resamples=1000, margin=0.1)
    assert result.kept + result.lost + result.gained + result.both_wrong == len(pairs)
    assert result.delta == pytest.approx((result.gained - result.lost) / len(pairs))
    assert -1 <= result.ci[0] <= result.delta + 1e-12
    assert result.delta - 1e-12 <= result.ci[1] <= 1
    swapped = compare(tuned, base, rng=rng(), resamples=1000, margin=0.1)
    assert (swapped.lost, swapped.gained, swapped.mcnemar_p) == (result.gained, result.lost, result.mcnemar_p)
    order = np.random.default_rng(0).permutation(len(pairs))
    shuffled = compare(np.array(base)[order], np.array(tuned)[order], rng=rng(), resamples=1000, margin=0.1)
    assert (shuffled.ci, shuffled.outcome) == (result.ci, result.outcome)


def test_without_spread_in_nats_decides_nothing() -> None:
    assert without_spread(-0.5, 3, "nats") == (-0.5, 0.0)
    assert without_spread(0.5, 3, "nats") == (0.0, 0.5)


@pytest.mark.parametrize("changed", [0.04, 0.2])
def test_false_alarms_under_no_effect_stay_below_the_nominal_rate(changed: float) -> None:
    """Design 1.4: with a symmetric null the gate says regression in at most 2.5 % of the runs."""
    source, alarms, runs = np.random.default_rng(11), 0, 400
    for run in range(runs):
        deltas = source.choice([-1.0, 0.0, 1.0], p=[changed / 2, 1 - changed, changed / 2], size=100)
        base, tuned = (deltas < 0).astype(float), (deltas > 0).astype(float)
        alarms += compare(base, tuned, rng=rng(run), resamples=1000).outcome == "regression"
    assert alarms / runs < 0.05
