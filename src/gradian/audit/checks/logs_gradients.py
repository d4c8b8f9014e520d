"""The gradient norm: NaN, zero, spiking, or of the wrong size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.change import change
from gradian.audit.checks.logs_loss import nan_fix, supervised_log
from gradian.audit.curve import Curve
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.training_plan import training_plan
from gradian.audit.wording import percent, plural

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run
    from gradian.run.log_history import LogHistory


def norm_curve(context: AuditContext, least: int = 5) -> tuple[Run, LogHistory, Curve]:
    """The run, its log and its finite gradient norms, of which there are at least so many."""
    run, logs = supervised_log(context)
    curve = Curve.of(logs.series("grad_norm"))
    if len(curve) < least:
        raise NotApplicableError(f"{len(curve)} gradient norms, {least} are needed")
    return run, logs, curve


@check(
    "logs.grad_norm_nan",
    title="The gradient norm is NaN",
    severity=Severity.ERROR,
    needs=(Need.LOGS,),
    thresholds={"share": 0.01},
    explain="""
A NaN gradient norm means that the step was skipped (fp16's loss scaling does that now and then) or that the
weights became NaN.

**Severity.** Error for at least `share` of the logged steps and two of them, or at the last one; info for
single ones in fp16, which loss scaling explains.

**Fix.** bf16 instead of fp16, a lower learning rate.
""",
)
def grad_norm_nan(context: AuditContext) -> Iterator[Observation]:
    run, logs = supervised_log(context)
    steps, norms = logs.series("grad_norm")
    bad = ~np.isfinite(norms)
    count = int(bad.sum())
    if count == 0:
        return
    severe = bool(bad[-1]) or (
        count >= 2 and count >= context.threshold("logs.grad_norm_nan.share") * len(norms)
    )
    scaling = run.settings.flag("fp16") is True and not severe
    yield Observation(
        title=f"grad_norm is NaN or infinite in {count} of {len(norms)} logged steps",
        severity=Severity.ERROR if severe else Severity.INFO,
        message="Loss scaling of fp16 skips such a step." if scaling else "",
        count=count,
        of=len(norms),
        values={"first_step": int(steps[int(bad.argmax())]), "count": count, "logged": len(norms)},
        locations=(logs.file,),
        fix=nan_fix(run),
    )


@check(
    "logs.grad_norm_zero",
    title="The gradient is zero",
    severity=Severity.WARNING,
    needs=(Need.LOGS,),
    thresholds={"warning": 0.2, "error": 0.7},
    explain="""
A gradient norm of exactly 0.0 means that nothing is learnt at that step: every label of the batch is masked,
or the adapter's parameters are frozen or not part of the graph (gradient checkpointing without
`enable_input_require_grads`).

**Severity.** Warning from `warning` of the logged steps on, error from `error` on.

**Fix.** With a zero loss, the masks; with a loss that is not zero, `model.enable_input_require_grads()`.
""",
)
def grad_norm_zero(context: AuditContext) -> Iterator[Observation]:
    _, logs, curve = norm_curve(context, least=2)
    zero = int((curve.values == 0).sum())
    share = zero / len(curve)
    if share < context.threshold("logs.grad_norm_zero.warning"):
        return
    losses = Curve.of(logs.series("loss"))
    has_loss = len(losses) > 0 and losses.tail > 1e-6
    error = share >= context.threshold("logs.grad_norm_zero.error")
    yield Observation(
        title=f"grad_norm is exactly 0.0 in {zero} of {len(curve)} logged steps",
        severity=Severity.ERROR if error else Severity.WARNING,
        count=zero,
        of=len(curve),
        values={
            "zero": zero,
            "logged": len(curve),
            "share": share,
            "loss": losses.tail if len(losses) else None,
        },
        locations=(logs.file,),
        fix=Fix(
            text="model.enable_input_require_grads() before training with gradient checkpointing"
            if has_loss
            else "find out why every label is masked"
        ),
    )


@check(
    "logs.grad_norm_spike",
    title="The gradient norm spikes",
    severity=Severity.INFO,
    needs=(Need.LOGS,),
    thresholds={"ratio": 10, "z": 8},
    explain="""
Steps whose gradient norm is more than `ratio` times that of their neighbourhood. Clipping makes most of them
harmless.

