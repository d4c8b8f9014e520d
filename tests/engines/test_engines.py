"""Every engine against a dense float64 reading of its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.engines.blocks import split_blocks
from gradian.engines.datainf import DAMPING_FACTOR, datainf
from gradian.engines.dot import gradcos, graddot
from gradian.engines.fisher import fisher, gram, solve
from gradian.engines.table import ENGINES

STOPS = (5, 12, 13, 30)


def problem(rows: int = 9, queries: int = 3, seed: int = 0, dimension: int = STOPS[-1]):
    generator = np.random.default_rng(seed)
    shared = generator.standard_normal(
        dimension
    )  # a direction that all rows share, as a chat template makes it
    g = generator.standard_normal((rows, dimension)) + 2 * shared
    v = generator.standard_normal((queries, dimension)) + shared
    return g, v


def dense_fisher(g: np.ndarray, damping_ratio: float) -> tuple[np.ndarray, float]:
    n, d = g.shape
    damping = damping_ratio * (g**2).sum(1).mean() / n
    return g.T @ g / n + damping * np.eye(d), damping


def test_graddot_is_the_dot_product() -> None:
    g, v = problem()
    expected = [[sum(a * b for a, b in zip(row, query, strict=True)) for query in v] for row in g]
    np.testing.assert_allclose(graddot(split_blocks(g, v, STOPS)), expected, rtol=1e-12)


def test_gradcos_is_the_cosine_over_all_blocks_and_zero_for_a_zero_vector() -> None:
    g, v = problem()
    g[4] = 0
    got = gradcos(split_blocks(g, v, STOPS))
    for i, row in enumerate(g):
        for j, query in enumerate(v):
            norm = np.linalg.norm(row) * np.linalg.norm(query)
            assert got[i, j] == pytest.approx(row @ query / norm if norm else 0.0, rel=1e-12)


def test_datainf_is_the_average_of_the_inverses_block_by_block() -> None:
    g, v = problem()
    expected = np.zeros((len(g), len(v)))
    start = 0
    for stop in STOPS:
        block, query = g[:, start:stop], v[:, start:stop]
        d = stop - start
        damping = DAMPING_FACTOR * (block**2).mean()
        inverse = np.mean([np.linalg.inv(damping * np.eye(d) + np.outer(r, r)) for r in block], axis=0)
        expected += block @ inverse @ query.T
        start = stop
    np.testing.assert_allclose(datainf(split_blocks(g, v, STOPS)), expected, rtol=1e-9)


def test_datainf_leaves_out_a_block_without_gradient() -> None:
    g, v = problem()
    g[:, 5:12] = 0
    without = np.delete(g, np.s_[5:12], axis=1), np.delete(v, np.s_[5:12], axis=1)
    got = datainf(split_blocks(g, v, STOPS))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, datainf(split_blocks(*without, (5, 6, 23))), rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1e6])
def test_datainf_does_not_depend_on_the_unit_of_the_gradients(scale: float) -> None:
    g, v = problem()
    plain = datainf(split_blocks(g, v, STOPS))
    scaled = datainf(split_blocks(scale * g, scale * v, STOPS))
    np.testing.assert_allclose(scaled, plain, rtol=1e-9)


@pytest.mark.parametrize("ratio", [0.01, 1.0, 100.0])
def test_fisher_is_the_dense_solve(ratio: float) -> None:
    g, v = problem()
    hessian, _ = dense_fisher(g, ratio)
    expected = g @ np.linalg.solve(hessian, v.T)
    np.testing.assert_allclose(fisher(split_blocks(g, v, STOPS), ratio), expected, rtol=1e-8)


@pytest.mark.parametrize("ratio", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("members", [[2], [0, 3, 4], list(range(8))])
def test_removal_effect_is_the_newton_step_without_the_group(ratio: float, members: list[int]) -> None:
    g, v = problem()
    n, d = g.shape
    _, damping = dense_fisher(g, ratio)
    stay = np.delete(g, members, axis=0)
    hessian = stay.T @ stay / n + damping * np.eye(d)
    expected = v @ np.linalg.solve(hessian, g[members].sum(0) / n)
    solution = solve(gram(split_blocks(g, v, STOPS)), g @ v.T, ratio)
    np.testing.assert_allclose(solution.removal_effect(members), expected, rtol=1e-7)


def test_leave_one_out_of_a_single_direction_by_hand() -> None:
    # Two rows, one dimension: g = (1, 2), v = 1, n = 2. trace(K)/n = 2.5, ratio 0.4 -> n lambda = 1, lambda = 1/2.
    # H = (1 + 4)/2 + 1/2 = 3: scores 1/3 and 2/3. Without row 1: H = 1/2 + 1/2 = 1, effect 1 * (1/2) * 2 = 1.
    g, v = np.array([[1.0], [2.0]]), np.array([[1.0]])
    solution = solve(g @ g.T, g @ v.T, 0.4)
    np.testing.assert_allclose(solution.scores[:, 0], [1 / 3, 2 / 3])
    assert solution.removal_effect([1])[0] == pytest.approx(1.0)
    assert solution.first_order_effect([1])[0] == pytest.approx(1 / 3)


def test_near_copies_hide_in_the_first_order_sum_and_show_in_the_exact_effect() -> None:
    generator = np.random.default_rng(1)
    g = generator.standard_normal((60, 200))
    fault = generator.standard_normal(200) * 3
    g[:12] = fault + 0.05 * generator.standard_normal((12, 200))
    v = -fault[None]
    solution = solve(g @ g.T, g @ v.T, 0.1)
    exact, first = solution.removal_effect(range(12))[0], solution.first_order_effect(range(12))[0]
    assert exact < 10 * first < 0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(2, 12))
def test_scores_follow_the_rows_when_they_are_permuted(seed: int, rows: int) -> None:
    g, v = problem(rows=rows, seed=seed)
    order = np.random.default_rng(seed).permutation(rows)
    for engine in ENGINES.values():
        straight = engine.score(split_blocks(g, v, STOPS))
        permuted = engine.score(split_blocks(g[order], v, STOPS))
        np.testing.assert_allclose(permuted, straight[order], rtol=1e-7, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), factor=st.floats(0.1, 10))
def test_scores_are_linear_in_the_query(seed: int, factor: float) -> None:
    g, v = problem(seed=seed)
    for name in ("datainf", "fisher", "graddot"):
        engine = ENGINES[name]
        whole = engine.score(split_blocks(g, np.concatenate([v, factor * v.sum(0, keepdims=True)]), STOPS))
        np.testing.assert_allclose(whole[:, -1], factor * whole[:, :-1].sum(1), rtol=1e-6, atol=1e-8)


def test_float32_vectors_are_close_to_float64() -> None:
    g, v = problem(rows=40, seed=3)
    for engine in ENGINES.values():
        exact = engine.score(split_blocks(g, v, STOPS))
        single = engine.score(split_blocks(g.astype(np.float32), v.astype(np.float32), STOPS))
        np.testing.assert_allclose(single, exact, rtol=2e-3, atol=1e-3 * np.abs(exact).max())


def test_all_zero_gradients_give_zero_scores() -> None:
    g, v = np.zeros((4, 30)), np.ones((2, 30))
    for engine in ENGINES.values():
        assert not engine.score(split_blocks(g, v, STOPS)).any()
    assert not solve(g @ g.T, g @ v.T, 1.0).removal_effect([0, 1]).any()
