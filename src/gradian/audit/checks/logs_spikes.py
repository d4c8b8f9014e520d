"""Jumps of the training loss, single ones and regular ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradian.audit.change import change
from gradian.audit.checks.logs_loss import loss_curve
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import plural
from gradian.run.log_history import epoch_ends

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


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
            f"The loss jumps at {plural(len(spikes), 'step')}, most at step {int(curve.steps[worst]):,} "
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


def _is_periodic(steps: NDArray[np.int64], least: int = 4, spread: float = 0.15) -> bool:
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
        title=f"The loss jumps every {period:.0f} steps ({len(steps)} times)"
        + (", at the end of epochs" if boundary else ""),
        count=len(steps),
        of=len(curve),
        values={"steps": steps.tolist()[:20], "period": period, "at_epoch_ends": at_ends},
        locations=(logs.file,),
        fix=change(run.settings, "dataloader_drop_last", True, old=False)
        if boundary
        else Fix(text="shuffle the rows, and look at what stands at that interval in the file"),
    )
