"""How far a run got and at which rate: the learning rate as logged, the steps, the logging itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.change import change
from gradian.audit.curve import Curve
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.training_plan import rate_text, training_plan
from gradian.audit.wording import percent, plural

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run
    from gradian.run.log_history import LogHistory


def _run_log(context: AuditContext) -> tuple[Run, LogHistory]:
    assert context.run is not None
    assert context.run.logs is not None
    return context.run, context.run.logs


@check(
    "logs.lr_constant_zero",
    title="The learning rate is zero",
    severity=Severity.ERROR,
    needs=(Need.LOGS,),
    explain="""
Every logged learning rate is zero, so no step changed anything. A scheduler that was stepped to its end
before training, a resumed run whose schedule was already over, or a rate of 0.

**Fix.** A rate above zero; for a resumed run, more epochs than it had done.
""",
)
def lr_constant_zero(context: AuditContext) -> Iterator[Observation]:
    run, logs = _run_log(context)
    rates = Curve.of(logs.series("learning_rate"))
    if len(rates) < 3 or bool((rates.values != 0).any()):
        return
    yield Observation(
        title=f"The learning rate is 0 at all {len(rates)} logged steps",
        count=len(rates),
        of=len(rates),
        values={"logged": len(rates), "learning_rate": run.settings.number("learning_rate")},
        locations=(logs.file,),
        fix=change(run.settings, "learning_rate", 2e-4, trainer=run.profile.trainer),
    )


@check(
    "logs.lr_dead_tail",
    title="The run goes on at a learning rate of zero",
    severity=Severity.WARNING,
    needs=(Need.LOGS,),
    thresholds={"warning": 0.1, "info": 0.05, "rate": 1e-3},
    explain="""
