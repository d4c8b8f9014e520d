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
from gradian.audit.training_plan import is_supervised, training_plan
from gradian.audit.wording import percent, plural
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
            f"the loss is NaN or infinite in {int(bad.sum())} of {len(losses)} logged steps, first at step "
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
        title=f"from step {first:,} on the loss of 0.0 hides NaN (grad_norm is NaN)",
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


@check(
    "logs.not_learning",
    title="The loss does not fall",
    severity=Severity.WARNING,
    needs=(Need.LOGS,),
    thresholds={"points": 20, "fall": 0.03, "rise": 0.1, "low_start": 0.5},
    explain="""
The median loss of the last tenth of the log is about that of the first tenth: the run changed little.

**Severity.** Warning below a fall of `fall`; error when it rose by `rise` or more. Needs `points` logged
losses. Not reported when the loss starts below `low_start`, where there is little to gain. A start above 80
% of ln(vocabulary) means that the model predicts as one without pretrained weights does.

**Fix.** Usually the learning rate; see the finding that it follows from, if there is one.
""",
)
def not_learning(context: AuditContext) -> Iterator[Observation]:
    _, logs, curve = loss_curve(context, int(context.threshold("logs.not_learning.points")))
    if curve.head < context.threshold("logs.not_learning.low_start"):
        return
    fell = -curve.change
    if fell >= context.threshold("logs.not_learning.fall") or _diverged(curve):
        return
    rose = fell <= -context.threshold("logs.not_learning.rise")
    vocabulary = (context.base_config or {}).get("vocab_size")
    blind = isinstance(vocabulary, int) and vocabulary > 1 and curve.head > 0.8 * math.log(vocabulary)
    plan = training_plan(context)
    yield Observation(
        title=f"the loss {'rose' if rose else 'stayed'} from {curve.head:.3g} to {curve.tail:.3g}",
        severity=Severity.ERROR if rose else Severity.WARNING,
        message="The loss is that of a model without pretrained weights." if blind else "",
        count=len(curve),
        of=len(curve),
        values={"first_tenth": curve.head, "last_tenth": curve.tail, "change": curve.change,
                "learning_rate": plan.learning_rate, "vocab_size": vocabulary},
        locations=(logs.file,),
        fix=Fix(
            text="check that the base model's weights were loaded"
            if blind
            else "lower learning_rate (to a third)" if rose else "raise learning_rate (three to ten times)"
        ),
    )  # fmt: skip


def _diverged(curve: Curve, ratio: float = 1.5) -> bool:
    smooth = curve.local_median()
    return len(curve) >= 10 and curve.tail > ratio * float(smooth.min()) and curve.tail > curve.head


@check(
    "logs.loss_diverged",
    title="The loss diverged",
    severity=Severity.ERROR,
    needs=(Need.LOGS,),
    thresholds={"ratio": 1.5},
    explain="""
The loss fell and then rose above where it began: the last tenth is more than `ratio` times the lowest point
of the smoothed loss, and above the first tenth. The adapter that was saved last is worse than none.

**Fix.** A third of the learning rate; a checkpoint from before the rise, where there is one.
""",
)
def loss_diverged(context: AuditContext) -> Iterator[Observation]:
    run, logs, curve = loss_curve(context, least=10)
    ratio = context.threshold("logs.loss_diverged.ratio")
    if curve.head < 0.1 or not _diverged(curve, ratio):
        return
    smooth = curve.local_median()
    lowest = int(smooth.argmin())
    step = int(curve.steps[lowest])
    earlier = [point for point in run.checkpoints if point.step <= step]
    rate = run.settings.number("learning_rate")
    fix = (
        change(run.settings, "learning_rate", float(f"{rate / 3:.0e}"), trainer=run.profile.trainer)
        if rate
        else Fix(text="lower learning_rate to a third")
    )
    if earlier:
        fix = fix.model_copy(update={"text": f"{fix.text}, or use {earlier[-1].name}"})
    yield Observation(
        title=f"the loss fell to {float(smooth.min()):.3g} at step {step:,} and ended at {curve.tail:.3g}",
        values={"lowest": float(smooth.min()), "lowest_step": step, "first_tenth": curve.head,
                "last_tenth": curve.tail, "ratio": ratio},
        locations=(logs.file,),
        fix=fix,
    )  # fmt: skip


