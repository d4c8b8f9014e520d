"""The eval loss during training: worse at the end, level, or not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.change import change
from gradian.audit.checks.logs_loss import supervised_log
from gradian.audit.curve import Curve, noise_band
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.wording import percent

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run
    from gradian.run.log_history import LogHistory


def eval_curve(context: AuditContext, least: int) -> tuple[Run, LogHistory, Curve]:
    """The run, its log and its eval losses, of which there are at least so many."""
    run, logs = supervised_log(context)
    curve = Curve.of(logs.eval_series("eval_loss"))
    if len(curve) < least:
        raise NotApplicableError(f"{len(curve)} eval losses, {least} are needed")
    return run, logs, curve


def chosen_by_other_metric(run: Run, logs: LogHistory) -> bool:
    """True when the run picks its best model by something other than the loss."""
    metric = run.settings.text("metric_for_best_model")
    if metric is not None:
        return not metric.endswith("loss")
    if logs.best_metric is None:
        return False
    _, losses = logs.eval_series("eval_loss")
    return len(losses) > 0 and not bool(np.isclose(losses, logs.best_metric, rtol=1e-6).any())


def checkpoint_at(run: Run, step: int) -> str | None:
    """The name of the checkpoint of this step, None when there is none."""
    return next((point.name for point in run.checkpoints if point.step == step), None)


@check(
    "logs.overfitting",
    title="The eval loss rose again",
    severity=Severity.WARNING,
    needs=(Need.LOGS,),
    thresholds={"warning": 0.03, "error": 0.1, "evals": 4},
    explain="""
The eval loss was lowest in mid-run and ended higher: from then on the model learnt the rows and lost in
general.

**Severity.** Warning when the end is at least `warning` worse than the best, error from `error` on. Only
beyond the run's own noise (twice the robust standard deviation of successive evaluations, at least 1 %) and
with `evals` evaluations. Not reported when the best model is picked by another metric.

**Fix.** The checkpoint of the best step, else as many epochs as it took.
""",
)
def overfitting(context: AuditContext) -> Iterator[Observation]:
    run, logs, curve = eval_curve(context, int(context.threshold("logs.overfitting.evals")))
    if chosen_by_other_metric(run, logs):
        raise NotApplicableError("the best model is picked by another metric")
    best = int(curve.values.argmin())
    lowest, last = float(curve.values[best]), float(curve.values[-1])
    if lowest <= 0:
        return
    worse, band = last / lowest - 1, noise_band(curve.values)
    warning = context.threshold("logs.overfitting.warning")
    if worse < warning or worse <= band:
        return
    step = int(curve.steps[best])
    name = checkpoint_at(run, step)
    epochs = step / float(curve.steps[-1]) * logs.epoch if logs.epoch else None
    if name:
        fix = Fix(text=f"use {name}")
    elif epochs and epochs >= 1:
        fix = change(run.settings, "num_train_epochs", max(1, round(epochs)), trainer=run.profile.trainer)
    else:
        fix = change(run.settings, "max_steps", step, trainer=run.profile.trainer, old=-1)
    train = Curve.of(logs.series("loss"))
    yield Observation(
        title=f"The eval loss rose {percent(worse)} from {lowest:.4g} at step {step:,} to {last:.4g}",
        severity=Severity.ERROR if worse >= context.threshold("logs.overfitting.error") else Severity.WARNING,
        values={"best": lowest, "best_step": step, "last": last, "worse": worse, "noise_band": band,
                "train_change": train.change if len(train) else None, "threshold": warning},
        locations=(logs.file,),
        fix=fix,
    )  # fmt: skip


@check(
    "logs.stopped_improving",
    title="The eval loss was level for the last third",
    severity=Severity.INFO,
    needs=(Need.LOGS,),
    thresholds={"share": 0.65},
    explain="""
An evaluation before `share` of the steps was as good as the last one, within the run's own noise. The rest
of the run cost time and gained nothing that the eval set shows.

**Fix.** That many steps are enough.
""",
)
def stopped_improving(context: AuditContext) -> Iterator[Observation]:
    run, logs, curve = eval_curve(context, 4)
    band = noise_band(curve.values)
    best = float(curve.values.min())
    if best <= 0 or curve.values[-1] > best * (1 + max(band, 0.03)):
        return  # the end is worse: logs.overfitting
    level = np.flatnonzero(curve.values <= best * (1 + band))
    first = int(curve.steps[int(level[0])])
    share = first / float(curve.steps[-1])
    if share >= context.threshold("logs.stopped_improving.share"):
        return
    yield Observation(
        title=f"The eval loss did not improve after step {first:,} ({percent(share)} of the run)",
        values={"first_equal_step": first, "share": share, "noise_band": band, "best": best},
        locations=(logs.file,),
        fix=change(run.settings, "max_steps", first, trainer=run.profile.trainer, old=-1),
    )


@check(
    "logs.eval_below_train",
    title="The eval loss is far below the training loss",
    severity=Severity.INFO,
    needs=(Need.LOGS,),
    thresholds={"ratio": 0.8},
    explain="""
Eval rows are easier than training rows, or they are among them. Dropout makes a small difference; a ratio
below `ratio` has another reason. `eval.contamination_exact` and `eval.contamination_near` say whether rows
are shared.
""",
)
def eval_below_train(context: AuditContext) -> Iterator[Observation]:
    _, logs, curve = eval_curve(context, 2)
    train = Curve.of(logs.series("loss"))
    if len(train) < 5:
        return
    at = np.interp(curve.steps, train.steps, train.local_median())
    ratios = curve.values[at > 0] / at[at > 0]
    if len(ratios) == 0:
        return
    ratio = float(np.median(ratios))
    if ratio >= context.threshold("logs.eval_below_train.ratio"):
        return
    yield Observation(
        title=f"The eval loss is {percent(ratio)} of the training loss",
        values={"ratio": ratio, "evals": len(curve)},
        locations=(logs.file,),
        fix=Fix(text="check the eval set for rows that are also trained on"),
    )


@check(
    "logs.eval_loss_missing",
    title="Evaluations without a loss",
    severity=Severity.WARNING,
    needs=(Need.LOGS,),
    explain="""
The run evaluated and logged no `eval_loss`. With a PEFT model transformers may not find the labels among the
inputs; then picking the best model by loss works on nothing.

**Fix.** `label_names: ["labels"]`.

Sources: huggingface/transformers#33420 and #38130.
""",
)
def eval_loss_missing(context: AuditContext) -> Iterator[Observation]:
    run, logs = supervised_log(context)
    if not logs.evals or any("loss" in name for point in logs.evals for name in point.values):
        return
    yield Observation(
        title=f"{len(logs.evals)} evaluations without an eval_loss",
        count=len(logs.evals),
        of=len(logs.evals),
        values={"eval_names": list(logs.eval_names())},
        locations=(logs.file,),
        fix=change(run.settings, "label_names", ["labels"]),
    )
