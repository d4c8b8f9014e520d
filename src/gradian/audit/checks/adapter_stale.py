"""The final adapter against those of the checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.run.adapter import AdapterFile, inside

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext

COMPARED_BYTES = 16 * 1024 * 1024  # of B matrices, when two adapters are compared


@check(
    "adapter.stale",
    title="The final adapter is that of an earlier checkpoint",
    severity=Severity.WARNING,
    needs=(Need.ADAPTER, Need.CHECKPOINTS),
    explain="""
The adapter at the top of the run is byte for byte the same as that of an earlier checkpoint, and not as that
of the last one: saving at the end did not happen, or an old file was copied over.

**Not reported** when the best model was loaded at the end and that checkpoint is the best.

**Fix.** The last checkpoint's adapter.
""",
)
def stale(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    final = run.adapter
    assert final is not None
    saved = [
        point for point in run.checkpoints if point.adapter is not None and point.adapter.name != final.name
    ]
    if len(saved) < 2 or final.weights is None or run.settings.flag("load_best_model_at_end"):
        raise NotApplicableError("no final adapter beside two checkpoints, or the best one was loaded")
    last = saved[-1].adapter
    assert last is not None
    if _same_weights(final, last):
        return
    for point in reversed(saved[:-1]):
        assert point.adapter is not None
        if _same_weights(final, point.adapter):
            yield Observation(
                title=f"The final adapter is that of {point.name}, not of {saved[-1].name}",
                values={"same_as": point.name, "last": saved[-1].name},
                locations=(inside(final.name, "adapter_model.safetensors"),),
                fix=Fix(text=f"use {saved[-1].name}"),
            )
            return


def _same_weights(left: AdapterFile, right: AdapterFile) -> bool:
    """True when names, shapes and the first B matrices (up to a bound) have the same bytes."""
    if left.weights is None or right.weights is None:
        return False
    if [(t.name, t.dtype, t.shape) for t in left.tensors] != [
        (t.name, t.dtype, t.shape) for t in right.tensors
    ]:
        return False
    compared = 0
    others = {tensor.name: tensor for tensor in right.tensors}
    with left.weights.path.open("rb") as mine, right.weights.path.open("rb") as theirs:
        for tensor in left.matrices("lora_B") or left.tensors:
            size = tensor.end - tensor.start
            mine.seek(tensor.start)
            theirs.seek(others[tensor.name].start)
            if mine.read(size) != theirs.read(size):
                return False
            compared += size
            if compared > COMPARED_BYTES:
                break
    return compared > 0