The schedule had come down to `rate` of its peak long before the last step: what was trained after that
changed nothing. The schedule was made for fewer steps than the run had (a resumed run with more epochs, a
scheduler of one's own).

**Severity.** Warning from `warning` of the steps on, info from `info` on. The last step of an ordinary
schedule is not counted.

**Fix.** A schedule over all the steps.
""",
)
def lr_dead_tail(context: AuditContext) -> Iterator[Observation]:
    run, logs = _run_log(context)
    rates = Curve.of(logs.series("learning_rate"))
    if len(rates) < 10 or rates.values.max() <= 0:
        return
    alive = np.flatnonzero(rates.values > context.threshold("logs.lr_dead_tail.rate") * rates.values.max())
    # A cosine or linear schedule ends at zero, so the first logged zero is not yet a dead step.
    dead_from = int(alive[-1]) + 1
    if dead_from >= len(rates) - 1:
        return
    first, last = int(rates.steps[dead_from]), int(rates.steps[-1])
    share = (last - first) / last
    if share < context.threshold("logs.lr_dead_tail.info"):
        return
    yield Observation(
        title=(
            f"The learning rate is as good as zero from step {first:,} of {last:,} on ({percent(share)} of "
            "the run)"
        ),
        severity=Severity.WARNING
        if share >= context.threshold("logs.lr_dead_tail.warning")
        else Severity.INFO,
        values={"first_step": first, "last_step": last, "share": share},
        locations=(logs.file,),
        fix=change(run.settings, "max_steps", first, trainer=run.profile.trainer, old=-1),
    )


@check(
    "logs.lr_mismatch",
    title="The logged learning rate is not the configured one",
    severity=Severity.WARNING,
    needs=(Need.LOGS, Need.SETTINGS),
    thresholds={"above": 0.05, "below": 0.25},
    explain="""
The largest logged rate is more than `above` over the configured one, or more than `below` under what the
schedule should have reached at a logged
step: another configuration was used than the one in the folder, or a scheduler of one's own.

**Fix.** Find out which is true before trusting the other settings in the folder.
""",
)
def lr_mismatch(context: AuditContext) -> Iterator[Observation]:
    run, logs = _run_log(context)
    setting = run.settings.setting("learning_rate")
    configured = run.settings.number("learning_rate")
    rates = Curve.of(logs.series("learning_rate"))
    if setting is None or not configured or len(rates) < 3 or rates.values.max() <= 0:
        return
    largest = float(rates.values.max())
    expected = configured * _highest_share(context, rates)
    above = largest > configured * (1 + context.threshold("logs.lr_mismatch.above"))
    below = largest < expected * (1 - context.threshold("logs.lr_mismatch.below"))
    if not above and not below:
        return
    yield Observation(
        title=f"The largest logged learning rate is {rate_text(largest)}, configured {rate_text(configured)}",
        values={"largest_logged": largest, "configured": configured, "expected": expected},
        locations=(logs.file, setting.file),
        fix=Fix(text=f"check that {setting.file} is of this run"),
    )


def _highest_share(context: AuditContext, rates: Curve) -> float:
    """The largest share of the peak that a linear schedule shows at the logged steps; never above a
    cosine's.
    """
    plan = training_plan(context)
    steps = plan.steps or int(rates.steps[-1])
    warmup = plan.warmup_steps or 0
    shares: list[float] = [
        step / warmup if step < warmup else max(0.0, (steps - step) / max(1, steps - warmup))
        for step in rates.steps.tolist()
    ]
    return min(1.0, max(shares))


@check(
    "logs.run_incomplete",
    title="The run did not reach its end",
    severity=Severity.INFO,
    needs=(Need.LOGS,),
    thresholds={"share": 0.98},
    explain="""
Fewer steps were done than planned: the run was stopped, crashed, or ran out of time. The learning rate was
still above zero, and the last rows of the order were never seen.

**Severity.** Info; warning when there is no final adapter besides the checkpoints, which says that the run
was cut off. Not reported for a checkpoint that is looked at by itself, or with early stopping.

**Fix.** Resume from the last checkpoint.
""",
)
def run_incomplete(context: AuditContext) -> Iterator[Observation]:
    run, logs = _run_log(context)
    if run.checkpoints == () and run.path.resolve().name.startswith("checkpoint-"):
        raise NotApplicableError("a checkpoint looked at by itself")
    if run.settings.number("early_stopping_patience") is not None:
        raise NotApplicableError("early stopping")
    done, planned = logs.global_step, logs.max_steps
    share = context.threshold("logs.run_incomplete.share")
    if done is None or not planned or done >= share * planned:
        return
    final = run.adapter is not None and not any(point.name == run.adapter.name for point in run.checkpoints)
    stopped = logs.should_training_stop is True
    last = run.checkpoints[-1].name if run.checkpoints else None
    yield Observation(
        title=f"{done:,} of {planned:,} steps were done ({percent(done / planned)})",
        severity=Severity.INFO if final or stopped else Severity.WARNING,
        values={"global_step": done, "max_steps": planned, "epoch": logs.epoch, "final_adapter": final},
        locations=(logs.file,),
        fix=Fix(text=f"resume_from_checkpoint {last}" if last else "train to the end"),
    )


@check(
    "logs.too_sparse",
    title="The log has few points",
    severity=Severity.INFO,
    needs=(Need.LOGS,),
    thresholds={"points": 10},
    explain="""
With fewer than `points` logged losses most checks on the log can say nothing. transformers logs every 500
steps by default, which hides all of a short run.

**Fix.** `logging_steps` a fiftieth of the steps.
""",
)
def too_sparse(context: AuditContext) -> Iterator[Observation]:
    run, logs = _run_log(context)
    if not logs.complete:
        raise NotApplicableError("only the last values of the log were found")
    _, losses = logs.series("loss")
    limit = context.threshold("logs.too_sparse.points")
    steps = logs.global_step or logs.max_steps
    if len(losses) >= limit or steps is None or steps < 2 * limit:
        return
    yield Observation(
        title=f"{plural(len(losses), 'logged loss', 'logged losses')} in {steps:,} steps",
        values={"logged": len(losses), "steps": steps, "logging_steps": run.settings.get("logging_steps")},
        locations=(logs.file,),
        fix=change(
            run.settings, "logging_steps", max(1, math.floor(steps / 50)), trainer=run.profile.trainer,
            old=logs.logging_steps,
        ),
    )  # fmt: skip
