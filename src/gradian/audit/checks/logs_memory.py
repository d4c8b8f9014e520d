"""Signs that rows are recited: steps at epoch boundaries, a loss near zero, no spread left."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.change import change
from gradian.audit.checks.logs_loss import ZERO_LOSS, loss_curve, supervised_log
from gradian.audit.curve import Curve
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.wording import percent
from gradian.run.log_history import LogHistory, epoch_ends

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


@check(
    "logs.epoch_step_drop",
    title="The loss falls in steps at epoch boundaries",
    severity=Severity.WARNING,
    needs=(Need.LOGS,),
    thresholds={"drop": 0.2},
    explain="""
Within an epoch the loss is flat, and at the start of the next one it drops at once: the rows are recognised,
not what they have in common. The training loss of later epochs says nothing about new rows.

**Reported** when the median of the first points of an epoch is at least `drop` below that of the last points
of the one before, and the fall within the epoch is less than half as large. The points are a tenth of an
epoch, at least three.

**Severity.** Warning; info when the eval loss was still falling at the end.

**Fix.** One epoch, two at most, and an eval set.

Source: fast.ai, "Can LLMs learn from a single example?" (September 2023).
""",
)
def epoch_step_drop(context: AuditContext) -> Iterator[Observation]:
    run, logs, curve = loss_curve(context, least=12)
    drops = _boundary_drops(logs, curve, context.threshold("logs.epoch_step_drop.drop"))
    if not drops:
        return
    _, evals = logs.eval_series("eval_loss")
    improving = len(evals) >= 2 and bool(np.argmin(evals) == len(evals) - 1)
    epochs = run.settings.number("num_train_epochs") or logs.num_train_epochs or logs.epoch
    shown = ", ".join(f"epoch {number + 1} against {number}: {percent(drop)}" for number, drop in drops)
    yield Observation(
        title=f"The loss drops at the start of an epoch ({shown}) and is flat inside",
        severity=Severity.INFO if improving else Severity.WARNING,
        message="" if len(evals) else "There is no eval loss to show whether new rows got better too.",
        count=len(drops),
        of=len(epoch_ends(logs)),
        values={"drops": {str(number + 1): drop for number, drop in drops}, "epochs": epochs},
        locations=(logs.file,),
        fix=change(
            run.settings, "num_train_epochs", 1, trainer=run.profile.trainer, note="2 at most", old=epochs
        ),
    )


def _boundary_drops(logs: LogHistory, curve: Curve, least: float) -> list[tuple[int, float]]:
    """(number of the epoch that ends, relative change of the loss at its end), where the loss steps down.

    The change at a boundary is compared with what the epochs on both sides do by themselves: with a loss
        that falls
    all the time there is no step.
    """
    ends = epoch_ends(logs)
    edges = [0.0, *ends, float("inf")]
    parts = [
        curve.values[(curve.steps > low + 1e-6) & (curve.steps <= high + 1e-6)]
        for low, high in pairwise(edges)
    ]
    drops = []
    for number, (before, after) in enumerate(pairwise(parts), 1):
        width = max(3, len(before) // 10)
        if len(before) < 2 * width or len(after) < 2 * width:
            continue
        end, start = float(np.median(before[-width:])), float(np.median(after[:width]))
        if end <= 0:
            continue
        step = start / end - 1
        within = [float(np.median(part[-width:]) / np.median(part[:width]) - 1) for part in (before, after)]
        # The first epoch also holds the fast fall of the first steps: its second half is what counts.
        half = before[len(before) // 2 :]
        if number == 1 and len(half) >= 2 * width:
            within[0] = float(np.median(half[-width:]) / np.median(half[:width]) - 1)
        if step <= -least and all(inside > step / 2 for inside in within):
            drops.append((number, step))
    return drops


@check(
    "logs.memorised",
    title="The training loss is near zero",
    severity=Severity.WARNING,
    needs=(Need.LOGS,),
    thresholds={"loss": 0.05, "info_loss": 0.2, "accuracy": 0.99, "label_tokens": 8},
    explain="""
A loss this low means that the rows are recited. Free text has an entropy of its own that no model gets below
without having seen it.

