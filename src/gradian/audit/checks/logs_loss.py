"""The training loss: missing, hidden, flat, jumping, or too good."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.change import change
from gradian.audit.curve import Curve
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.training_plan import is_supervised
from gradian.audit.wording import plural
from gradian.run.log_history import LogHistory

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run

ZERO_LOSS = 1e-6


def supervised_log(context: AuditContext) -> tuple[Run, LogHistory]:
    """The run and its log, where the rules for supervised losses hold."""
    run = context.run
    assert run is not None
    assert run.logs is not None
    if not is_supervised(run):
        raise NotApplicableError("a preference or reinforcement run")
    return run, run.logs


def loss_curve(context: AuditContext, least: int = 1) -> tuple[Run, LogHistory, Curve]:
    """The same with the finite part of the loss, of at least so many points."""
    run, logs = supervised_log(context)
    curve = Curve.of(logs.series("loss"))
    if len(curve) < least:
        raise NotApplicableError(f"{plural(len(curve), 'logged loss', 'logged losses')}, {least} are needed")
    return run, logs, curve


def nan_fix(run: Run) -> Fix:
    """What helps against NaN with these settings."""
    if run.settings.flag("fp16"):
        return change(run.settings, "fp16", False).model_copy(update={"text": "fp16 true -> bf16 true"})
    return Fix(text="lower learning_rate, max_grad_norm 1.0; train on from a checkpoint before that step")


@check(
    "logs.loss_nan",
    title="The loss is NaN or infinite",
    severity=Severity.ERROR,
    needs=(Need.LOGS,),
    explain="""
From the first NaN on, the weights are NaN or about to be. What was saved after that step is unusable.

**Fix.** bf16 instead of fp16, a lower learning rate, clipping; go on from a checkpoint before the step that
is named.

Sources: hiyouga/LLaMA-Factory#7263, OpenBMB/MiniCPM-V#212.
""",
)
def loss_nan(context: AuditContext) -> Iterator[Observation]:
    run, logs = supervised_log(context)
    steps, losses = logs.series("loss")
    bad = ~np.isfinite(losses)
    if not bad.any():
        return
    first = int(steps[int(bad.argmax())])
    yield Observation(
        title=(
            f"The loss is NaN or infinite in {int(bad.sum())} of {len(losses)} logged steps, first at step "
            f"{first:,}"
        ),
        count=int(bad.sum()),
        of=len(losses),
        values={"first_step": first, "logged": len(losses), "fp16": run.settings.flag("fp16")},
        locations=(logs.file,),
        fix=nan_fix(run),
    )


@check(
    "logs.loss_nan_hidden",
    title="A loss of 0.0 that hides NaN",
    severity=Severity.ERROR,
    needs=(Need.LOGS,),
    explain="""
transformers leaves NaN losses out of the average it logs (`logging_nan_inf_filter`, on by default): a run
that has become NaN shows a loss of exactly 0.0. The gradient norm is not filtered, and it is NaN at the same
steps.

**Reported** for a zero loss with a NaN gradient norm at two logged steps in a row, or at the last one.

**Fix.** bf16 instead of fp16, a lower learning rate; go on from a checkpoint before the step that is named.

Sources: transformers `Trainer._maybe_log_save_evaluate`; hiyouga/LLaMA-Factory#7263 and #8088.
""",
)
def loss_nan_hidden(context: AuditContext) -> Iterator[Observation]:
    run, logs = supervised_log(context)
    points = [point for point in logs.train if "loss" in point.values]
    hidden = [
        abs(point.values["loss"]) < ZERO_LOSS and not math.isfinite(point.values.get("grad_norm", 0.0))
        for point in points
    ]
    in_a_row = any(left and right for left, right in pairwise(hidden))
    if not in_a_row and not (hidden and hidden[-1]):
        return
    first = points[hidden.index(True)].step
    yield Observation(
        title=f"From step {first:,} on the loss of 0.0 hides NaN (grad_norm is NaN)",
        count=sum(hidden),
        of=len(points),
        values={"first_step": first, "steps": sum(hidden), "logged": len(points)},
        locations=(logs.file,),
        assumes="logging_nan_inf_filter is on",
        fix=nan_fix(run),
    )


@check(
    "logs.loss_zero",
    title="The loss is zero",
    severity=Severity.ERROR,
    needs=(Need.LOGS,),
    thresholds={"share": 0.5, "start": 1e-4},
    explain="""
A language model's loss on new rows is never zero. It is when every label is masked: there is nothing to
predict, no gradient, and the run ends normally with an adapter that changes nothing.

**Reported** when at least `share` of the logged losses are zero, or the first tenth is below `start`, with a
gradient norm of zero or none logged. Not for reinforcement learning, where about zero is normal, and not
where NaN is hidden (`logs.loss_nan_hidden`).

**Fix.** Find out why nothing is left to learn: the prompts fill the length limit, the template marks no
answer, or the response marker is not found.

Sources: huggingface/trl#6668, unslothai/unsloth#1128.
""",
)
def loss_zero(context: AuditContext) -> Iterator[Observation]:
    _, logs, curve = loss_curve(context, least=2)
    points = [point for point in logs.train if math.isfinite(point.values.get("loss", math.nan))]
    zero = [point for point in points if abs(point.values["loss"]) < ZERO_LOSS]
    with_nan = [point for point in zero if not math.isfinite(point.values.get("grad_norm", 0.0))]
    moving = [
        point for point in zero if math.isfinite(norm := point.values.get("grad_norm", 0.0)) and norm > 0
    ]
    share = len(zero) / len(points)
    from_the_start = abs(curve.head) < context.threshold("logs.loss_zero.start")
    if share < context.threshold("logs.loss_zero.share") and not from_the_start:
        return
    if len(with_nan) > len(zero) / 2 or len(moving) > len(zero) / 2:
        return
    if not from_the_start and curve.values[0] > 0.1:
        when = f", from step {zero[0].step:,} on"
    else:
        when = " from the first step on"
    yield Observation(
        title=f"{len(zero)} of {len(points)} logged losses are 0.0{when}",
        count=len(zero),
        of=len(points),
        values={"zero": len(zero), "logged": len(points), "share": share},
        locations=(logs.file,),
        fix=Fix(text="find out why every label is masked: length limit, chat template or response marker"),
    )
