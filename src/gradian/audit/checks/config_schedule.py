"""How long and in which portions a run trains: steps, epochs, batches, what is saved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.change import change, key_of, shown_value
from gradian.audit.finding import Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.training_plan import TrainingPlan, training_plan
from gradian.audit.wording import percent, plural

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run

SMALLEST_GOOD_BATCH = 8
LARGEST_GOOD_BATCH = 32


def _run_and_plan(context: AuditContext) -> tuple[Run, TrainingPlan]:
    assert context.run is not None
    return context.run, training_plan(context)


@check(
    "config.max_steps_override",
    title="The step limit ends the run before the epochs that were asked for",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    thresholds={"share": 0.95},
    explain="""
A positive `max_steps` wins over `num_train_epochs`, without a word. Notebooks ship with `max_steps = 60` for
a quick try; left in, the run sees a small part of the rows.

**Reported** when `max_steps` reaches less than `share` of the epochs that are asked for (the trainer's
default counts as asked for). How many rows were seen comes from the logged epoch where there is a log, else
from `max_steps` times the batch.

**Fix.** `max_steps -1`, with the number of steps that the epochs take.

**Not reported** for streaming data, where `max_steps` is the only way to say when to stop.

Sources: rjb7731/LLM-demos#1, artidoro/qlora#87, unsloth's example notebooks.
""",
)
def max_steps_override(context: AuditContext) -> Iterator[Observation]:
    run, plan = _run_and_plan(context)
    if run.settings.flag("streaming"):
        raise NotApplicableError("streaming data")
    if plan.max_steps is None or not plan.epochs:
        return
    reached = _epochs_reached(run, plan)
    if reached is None or reached >= context.threshold("config.max_steps_override.share") * plan.epochs:
        return
    batch = plan.effective_batch
    seen = None if plan.rows is None else min(plan.rows, round(reached * plan.rows))
    steps = _steps_for_all(plan, reached)
    rows = f"{seen:,} of {plural(plan.rows, 'row')} " if seen is not None and plan.rows is not None else ""
    epochs_key = key_of(run.settings, "num_train_epochs", run.profile.trainer)
    stated = "num_train_epochs" in run.settings
    yield Observation(
        title=(
            f"max_steps {plan.max_steps:,} stops after {rows}({reached:.2g} epochs) although {epochs_key} "
            f"{'asks for' if stated else 'is by default'} {plan.epochs:g}"
        ),
        count=seen,
        of=plan.rows,
        values={
            "max_steps": plan.max_steps, "effective_batch": batch, "rows_seen": seen, "rows": plan.rows,
            "epochs_reached": reached, "epochs_asked": plan.epochs, "steps_for_all_epochs": steps,
        },
        assumes=None if plan.devices or run.logs else "one device",
        fix=change(run.settings, "max_steps", -1, note=f"{steps:,} steps" if steps else ""),
    )  # fmt: skip


def _epochs_reached(run: Run, plan: TrainingPlan) -> float | None:
    """Epochs that max_steps reaches: by the log when the run got there, else by rows and batch."""
    done = plan.steps_done
    if run.logs is not None and done and plan.epochs_done and plan.max_steps is not None:
        return plan.epochs_done * plan.max_steps / done
    if plan.rows and plan.effective_batch and plan.max_steps is not None:
        return plan.max_steps * plan.effective_batch / plan.rows
    return None


def _steps_for_all(plan: TrainingPlan, reached: float) -> int | None:
    by_rows = plan.steps_for(plan.epochs) if plan.epochs else None
    if by_rows is not None:
        return by_rows
    return (
        math.ceil(plan.max_steps * plan.epochs / reached)
        if plan.max_steps and plan.epochs and reached
        else None
    )


@check(
    "config.epochs_many",
    title="Many epochs over few rows",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    thresholds={"epochs": 3, "error_epochs": 20, "rows": 10_000},
    explain="""
After the second or third pass over the same rows a language model recites them: the training loss goes on
falling while what it can do elsewhere gets worse. Without an evaluation during training nothing shows when.

**Severity.** Warning above `epochs` epochs over fewer than `rows` rows when the run neither evaluates nor
can stop early; error above `error_epochs`. Nothing when the eval loss was still falling at the end.

**Fix.** 3 epochs.