**Severity.** Warning below `loss`, or above a token accuracy of `accuracy`; info below `info_loss`. Not
reported when the answers are short labels (median up to `label_tokens` learnt tokens), whose loss may well
be that low, nor when it was zero from the start (`logs.loss_zero`).

**Fix.** Fewer epochs.

Source: unsloth's guide (a loss below 0.2 is likely overfitting).
""",
)
def memorised(context: AuditContext) -> Iterator[Observation]:
    run, logs, curve = loss_curve(context, least=5)
    if curve.head < 0.1 or curve.tail < ZERO_LOSS or _answers_are_labels(context):
        return
    accuracy = Curve.of(logs.series("mean_token_accuracy"))
    limit = context.threshold("logs.memorised.loss")
    sure = curve.tail < limit or (
        len(accuracy) >= 5 and accuracy.tail > context.threshold("logs.memorised.accuracy")
    )
    if not sure and curve.tail >= context.threshold("logs.memorised.info_loss"):
        return
    epochs = logs.epoch or run.settings.number("num_train_epochs")
    new = max(1, math.floor((epochs or 2) / 2))
    yield Observation(
        title=f"The training loss ends at {curve.tail:.2g}",
        severity=Severity.WARNING if sure else Severity.INFO,
        values={"last_tenth": curve.tail, "threshold": limit, "epochs": epochs,
                "mean_token_accuracy": accuracy.tail if len(accuracy) else None},
        locations=(logs.file,),
        fix=change(run.settings, "num_train_epochs", new, trainer=run.profile.trainer, old=epochs),
    )  # fmt: skip


def _answers_are_labels(context: AuditContext) -> bool:
    facts = context.dataset
    if facts is None or facts.tokens is None or not facts.tokens.known.any():
        return False
    median = float(np.median(facts.tokens.full_loss[facts.tokens.known]))
    return median <= context.threshold("logs.memorised.label_tokens")


@check(
    "logs.token_accuracy_drop",
    title="Token accuracy fell from its peak",
    severity=Severity.WARNING,
    needs=(Need.LOGS,),
    thresholds={"points": 0.05},
    explain="""
TRL logs the share of learnt tokens that the model predicts right. It should rise; here it ended more than
`points` below its (smoothed) peak.

**Fix.** The checkpoint nearest to the peak, or a lower learning rate.
""",
)
def token_accuracy_drop(context: AuditContext) -> Iterator[Observation]:
    run, logs = supervised_log(context)
    curve = Curve.of(logs.series("mean_token_accuracy"))
    if len(curve) < 20:
        raise NotApplicableError("too few logged accuracies")
    smooth = curve.local_median()
    peak = int(smooth.argmax())
    fell = float(smooth[peak]) - curve.tail
    if fell <= context.threshold("logs.token_accuracy_drop.points"):
        return
    step = int(curve.steps[peak])
    earlier = [point for point in run.checkpoints if point.step <= step]
    yield Observation(
        title=f"Token accuracy fell from {float(smooth[peak]):.3f} at step {step:,} to {curve.tail:.3f}",
        values={"peak": float(smooth[peak]), "peak_step": step, "last_tenth": curve.tail},
        locations=(logs.file,),
        fix=Fix(text=f"use {earlier[-1].name}" if earlier else "lower learning_rate"),
    )


@check(
    "logs.entropy_collapse",
    title="The model's predictions have no spread left",
    severity=Severity.INFO,
    needs=(Need.LOGS,),
    thresholds={"entropy": 0.05},
    explain="""
TRL logs the entropy of the predictions, in nats a token. Below `entropy` the model puts everything on one
token each time: sampling gives the same text again and again. Context for a low loss.
""",
)
def entropy_collapse(context: AuditContext) -> Iterator[Observation]:
    _, logs = supervised_log(context)
    curve = Curve.of(logs.series("entropy"))
    limit = context.threshold("logs.entropy_collapse.entropy")
    if len(curve) < 5 or curve.tail >= limit or curve.head < limit or _answers_are_labels(context):
        return
    yield Observation(
        title=f"The entropy of the predictions ends at {curve.tail:.2g} nats a token",
        values={"last_tenth": curve.tail, "first_tenth": curve.head, "threshold": limit},
        locations=(logs.file,),
    )
