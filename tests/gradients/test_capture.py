"""The fast gradients against two slow oracles, on every supported kind of adapter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradian.errors import ModelError
from gradian.gradients.batch import TokenSequence, collate, plan_batches, row_losses
from gradian.gradients.capture import GradientCapture
from gradian.gradients.layout import Layout, make_layout
from gradian.gradients.reference import by_vmap, one_by_one
from gradian.model.sites import find_sites
from support.tiny import ALL_LINEAR, random_sequences, tiny_base, tiny_gpt2, with_adapter

TOLERANCE = 1e-5  # relative, float32

ADAPTERS = {
    "plain": {},
    "attention only": {"target_modules": ["q_proj", "v_proj"]},
    "one late layer": {"layers_to_transform": [1]},
    "rslora": {"use_rslora": True},
    "patterns": {
        "rank_pattern": {"q_proj": 2, "down_proj": 6},
        "alpha_pattern": {"v_proj": 3, "up_proj": 32},
    },
    "dora": {"use_dora": True},
    "modules to save": {"modules_to_save": ["embed_tokens", "lm_head"]},
}


def layout_of(model: torch.nn.Module, k: int | None = None) -> tuple[Layout, tuple]:
    sites = find_sites(model)
    return make_layout([(s.name, s.rank, s.in_features, s.out_features) for s in sites], k), sites


def captured(model: torch.nn.Module, sequences: list[TokenSequence], k: int | None = None) -> np.ndarray:
    layout, sites = layout_of(model, k)
    with GradientCapture(model, sites, layout) as capture:
        return capture.gradients(sequences)[0]


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """Largest error of a row relative to that row's norm."""
    norms = np.linalg.norm(wanted, axis=1)
    assert (norms > 0).all(), "the oracle's gradient is zero, so the comparison would say nothing"
    return float((np.linalg.norm(got - wanted, axis=1) / norms).max())


@pytest.mark.parametrize("kind", ADAPTERS)
def test_capture_equals_both_oracles(kind: str) -> None:
    model = with_adapter(tiny_base(), **ADAPTERS[kind])
    sequences = random_sequences(7)
    _, sites = layout_of(model)
    slow = one_by_one(model, sites, sequences)
    functional = by_vmap(model, sites, sequences)
    fast = captured(model, sequences)
    assert relative_error(functional, slow) < TOLERANCE
    assert relative_error(fast, slow) < TOLERANCE


def test_capture_equals_both_oracles_on_conv1d_projections() -> None:
    model = with_adapter(tiny_gpt2(), target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
    sequences = random_sequences(5)
    _, sites = layout_of(model)
    slow = one_by_one(model, sites, sequences)
    assert relative_error(by_vmap(model, sites, sequences), slow) < TOLERANCE
    assert relative_error(captured(model, sequences), slow) < TOLERANCE


def test_a_site_used_twice_in_one_pass_adds_up() -> None:
    base = tiny_base()
    base.model.layers[1] = base.model.layers[0]  # one layer, run twice
    model = with_adapter(base)
    sequences = random_sequences(4)
    _, sites = layout_of(model)
    assert len(sites) == len(ALL_LINEAR)
    slow = one_by_one(model, sites, sequences)
    assert relative_error(captured(model, sequences), slow) < TOLERANCE


def test_finite_differences_in_float64_agree() -> None:
    # GPT-2, since Llama's RMSNorm computes in float32 whatever the model's dtype.
    model = with_adapter(tiny_gpt2(), target_modules=["c_attn", "c_proj"], fan_in_fan_out=True).double()
    sequences = random_sequences(3)
    layout, sites = layout_of(model)
    with GradientCapture(model, sites, layout) as capture:
        vectors, _ = capture.gradients(sequences)
    generator = np.random.default_rng(0)
    step = 1e-5
    for _ in range(12):
        block = layout.blocks[generator.integers(len(layout.blocks))]
        site = next(s for s in sites if s.name == block.site)
        weight = (site.lora_a if block.side == "A" else site.lora_b).weight
        row, column = int(generator.integers(block.rows)), int(generator.integers(block.columns))
        losses = []
        for sign in (1, -2):
            with torch.no_grad():
                weight[row, column] += sign * step
                losses.append(row_losses(model, collate(sequences)).numpy())
        with torch.no_grad():
            weight[row, column] += step
        slope = (losses[0] - losses[1]) / (2 * step)
        got = vectors[:, block.offset + row * block.columns + column]
        np.testing.assert_allclose(got, slope, rtol=1e-4, atol=1e-5)


def test_batch_composition_order_and_padding_change_nothing() -> None:
    model = with_adapter(tiny_base())
    sequences = random_sequences(9)
    together = captured(model, sequences)
    alone = np.concatenate([captured(model, [s]) for s in sequences])
    backwards = captured(model, sequences[::-1])[::-1]
    assert relative_error(together, alone) < TOLERANCE
    assert relative_error(backwards, together) < TOLERANCE
    layout, sites = layout_of(model)
    batch = collate(sequences)
    padded = type(batch)(
        torch.nn.functional.pad(batch.ids, (0, 13), value=5), torch.nn.functional.pad(batch.targets, (0, 13))
    )
    with GradientCapture(model, sites, layout) as capture:
        assert relative_error(capture.gradients_of_batch(padded)[0], together) < TOLERANCE


def test_a_row_without_targets_is_a_zero_vector() -> None:
    model = with_adapter(tiny_base())
    sequences = random_sequences(3)
    silent = TokenSequence(sequences[1].ids, np.zeros_like(sequences[1].loss_mask))
    layout, sites = layout_of(model)
    with GradientCapture(model, sites, layout) as capture:
        vectors, losses = capture.gradients([sequences[0], silent, sequences[2]])
        alone, zero = capture.gradients([silent])
    assert not vectors[1].any()
    assert losses[1] == 0
    assert not alone.any()
    assert zero[0] == 0
    assert vectors[0].any()


def test_losses_are_those_of_the_full_logits() -> None:
    model = with_adapter(tiny_base())
    sequences = random_sequences(6)
    batch = collate(sequences)
    with torch.no_grad():
        logits = model(input_ids=batch.ids).logits.double()
        losses = torch.nn.functional.cross_entropy(
            logits[:, :-1].transpose(1, 2), batch.ids[:, 1:], reduction="none"
        )
        wanted = (losses * batch.targets[:, 1:]).sum(1)
        got = row_losses(model, batch)
    np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-5)