**Severity.** Info; warning when the loss jumps at the same steps and `logs.loss_spike` does not warn of them yet.

**Fix.** `max_grad_norm 1.0`, when clipping is off; else a look at the longest and oddest rows.
""",
)
def grad_norm_spike(context: AuditContext) -> Iterator[Observation]:
    run, logs, curve = norm_curve(context, least=20)
    ratio, z = context.threshold("logs.grad_norm_spike.ratio"), context.threshold("logs.grad_norm_spike.z")
    spikes = curve.spikes(ratio=ratio, z=z)
    if len(spikes) == 0:
        return
    losses = Curve.of(logs.series("loss"))
    jumps = set(losses.steps[losses.spikes(ratio=1.8, z=6)].tolist()) if len(losses) else set()
    steps = curve.steps[spikes].tolist()
    together = sorted(set(steps) & jumps)
    clip = run.settings.number("max_grad_norm")
    told = context.threshold(
        "logs.loss_spike.warning_count"
    )  # from so many on, that check warns of the same steps
    yield Observation(
        title=f"grad_norm spikes at {plural(len(steps), 'step')}"
        + (f", and the loss with it at {len(together)}" if together else ""),
        severity=Severity.WARNING if together and len(jumps) < told else Severity.INFO,
        count=len(steps),
        of=len(curve),
        values={"steps": steps[:20], "with_loss": together[:20], "ratio": ratio, "max_grad_norm": clip},
        locations=(logs.file,),
        fix=change(run.settings, "max_grad_norm", 1.0, trainer=run.profile.trainer)
        if clip is not None and (clip <= 0 or clip > 10)
        else Fix(text="look at the longest and oddest rows"),
    )


@check(
    "logs.grad_norm_high",
    title="The gradient norm is high throughout",
    severity=Severity.WARNING,
    needs=(Need.LOGS,),
    thresholds={"median": 10},
    explain="""
The norm is logged before clipping. A median above `median` means that clipping shrinks nearly every step, so
that its direction counts
and its size does not: a loss summed instead of averaged, a scale alpha / r that is far too high, or rows
unlike anything the model knows.

**Fix.** Check alpha / r; lower the learning rate.

Source: axolotl documentation (0.1 to 10 is healthy).
""",
)
def grad_norm_high(context: AuditContext) -> Iterator[Observation]:
    run, logs, curve = norm_curve(context, least=10)
    median, limit = float(np.median(curve.values)), context.threshold("logs.grad_norm_high.median")
    if median <= limit:
        return
    clip = run.settings.number("max_grad_norm")
    clipped = float((curve.values > clip).mean()) if clip else None
    yield Observation(
        title=f"The median gradient norm is {median:.3g}",
        message=f"Clipping at {clip:g} shrinks {percent(clipped)} of the steps."
        if clip and clipped is not None
        else "",
        values={"median": median, "threshold": limit, "max_grad_norm": clip, "clipped": clipped},
        locations=(logs.file,),
        fix=Fix(text="check lora_alpha / r, lower learning_rate"),
    )


@check(
    "logs.grad_norm_tiny",
    title="The gradient norm is tiny",
    severity=Severity.WARNING,
    needs=(Need.LOGS,),
    thresholds={"median": 1e-4, "rate": 2e-5},
    explain="""
A median gradient norm below `median` together with a learning rate of at most `rate`: the run moves nothing.
(Adam makes up for small gradients at an ordinary rate, so the norm alone is not reported.)

**Fix.** See the finding that it follows from, if there is one; else raise the learning rate.
""",
)
def grad_norm_tiny(context: AuditContext) -> Iterator[Observation]:
    run, logs, curve = norm_curve(context)
    median, rate = float(np.median(curve.values)), training_plan(context).learning_rate
    if median == 0 or median >= context.threshold("logs.grad_norm_tiny.median"):
        return
    if rate is None or rate > context.threshold("logs.grad_norm_tiny.rate"):
        return
    yield Observation(
        title=f"The median gradient norm is {median:.1e}",
        values={"median": median, "learning_rate": rate},
        locations=(logs.file,),
        fix=change(run.settings, "learning_rate", 2e-4, trainer=run.profile.trainer, old=rate),
    )
