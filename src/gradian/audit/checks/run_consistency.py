"""Whether the parts of a run agree: rows and steps, settings in several files, checkpoints and the final
adapter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.change import shown_value
from gradian.audit.checks.logs_eval import checkpoint_at, chosen_by_other_metric, eval_curve
from gradian.audit.curve import Curve, noise_band
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.training_plan import TrainingPlan, training_plan
from gradian.audit.wording import percent, plural

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run
    from gradian.run.log_history import LogHistory

#: Settings of which two different statements mean that one file is of another run.
COMPARED = (
    "learning_rate", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps", "max_length",
    "seed", "lr_scheduler_type", "weight_decay", "lora_r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora",
    "neftune_noise_alpha", "assistant_only_loss", "completion_only_loss",
)  # fmt: skip
MOST_DEVICES = 64


@check(
    "run.rows_mismatch",
    title="The steps do not fit the rows",
    severity=Severity.WARNING,
    needs=(Need.LOGS, Need.ROWS),
    explain="""
Steps per epoch times rows per step gives the rows that reached the model in an epoch. Here it is not the
number of rows in the file, and no number
of devices from 1 to 64 explains it: rows were filtered, the file is another one than was trained on, or part
of it was held out for evaluation.

**Severity.** Warning; info when up to half is missing, the log has evaluations and no eval set is given: then it may
be a split made in code.

**Reported** beyond a tolerance of one step (releases round differently), only where batch and accumulation
are stated, not with packing, streaming or automatic batch sizes.

**Fix.** Look for the filter, or give the file that was trained on.
""",
)
def rows_mismatch(context: AuditContext) -> Iterator[Observation]:
    run, plan = _rows_and_steps(context)
    logs = run.logs
    assert logs is not None
    assert plan.rows is not None
    assert plan.batch is not None
    done, epoch = logs.global_step, logs.epoch
    if not done or not epoch or epoch < 0.2:
        raise NotApplicableError("no epoch was logged")
    per_epoch = done / epoch
    per_step = plan.batch * plan.accumulation
    devices = [plan.devices] if plan.devices else list(range(1, MOST_DEVICES + 1))
    held_out = _held_out(run)
    for rows in {
        plan.rows,
        plan.rows - round(plan.rows * held_out) if held_out < 1 else plan.rows - int(held_out),
    }:
        expected = [rows / (per_step * count) for count in devices]
        if any(
            math.floor(steps) - 1e-6 <= per_epoch <= math.ceil(steps) + 1 + 1e-6
            for steps in expected
            if steps >= 1
        ):
            return
    arrived = per_epoch * per_step * (plan.devices or 1)
    ratio = arrived / plan.rows
    if 0.9 <= ratio <= 1.1:
        return
    missing = round(plan.rows - arrived)
    # People split the file in their own code, which leaves no trace but the evaluations.
    held_out_by_hand = 0.5 <= ratio < 1 and bool(logs.evals) and context.inputs.eval_dataset is None
    yield Observation(
        title=(
            f"{per_epoch:.4g} steps an epoch of {per_step * (plan.devices or 1)} rows are {round(arrived):,} rows, "
            f"the file has {plan.rows:,}"
        ),
        severity=Severity.INFO if held_out_by_hand else Severity.WARNING,
        message=(
            f"About {plural(missing, 'row')} never reached the model"
            + (", or were held out for the evaluations in the log." if held_out_by_hand else ".")
            if missing > 0
            else "The run saw more rows than the file has: it is another file, or only a part of it."
        ),
        count=abs(missing),
        of=plan.rows,
        values={"steps_per_epoch": per_epoch, "rows_per_step": per_step, "rows_arrived": arrived,
                "rows": plan.rows, "devices": plan.devices},
        assumes=None if plan.devices else "one device",
        locations=(logs.file,),
        fix=Fix(text="give the rows that were trained on, or look for the filter that leaves rows out"),
    )  # fmt: skip


def _rows_and_steps(context: AuditContext) -> tuple[Run, TrainingPlan]:
    run = context.run
    assert run is not None
    settings, plan = run.settings, training_plan(context)
    if not plan.rows or plan.batch is None or "gradient_accumulation_steps" not in settings:
        raise NotApplicableError("rows, batch and accumulation are not all known")
    if settings.flag("auto_find_batch_size") or settings.flag("group_by_length"):
        raise NotApplicableError("the batch was chosen automatically")
    return run, plan


def _held_out(run: Run) -> float:
    """Share (below 1) or number of rows that the trainer keeps for evaluation."""
    return max(0.0, run.settings.number("val_size") or 0.0)


@check(
    "run.config_disagreement",
    title="Two files state different settings",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    explain="""