def test_projection_is_the_stated_matrix_applied_to_the_wide_side() -> None:
    model = with_adapter(tiny_base())
    sequences = random_sequences(4)
    exact_layout, _ = layout_of(model)
    small_layout, _ = layout_of(model, k=8)
    exact, small = captured(model, sequences), captured(model, sequences, k=8)
    assert small.shape == (4, small_layout.dimension)
    for block, narrow in zip(exact_layout.blocks, small_layout.blocks, strict=True):
        full = exact[:, block.offset : block.stop].reshape(4, block.rows, block.columns)
        matrix = small_layout.projection(narrow)
        wanted = full @ matrix.T if block.side == "A" else matrix @ full
        np.testing.assert_allclose(
            small[:, narrow.offset : narrow.stop], wanted.reshape(4, -1), rtol=2e-4, atol=1e-4
        )


def test_projection_keeps_inner_products_on_average() -> None:
    model = with_adapter(tiny_base())
    sequences = random_sequences(12)
    exact, small = captured(model, sequences), captured(model, sequences, k=16)
    gram, approximate = exact @ exact.T, small @ small.T
    scale = np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
    assert np.abs((approximate - gram) / scale).max() < 0.2


def test_training_mode_is_refused() -> None:
    model = with_adapter(tiny_base())
    layout, sites = layout_of(model)
    model.train()
    with pytest.raises(ModelError, match="training mode"):
        GradientCapture(model, sites, layout)


def test_hooks_are_gone_afterwards_even_after_an_error() -> None:
    model = with_adapter(tiny_base())
    layout, sites = layout_of(model)
    with pytest.raises(RuntimeError, match="stop"), GradientCapture(model, sites, layout):
        raise RuntimeError("stop")
    assert not any(
        s.lora_a._forward_hooks or s.lora_a._forward_pre_hooks or s.lora_b._forward_hooks for s in sites
    )
    assert not any(p.requires_grad for p in model.parameters())


def test_no_parameter_gathers_a_gradient() -> None:
    model = with_adapter(tiny_base())
    captured(model, random_sequences(3))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("budget", [1, 30, 100, 10_000])
def test_batches_cover_every_row_once_within_the_budget(budget: int) -> None:
    lengths = [len(s) for s in random_sequences(40, seed=5)]
    batches = plan_batches(lengths, budget)
    assert sorted(row for batch in batches for row in batch) == list(range(40))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget
    assert max(lengths) == max(lengths[row] for row in batches[0])
