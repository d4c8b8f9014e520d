"""Sequences for one pass: padding, planning, and the loss of each row.

Rows are padded on the right and no attention mask is passed: a causal model's real tokens never see what stands to
their right, so padding changes nothing and the fast causal attention path is kept. A padded position is no target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn


@dataclass(frozen=True)
class TokenSequence:
    """Token ids and which of them are targets of the loss, `[tokens]` each."""

    ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Batch:
    """Padded sequences.

    Attributes:
        ids: int64 `[rows, tokens]`, right-padded.
        targets: bool `[rows, tokens]`; the token at that position counts. Never the first one: nothing predicts it.
    """

    ids: Tensor
    targets: Tensor


def collate(sequences: Sequence[TokenSequence], device: torch.device | str = "cpu", pad_id: int = 0) -> Batch:
    """Pad on the right to the longest sequence."""
    width = max(len(s) for s in sequences)
    ids = np.full((len(sequences), width), pad_id, dtype=np.int64)
    targets = np.zeros((len(sequences), width), dtype=bool)
    for index, sequence in enumerate(sequences):
        ids[index, : len(sequence)] = sequence.ids
        targets[index, : len(sequence)] = sequence.loss_mask
    targets[:, 0] = False
    return Batch(torch.from_numpy(ids).to(device), torch.from_numpy(targets).to(device))


def row_losses(model: nn.Module, batch: Batch) -> Tensor:
    """Summed negative log-probability of each row's targets, `[rows]`, nats; float32, or float64 for a float64 model.

    The language model head runs only at positions that predict some row's target (`logits_to_keep`): on a small model
    with a large vocabulary the logits are the largest tensors of the pass.
    """
    predicts = batch.targets[:, 1:]
    positions = predicts.any(dim=0).nonzero().squeeze(1)
    if positions.numel() == 0:
        return torch.zeros(len(batch.ids), device=batch.ids.device)
    logits = model(input_ids=batch.ids, use_cache=False, logits_to_keep=positions).logits
    wanted = batch.ids[:, 1:][:, positions]
    counts = predicts[:, positions]
    if logits.shape[1] != len(positions):  # a model whose forward does not know logits_to_keep
        logits = logits[:, positions]
    losses = F.cross_entropy(at_least_float32(logits[counts]), wanted[counts], reduction="none")
    rows = counts.nonzero()[:, 0]
    return torch.zeros(len(batch.ids), device=losses.device, dtype=losses.dtype).index_add(0, rows, losses)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half precision widened, so that sums over tokens do not lose what the rows differ by."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def plan_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Group row numbers of similar length so that no batch holds more than `token_budget` padded tokens.

    Longest first: the heaviest batch comes first, so that a lack of memory shows at once. Depends on nothing but the
    lengths, so that a resumed build meets the same batches. A row longer than the budget gets a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    batches: list[list[int]] = []
    current: list[int] = []
    for row in order:
        widest = lengths[current[0]] if current else lengths[row]
        if current and widest * (len(current) + 1) > token_budget:
            batches.append(current)
            current = []
        current.append(row)
    if current:
        batches.append(current)
    return batches