The same setting has different values in two files of the folder. One of them is of another run, or was
edited afterwards. Gradian uses the value of the file that the trainer itself wrote (training_args.bin, then
the adapter's config, then configuration files, then the model card).

**Fix.** Remove or correct the file that is wrong.
""",
)
def config_disagreement(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    for name in COMPARED:
        setting = run.settings.setting(name)
        if setting is None:
            continue
        stated = [seen for seen in setting.disagreeing if seen.value is not None and seen.value != "auto"]
        if len(stated) < 2 or len({seen.file for seen in stated}) < 2:
            continue
        used, *others = stated
        shown = "; ".join(f"{shown_value(name, seen.value)} in {seen.file}" for seen in stated)
        yield Observation(
            title=f"{name} is {shown}",
            message=f"{shown_value(name, used.value)} is used.",
            count=len(stated),
            values={"values": {seen.file: seen.value for seen in stated}},
            locations=tuple(seen.file for seen in stated),
            fix=Fix.change(
                others[0].key, others[0].value, used.value, file=others[0].file,
                text=f"{others[0].file}: {others[0].key} {shown_value(name, others[0].value)} -> "
                f"{shown_value(name, used.value)}",
            ),
        )  # fmt: skip


@check(
    "run.last_not_best",
    title="A saved checkpoint was better than the end",
    severity=Severity.WARNING,
    needs=(Need.LOGS, Need.CHECKPOINTS),
    explain="""
The metric by which the run picks its best model was better at a checkpoint that is still there than at the
end, by more than the run's own noise, and the final adapter is that of the end. `logs.overfitting` reports a
clear rise of the eval loss; this is the smaller or other-metric case.

**Fix.** The checkpoint that is named.
""",
)
def last_not_best(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    logs = run.logs
    assert logs is not None
    if run.settings.flag("load_best_model_at_end"):
        raise NotApplicableError("the best model was loaded at the end")
    metric, lower_is_better = _metric(run)
    curve = Curve.of(logs.eval_series(metric))
    if len(curve) < 2:
        raise NotApplicableError("fewer than two evaluations")
    values = curve.values if lower_is_better else -curve.values
    saved = [place for place, step in enumerate(curve.steps.tolist()) if checkpoint_at(run, step)]
    if not saved or (metric == "eval_loss" and _overfits(curve)):
        return
    best = min(saved, key=lambda place: (values[place], place))
    gap = float(values[-1] - values[best])
    level = abs(float(values[best])) or 1.0
    band = max(noise_band(curve.values), 0.01)
    if best == len(curve) - 1 or gap <= band * level:
        return
    name = checkpoint_at(run, int(curve.steps[best]))
    assert name is not None
    yield Observation(
        title=f"{metric} was {curve.values[best]:.4g} at {name} and is {curve.values[-1]:.4g} at the end",
        values={"metric": metric, "best": float(curve.values[best]), "best_step": int(curve.steps[best]),
                "last": float(curve.values[-1]), "noise_band": band},
        locations=(logs.file,),
        fix=Fix(text=f"use {name}"),
    )  # fmt: skip


def _metric(run: Run) -> tuple[str, bool]:
    """The metric that picks the best model, and whether lower is better."""
    assert run.logs is not None
    stated = run.settings.text("metric_for_best_model") or "loss"
    name = stated if stated.startswith("eval_") else f"eval_{stated}"
    greater = run.settings.flag("greater_is_better")
    return name, name.endswith("loss") if greater is None else not greater


def _overfits(curve: Curve) -> bool:
    """What logs.overfitting reports."""
    best = float(curve.values.min())
    return len(curve) >= 4 and best > 0 and curve.values[-1] / best - 1 >= 0.03


@check(
    "run.best_not_saved",
    title="The best step was not saved",
    severity=Severity.INFO,
    needs=(Need.LOGS,),
    explain="""
The lowest eval loss was at a step of which there is no checkpoint, and the end is worse by more than the
run's own noise. There is nothing to go back to.

**Fix.** Save where you evaluate, and `load_best_model_at_end true`.
""",
)
def best_not_saved(context: AuditContext) -> Iterator[Observation]:
    run, logs, curve = eval_curve(context, 3)
    if chosen_by_other_metric(run, logs) or run.settings.flag("load_best_model_at_end"):
        raise NotApplicableError("the best model is picked by another metric, or was loaded")
    best = int(curve.values.argmin())
    step = int(curve.steps[best])
    if best == len(curve) - 1 or curve.values[best] <= 0 or checkpoint_at(run, step):
        return
    worse = float(curve.values[-1] / curve.values[best] - 1)
    if worse <= noise_band(curve.values):
        return
    yield Observation(
        title=f"The lowest eval loss was at step {step:,}, which was not saved; the end is {percent(worse)} worse",
        values={"best_step": step, "best": float(curve.values[best]), "last": float(curve.values[-1]),
                "checkpoints": [point.step for point in run.checkpoints]},
        locations=(logs.file,),
        fix=Fix(text="save_strategy as eval_strategy, load_best_model_at_end true"),
    )  # fmt: skip


@check(
    "run.resume_gap",
    title="The run was resumed",
    severity=Severity.INFO,
    needs=(Need.LOGS,),
    explain="""
The log goes back to an earlier step, or the learning rate jumps up in the middle: the run was stopped and
resumed. Rows may have been seen twice or not at all, and a schedule made for other epochs jumps.

**Fix.** Nothing, when it is known; else compare the settings of both parts.
""",
)
def resume_gap(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    logs = run.logs
    assert logs is not None
    jumps = [] if str(run.settings.get("lr_scheduler_type") or "").endswith("restarts") else _rate_jumps(logs)
    if not logs.restarts and not jumps:
        return
    where = logs.restarts or tuple(jumps)
    what = "The log goes back" if logs.restarts else "The learning rate jumps up"
    yield Observation(
        title=f"{what} at step {where[0]:,}: the run was resumed",
        count=len(where),
        values={"restarts": list(logs.restarts), "rate_jumps": jumps, "repeated_lines": logs.repeated},
        locations=(logs.file,),
    )


def _rate_jumps(logs: LogHistory) -> list[int]:
    """Steps at which the rate rises again by a fifth of its peak, in a schedule that otherwise falls.

    The first climb is the warm-up; what comes before the first fall does not count.
    """
    rates = Curve.of(logs.series("learning_rate"))
    changes = np.diff(rates.values)
    falls = np.flatnonzero(changes < 0)
    if len(rates) < 10 or len(falls) <= len(changes) / 2:
        return []
    up = changes > 0.2 * rates.values.max()
    return [int(step) for step in rates.steps[1:][up & (np.arange(len(changes)) > falls[0])]]
