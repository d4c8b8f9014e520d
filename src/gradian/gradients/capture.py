"""Every row's exact LoRA gradient from one backward pass over a batch.

For a site `y = W x + s B A x` with `h_t = A x_t` and `z_t = B h_t` (arXiv 2106.09685, eq. 3):

    grad_A = sum_t (dL/dh_t) x_t^T        [r, in]
    grad_B = sum_t (dL/dz_t) h_t^T        [out, r]

The loss is the plain **sum** of the rows' losses and nothing couples one row to another (no dropout, no batch
norm), so the part of `dL/dh` that belongs to a row is that row's own. Hooks on the two linear modules of each
site see `x`, `h` and the two output gradients. They hold for rsLoRA, for rank and alpha patterns (the scale is
applied after B) and for DoRA (its magnitude scales B's output, its weight norm is detached: arXiv 2402.09353,
section 4.3). A module used several times in a pass adds up.

The base stays frozen and no weight asks for a gradient, so autograd computes only activations' gradients; the graph
starts at the first site, by making its detached input a leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradian.errors import ModelError
from gradian.gradients.batch import Batch, TokenSequence, at_least_float32, collate, row_losses
from gradian.gradients.layout import Block, Layout
from gradian.model.sites import Site


class GradientCapture:
    """Hooks on the sites of a model; use as a context manager.

    Args:
        model: the PEFT model in eval mode with frozen parameters.
        sites: where the adapter acts; the layout's blocks are theirs, A before B.
        layout: the vector's layout, with its projection.

    Raises:
        ModelError: the model is in training mode, or a site sees tokens without their rows (fused experts).
    """

    def __init__(self, model: nn.Module, sites: Sequence[Site], layout: Layout) -> None:
        if model.training:
            raise ModelError("the model is in training mode", why="dropout would make every gradient random")
        self._model = model
        self._sites = sites
        self._layout = layout
        self._device = next(model.parameters()).device
        self._projections = {
            block.offset: torch.from_numpy(matrix).to(self._device)
            for block in layout.blocks
            if (matrix := layout.projection(block)) is not None
        }
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._rows = 0
        self._parts: dict[int, Tensor] = {}  # block offset -> [rows, *projected block]

    def __enter__(self) -> GradientCapture:
        blocks = iter(self._layout.blocks)
        for site in self._sites:
            block_a, block_b = next(blocks), next(blocks)
            assert block_a.site == block_b.site == site.name, "layout and sites are of different adapters"
            self._handles += [
                site.lora_a.register_forward_pre_hook(_start_graph),
                site.lora_a.register_forward_hook(self._watch(block_a)),
                site.lora_b.register_forward_hook(self._watch(block_b)),
            ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._parts = {}

    def _watch(self, block: Block):  # type: ignore[no-untyped-def]
        def forward_hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if not output.requires_grad:
                return
            # DoRA sends the identity matrix through A and B for its weight norm: two dimensions, never differentiated.
            sees_rows = output.dim() == 3 and output.shape[0] == self._rows
            features = inputs[0].detach()

            def gradient_hook(gradient: Tensor) -> None:
                if not sees_rows:
                    raise ModelError(
                        "this site sees tokens without their rows, so its gradient cannot be told apart by row",
                        where=f"{block.site}.lora_{block.side}",
                        why="mixture-of-experts layers that regroup tokens are not supported",
                    )
                full = torch.bmm(at_least_float32(gradient).transpose(1, 2), at_least_float32(features))
                # Projected at once: the exact gradients of all blocks together would not fit beside the model.
                part = self._project(block, full)
                seen = self._parts.get(block.offset)
                self._parts[block.offset] = part if seen is None else seen + part

            output.register_hook(gradient_hook)

        return forward_hook

    def gradients(
        self, sequences: Sequence[TokenSequence]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Gradient vectors and losses of some rows, in one forward and one backward pass.

        Returns:
            vectors float32 `[rows, dimension]`, and summed losses float32 `[rows]` in nats. A row without targets has
            a zero vector and a zero loss.
        """
        batch = collate(sequences, self._device)
        return self.gradients_of_batch(batch)

    def gradients_of_batch(self, batch: Batch) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """As `gradients`, for sequences that are padded already."""
        assert self._handles, "GradientCapture is used outside its `with` block"
        self._rows, self._parts = len(batch.ids), {}
        with torch.enable_grad():
            losses = row_losses(self._model, batch)
            if losses.requires_grad:
                losses.sum().backward()
        vectors = np.zeros((self._rows, self._layout.dimension), dtype=np.float32)
        for block in self._layout.blocks:
            part = self._parts.pop(block.offset, None)
            if part is not None:
                vectors[:, block.offset : block.stop] = part.reshape(self._rows, -1).cpu().numpy()
        return vectors, losses.detach().float().cpu().numpy()

    def _project(self, block: Block, full: Tensor) -> Tensor:
        matrix = self._projections.get(block.offset)
        if matrix is None:
            return full
        # [rows, r, in] @ [in, k] for A; [k, out] @ [rows, out, r] for B
        matrix = matrix.to(full.dtype)
        return full @ matrix.T if block.side == "A" else matrix @ full


def _start_graph(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    if not torch.is_grad_enabled() or inputs[0].requires_grad:
        return None
    return (inputs[0].detach().requires_grad_(), *inputs[1:])