Sources: axolotl and unsloth documentation (1 to 3 epochs).
""",
)
def epochs_many(context: AuditContext) -> Iterator[Observation]:
    run, plan = _run_and_plan(context)
    if not plan.supervised:
        raise NotApplicableError("a preference or reinforcement method")
    epochs = plan.epochs_done if plan.max_steps is not None else (run.settings.number("num_train_epochs"))
    limit = context.threshold("config.epochs_many.epochs")
    if epochs is None or epochs <= limit + 0.05:
        return
    few = context.threshold("config.epochs_many.rows")
    if plan.rows is not None and plan.rows >= few:
        return
    error = epochs > context.threshold("config.epochs_many.error_epochs")
    watched = _evaluates(run) or run.settings.number("early_stopping_patience") is not None
    if _eval_still_falling(run) or (watched and not error):
        return
    rows = f" over {plural(plan.rows, 'row')}" if plan.rows is not None else ""
    yield Observation(
        title=f"{epochs:g} epochs{rows}" + ("" if watched else " without an evaluation on the way"),
        severity=Severity.ERROR if error else Severity.WARNING,
        values={"epochs": epochs, "rows": plan.rows, "threshold": limit, "evaluates": watched},
        fix=change(run.settings, "num_train_epochs", int(limit), trainer=run.profile.trainer, old=epochs),
    )


def _evaluates(run: Run) -> bool:
    if run.logs is not None:
        return len(run.logs.evals) > 0
    strategy = run.settings.text("eval_strategy")
    share = run.settings.number("val_size")
    return (
        (strategy is not None and strategy != "no")
        or bool(share)
        or run.settings.get("test_datasets") is not None
    )


def _eval_still_falling(run: Run) -> bool:
    if run.logs is None:
        return False
    _, losses = run.logs.eval_series("eval_loss")
    return len(losses) >= 3 and bool(np.argmin(losses) == len(losses) - 1)


@check(
    "config.steps_too_few",
    title="Too few optimizer steps for the batch",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    thresholds={"steps": 20},
    explain="""
An optimizer step moves every entry by about the learning rate, whatever the batch. A large batch over few
rows leaves so few steps that the model barely moves.

**Reported** below `steps` steps when a smaller batch (8 rows a step is enough) would give more.

**Fix.** The accumulation, or the batch, that gives about 100 steps and at least 8 rows a step.
""",
)
def steps_too_few(context: AuditContext) -> Iterator[Observation]:
    run, plan = _run_and_plan(context)
    batch, steps = plan.effective_batch, plan.steps
    if not plan.supervised or steps is None or batch is None or batch <= SMALLEST_GOOD_BATCH:
        return
    if steps >= context.threshold("config.steps_too_few.steps") or plan.max_steps is not None:
        return
    target = max(SMALLEST_GOOD_BATCH, min(batch // 2, batch * steps // 100))
    name, new = _batch_change(plan, target)
    yield Observation(
        title=f"{plural(steps, 'optimizer step')} in the whole run, at {batch} rows a step",
        values={"steps": steps, "effective_batch": batch, "rows": plan.rows, "epochs": plan.epochs},
        assumes=None if plan.devices else "one device",
        fix=change(run.settings, name, new, trainer=run.profile.trainer, note=f"{target} rows a step"),
    )


def _batch_change(plan: TrainingPlan, target: int) -> tuple[str, int]:
    """The setting that brings the effective batch down to about `target`: accumulation first, it is free."""
    assert plan.batch is not None, "only asked for with a known batch"
    per_pass = plan.batch * (plan.devices or 1)
    if plan.accumulation > 1 and per_pass <= target:
        return "gradient_accumulation_steps", max(1, target // per_pass)
    return "per_device_train_batch_size", max(1, target // (plan.accumulation * (plan.devices or 1)))


@check(
    "config.batch_large",
    title="A large batch with LoRA",
    severity=Severity.INFO,
    needs=(Need.SETTINGS,),
    thresholds={"info": 32, "warning": 128, "row_share": 0.05},
    explain="""
LoRA loses more from a large batch than full fine-tuning does, and a higher rank does not make up for it.

**Severity.** Info above `info` rows a step; warning above `warning`, or when a step takes more than
`row_share` of all rows.

**Fix.** The accumulation or batch that gives 32 rows a step.

Source: "LoRA Without Regret", as the TRL documentation reports it (prefer fewer than 32).
""",
)
def batch_large(context: AuditContext) -> Iterator[Observation]:
    run, plan = _run_and_plan(context)
    batch = plan.effective_batch
    if (
        not plan.lora
        or not plan.supervised
        or batch is None
        or batch <= context.threshold("config.batch_large.info")
    ):
        return
    share = batch / plan.rows if plan.rows else None
    wide = share is not None and share > context.threshold("config.batch_large.row_share")
    severe = batch > context.threshold("config.batch_large.warning") or wide
    name, new = _batch_change(plan, LARGEST_GOOD_BATCH)
    part = f", {percent(share)} of the rows" if share is not None else ""
    yield Observation(
        title=f"{batch} rows a step{part}, much for LoRA",
        severity=Severity.WARNING if severe else Severity.INFO,
        values={"effective_batch": batch, "rows": plan.rows, "share": share},
        assumes=None if plan.devices else "one device",
        fix=change(
            run.settings, name, new, trainer=run.profile.trainer, note=f"{LARGEST_GOOD_BATCH} rows a step"
        ),
    )


@check(
    "config.best_model_not_kept",
    title="The best step is evaluated but not saved",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    explain="""
