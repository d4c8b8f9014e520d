"""The engines by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gradian.engines.blocks import BlockPair, Float64
from gradian.engines.datainf import datainf
from gradian.engines.dot import gradcos, graddot
from gradian.engines.fisher import fisher


@dataclass(frozen=True)
class Engine:
    """A way to score rows: `score` maps the blocks of n rows and m queries to [n, m].

    `revision` changes when equal inputs score differently, so that scores that were kept are not taken for new ones.
    `curvature` says whether it corrects for the curvature of the loss. Scores of one without are no nats.
    """

    name: str
    score: Callable[[Iterable[BlockPair]], Float64]
    curvature: bool
    what: str
    revision: int = 1


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("datainf", datainf, True, "closed-form inverse a block at a time; ranks rows"),
        Engine("fisher", fisher, True, "exact damped Fisher over all blocks; judges groups"),
        Engine("graddot", graddot, False, "plain dot product of gradients"),
        Engine("gradcos", gradcos, False, "cosine of gradients"),
    )
}