@check(
    "logs.loss_spike",
    title="The loss jumps",
    severity=Severity.INFO,
    needs=(Need.LOGS,),
    thresholds={"ratio": 1.8, "z": 6, "warning_count": 3},
    explain="""
Single steps whose loss is more than `ratio` times that of their neighbourhood and more than `z` robust
standard deviations above it; the first 5 % of the steps do not count. A row that is garbled or far longer
than others does it, and so does a learning rate at the edge.

**Severity.** Info; warning from `warning_count` spikes on.

**Fix.** Gradient clipping, a lower rate, a look at the longest and oddest rows. Which rows were in the batch
cannot be told from the log.
""",
)
def loss_spike(context: AuditContext) -> Iterator[Observation]:
    run, logs, curve = loss_curve(context, least=20)
    ratio, z = context.threshold("logs.loss_spike.ratio"), context.threshold("logs.loss_spike.z")
    spikes = curve.spikes(ratio=ratio, z=z)
    if len(spikes) == 0 or _is_periodic(curve.steps[spikes]):
        return
    median = curve.local_median()
    worst = int(spikes[int(np.argmax(curve.values[spikes]))])
    many = len(spikes) >= context.threshold("logs.loss_spike.warning_count")
    clip = run.settings.number("max_grad_norm")
    yield Observation(
        title=(
            f"the loss jumps at {plural(len(spikes), 'step')}, most at step {int(curve.steps[worst]):,} "
            f"({curve.values[worst]:.3g} against {median[worst]:.3g} around it)"
        ),
        severity=Severity.WARNING if many else Severity.INFO,
        count=len(spikes),
        of=len(curve),
        values={"steps": curve.steps[spikes].tolist()[:20], "worst": float(curve.values[worst]),
                "around": float(median[worst]), "ratio": ratio, "z": z},
        locations=(logs.file,),
        fix=change(run.settings, "max_grad_norm", 1.0, trainer=run.profile.trainer)
        if clip is not None and (clip <= 0 or clip > 1)
        else Fix(text="lower learning_rate; look at the longest rows"),
    )  # fmt: skip


def _is_periodic(steps: np.ndarray, least: int = 4, spread: float = 0.15) -> bool:
    if len(steps) < least:
        return False
    gaps = np.diff(steps)
    return bool(gaps.mean() > 0 and gaps.std() / gaps.mean() < spread)


@check(
    "logs.periodic_spike",
    title="The loss jumps at regular intervals",
    severity=Severity.WARNING,
    needs=(Need.LOGS,),
    explain="""
Four or more spikes at equal distances have a cause that comes round: at the end of epochs it is the short
last batch, whose loss is averaged or accumulated wrongly; otherwise it is often one long or garbled stretch
of an unshuffled file.

**Fix.** At epoch boundaries `dataloader_drop_last true`; otherwise shuffle.
""",
)
def periodic_spike(context: AuditContext) -> Iterator[Observation]:
    run, logs, curve = loss_curve(context, least=20)
    spikes = curve.spikes(ratio=1.8, z=6)
    steps = curve.steps[spikes]
    if not _is_periodic(steps):
        return
    period = float(np.diff(steps).mean())
    ends = epoch_ends(logs)
    interval = float(np.median(np.diff(curve.steps))) if len(curve) > 1 else 1.0
    at_ends = sum(any(abs(int(step) - end) <= max(1.0, interval) for end in ends) for step in steps)
    boundary = at_ends >= 0.75 * len(steps)
    yield Observation(
        title=f"the loss jumps every {period:.0f} steps ({len(steps)} times)"
        + (", at the end of epochs" if boundary else ""),
        count=len(steps),
        of=len(curve),
        values={"steps": steps.tolist()[:20], "period": period, "at_epoch_ends": at_ends},
        locations=(logs.file,),
        fix=change(run.settings, "dataloader_drop_last", True, old=False)
        if boundary
        else Fix(text="shuffle the rows, and look at what stands at that interval in the file"),
    )


def epoch_ends(logs: LogHistory) -> list[float]:
    """Steps at which epochs end, from the logged epochs; the last epoch's end is not a boundary."""
    pairs = [(point.step, point.epoch) for point in logs.train if point.epoch and point.step]
    if not pairs:
        return []
    per_epoch = float(np.median([step / epoch for step, epoch in pairs if epoch]))
    last = pairs[-1][1] or 0
    return [number * per_epoch for number in range(1, math.ceil(last - 1e-3))]


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
        title=f"the loss drops at the start of an epoch ({shown}) and is flat inside",
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
    if curve.head < 0.1 or _answers_are_labels(context):
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
        title=f"the training loss ends at {curve.tail:.2g}",
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
        title=f"token accuracy fell from {float(smooth[peak]):.3f} at step {step:,} to {curve.tail:.3f}",
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
        title=f"the entropy of the predictions ends at {curve.tail:.2g} nats a token",
        values={"last_tenth": curve.tail, "first_tenth": curve.head, "threshold": limit},
        locations=(logs.file,),
    )