The run evaluates on the way, so that one can go back to the best step, but saves at other steps, so that
there is nothing to go back to.

**Reported** when checkpoints are written at steps that are no multiple of the evaluation's, or at the end of
epochs while evaluating every few steps, or not at all. Info for a single epoch. Once a run is over,
`run.best_not_saved` looks at what really happened and this check is silent.

**Fix.** The saving schedule that matches the evaluation's, and `load_best_model_at_end true`.
""",
)
def best_model_not_kept(context: AuditContext) -> Iterator[Observation]:
    run, plan = _run_and_plan(context)
    settings = run.settings
    if run.logs is not None and run.logs.evals:
        raise NotApplicableError("the log shows what was evaluated (run.best_not_saved)")
    evaluation, saving = settings.text("eval_strategy"), settings.text("save_strategy")
    if evaluation not in ("steps", "epoch") or saving is None or saving == "best":
        return
    if settings.flag("load_best_model_at_end"):
        return  # transformers itself refuses schedules that do not match
    eval_steps, save_steps = settings.number("eval_steps"), settings.number("save_steps")
    if saving == evaluation == "epoch":
        return
    if saving == evaluation == "steps" and eval_steps and save_steps and eval_steps % save_steps == 0:
        return
    both_by_steps = saving == evaluation == "steps"
    name, new = ("save_steps", eval_steps) if both_by_steps else ("save_strategy", evaluation)
    once = plan.epochs is not None and plan.epochs <= 1
    yield Observation(
        title=(
            f"Evaluated by {evaluation} ({shown_value('eval_steps', eval_steps)}), saved by {saving} "
            f"({shown_value('save_steps', save_steps)}): the best step is not kept"
        ),
        severity=Severity.INFO if once else Severity.WARNING,
        values={
            "eval_strategy": evaluation, "eval_steps": eval_steps, "save_strategy": saving,
            "save_steps": save_steps,
        },
        fix=change(settings, name, new, trainer=run.profile.trainer),
    )  # fmt: skip


@check(
    "config.seed_missing",
    title="No seed",
    severity=Severity.INFO,
    needs=(Need.SETTINGS,),
    explain="""
The run states a null seed, so that the order of the rows and the start of the adapter cannot be repeated,
and two runs cannot be compared. (A trainer's own default, such as 42 in transformers, is a seed.)

**Fix.** Any number.
""",
)
def seed_missing(context: AuditContext) -> Iterator[Observation]:
    run, _ = _run_and_plan(context)
    setting = run.settings.setting("seed")
    if setting is None or setting.value is not None:
        return
    yield Observation(
        title="The seed is null, so the run cannot be repeated",
        values={"seed": None},
        fix=change(run.settings, "seed", 42, trainer=run.profile.trainer),
    )


@check(
    "config.no_shuffle",
    title="Rows are not shuffled",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    explain="""
Rows are trained in the order of the file. When the file is sorted by source or topic, the last topic is what
the model remembers best.

**Severity.** Warning where a file states it (`shuffle: false`, `train_sampling_strategy: sequential`,
`disable_shuffling: true`); info for streaming data, which a trainer cannot shuffle.

**Fix.** Shuffle, or shuffle the file once. `data.sorted_by_group` says whether the order matters here.
""",
)
def no_shuffle(context: AuditContext) -> Iterator[Observation]:
    run, _ = _run_and_plan(context)
    if run.profile.shuffles:
        return
    settings = run.settings
    changes: tuple[tuple[str, object, object], ...] = (
        ("shuffle", False, True),
        ("train_sampling_strategy", "sequential", "random"),
        ("disable_shuffling", True, False),
    )
    for name, now, new in changes:
        if settings.get(name) == now:
            yield Observation(
                title=f"{key_of(settings, name)} {shown_value(name, now)}: rows are trained in file order",
                values={name: now},
                fix=change(settings, name, new, trainer=run.profile.trainer),
            )
            return
    yield Observation(
        title="Rows are trained in file order (streaming or a curriculum)",
        severity=Severity.INFO,
        values={"streaming": settings.get("streaming")},
    )
