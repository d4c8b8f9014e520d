"""Where the training loss goes: it does not fall, or it falls and rises again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradian.audit.change import change
from gradian.audit.checks.logs_loss import loss_curve
from gradian.audit.curve import Curve
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, Observation, check
from gradian.audit.training_plan import training_plan

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


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
        title=f"The loss {'rose' if rose else 'stayed'} from {curve.head:.3g} to {curve.tail:.3g}",
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
        title=f"The loss fell to {float(smooth.min()):.3g} at step {step:,} and ended at {curve.tail:.3g}",
        values={"lowest": float(smooth.min()), "lowest_step": step, "first_tenth": curve.head,
                "last_tenth": curve.tail, "ratio": ratio},
        locations=(logs.file,),
        fix=fix,
    )  # fmt: skip
