"""Two slow, plain ways to the same gradients, to hold the fast one to. Neither uses a hook.

`one_by_one` runs batches of one row through autograd; `by_vmap` differentiates a function of the adapter's weights
under `torch.func.vmap`. Both return exact (unprojected) vectors in the order of the layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from gradian.gradients.batch import TokenSequence, collate, row_losses
from gradian.model.sites import Site


def one_by_one(
    model: nn.Module, sites: Sequence[Site], sequences: Sequence[TokenSequence]
) -> NDArray[np.float64]:
    """Gradient of each row's summed loss by autograd at batch size 1, `[rows, dimension]`."""
    device = next(model.parameters()).device
    weights = [weight for site in sites for weight in (site.lora_a.weight, site.lora_b.weight)]
    rows = []
    with _wanting_gradients(weights), torch.enable_grad():
        for sequence in sequences:
            loss = row_losses(model, collate([sequence], device)).sum()
            if not loss.requires_grad:
                rows.append(torch.zeros(sum(w.numel() for w in weights)))
                continue
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
            rows.append(_flatten(gradients, weights))
    return torch.stack(rows).double().cpu().numpy()


def by_vmap(
    model: nn.Module, sites: Sequence[Site], sequences: Sequence[TokenSequence]
) -> NDArray[np.float64]:
    """The same through `torch.func`: vmap over rows of the gradient of a functional call, `[rows, dimension]`."""
    batch = collate(sequences, next(model.parameters()).device)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    weights = [weight for site in sites for weight in (site.lora_a.weight, site.lora_b.weight)]
    variables = {names[id(weight)]: weight.detach() for weight in weights}

    def loss_of_row(values: dict[str, Tensor], ids: Tensor, targets: Tensor) -> Tensor:
        logits = torch.func.functional_call(
            model, values, (), {"input_ids": ids[None], "use_cache": False}
        ).logits[0]
        losses = F.cross_entropy(logits[:-1].float(), ids[1:], reduction="none")
        return (losses * targets[1:]).sum()

    per_row = torch.func.vmap(torch.func.grad(loss_of_row), in_dims=(None, 0, 0))(
        variables, batch.ids, batch.targets.float()
    )
    parts = [per_row[names[id(weight)]].flatten(1) for weight in weights]
    return torch.cat(parts, dim=1).double().cpu().numpy()


def _flatten(gradients: Sequence[Tensor | None], weights: Sequence[Tensor]) -> Tensor:
    return torch.cat(
        [
            torch.zeros(weight.numel()) if gradient is None else gradient.detach().float().cpu().flatten()
            for gradient, weight in zip(gradients, weights, strict=True)
        ]
    )


class _wanting_gradients:  # noqa: N801 - reads as a verb in a with statement
    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights

    def __enter__(self) -> None:
        for weight in self._weights:
            weight.requires_grad_(True)

    def __exit__(self, *exception: object) -> None:
        for weight in self._weights:
            weight.requires_grad_(False)
