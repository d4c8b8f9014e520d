"""The learning rate and what goes with it: warm-up, weight decay, gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.change import change
from gradian.audit.curve import Curve
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.training_plan import (
    TrainingPlan,
    adam_like,
    learning_rate_travel,
    lora_scale,
    rate_text,
    training_plan,
)
from gradian.audit.wording import percent

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run

LORA_RATES = (1e-4, 3e-4)  # the range that published LoRA recipes use; a proposed rate stays inside


def _supervised_rate(context: AuditContext) -> tuple[Run, TrainingPlan, float]:
    """The run, its plan and its peak rate, where the rules for supervised tuning with Adam hold."""
    run = context.run
    assert run is not None
    plan = training_plan(context)
    if not plan.supervised:
        raise NotApplicableError("a preference or reinforcement method")
    if not adam_like(run.settings):
        raise NotApplicableError("an optimiser whose rate is not on Adam's scale")
    if plan.learning_rate is None:
        raise NotApplicableError("no learning rate is stated")
    return run, plan, plan.learning_rate


@check(
    "config.lr_full_finetune",
    title="A full fine-tuning learning rate with LoRA",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    thresholds={"warning_rate": 2e-5, "info_rate": 5e-5, "long_run_travel": 0.02},
    explain="""
LoRA needs a learning rate about ten times that of full fine-tuning. `2e-5` is the default of TRL's
`SFTConfig`, made for full fine-tuning; with an adapter it leaves the model nearly as it was. Adam moves an
entry by at most about the learning rate a step, so the sum of the rates over the run bounds how far B can
get from zero. That sum is in the evidence.

**Severity.** Warning up to `warning_rate`, info below `info_rate`, and info when the run is so long that the
sum of its rates passes `long_run_travel`.

**Fix.** Ten times the rate, fifteen times for runs of fewer than 100 steps, kept within 1e-4 and 3e-4.

**Not reported** for preference and reinforcement methods (their rates are low on purpose), for an adapter
that is trained on, for LoRA+ where B's own rate is high enough, and for a scale alpha/r of 8 or more, which
does the same as a higher rate.

Sources: TRL documentation `sft_trainer` and `lora_without_regret` (ten times; fifteen for short runs),
axolotl documentation (LoRA 1e-4 to 3e-4), ARahim3/mlx-tune#15.
""",
)
def lr_full_finetune(context: AuditContext) -> Iterator[Observation]:
    run, plan, rate = _supervised_rate(context)
    if not plan.lora:
        raise NotApplicableError("no adapter is trained")
    if plan.continued:
        raise NotApplicableError("an existing adapter is trained on")
    rate_of_b = rate * (run.settings.number("loraplus_lr_ratio") or 1.0)
    scale = lora_scale(run.settings)
    if rate <= 0 or rate_of_b >= context.threshold("config.lr_full_finetune.info_rate"):
        return
    if scale is not None and scale >= 8:
        return
    travel = learning_rate_travel(run)
    long_run = travel is not None and travel >= context.threshold("config.lr_full_finetune.long_run_travel")
    low = rate_of_b <= context.threshold("config.lr_full_finetune.warning_rate")
    steps = plan.steps_done or plan.steps
    factor = 15 if steps is not None and steps < 100 else 10
    rank = run.settings.integer("lora_r")
    largest = _largest_b(run)
    over = f" over {steps:,} optimizer steps" if steps else ""
    message = [f"LoRA (r={rank}) is trained with a peak rate of {rate_text(rate)}{over}."]
    if travel is not None:
        message.append(
            f"The rates of all steps add up to {travel:.2g}, about the farthest that Adam moves an entry of B."
        )
    yield Observation(
        title=f"learning_rate {rate_text(rate)} is a full fine-tuning rate, but a LoRA adapter is trained",
        severity=Severity.WARNING if low and not long_run else Severity.INFO,
        message=" ".join(message),
        values={
            "learning_rate": rate, "lora_r": rank, "lora_alpha": run.settings.number("lora_alpha"),
            "scale": scale, "steps": steps, "sum_of_rates": travel, "max_abs_lora_b": largest,
        },
        fix=change(
            run.settings, "learning_rate", proposed_rate(rate, factor), trainer=run.profile.trainer, old=rate
        ),
    )  # fmt: skip


def _largest_b(run: Run) -> float | None:
    """The largest entry of any B; None without readable weights."""
    scans = run.adapter.b_scans.values() if run.adapter is not None else ()
    return max((scan.max_abs for scan in scans), default=None)


def proposed_rate(rate: float, factor: float) -> float:
    """`factor` times the rate, to one significant digit, within the range of published LoRA recipes."""
    lowest, highest = LORA_RATES
    target = min(max(rate * factor, lowest), highest)
    exponent = math.floor(math.log10(target) + 1e-9)
    return float(f"{round(target / 10**exponent)}e{exponent}")


@check(
    "config.lr_too_high",
    title="Learning rate too high",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    thresholds={"lora_warning": 1e-3, "lora_error": 5e-3, "full_warning": 1e-4, "full_error": 1e-3},
    explain="""
Far above the rates at which people train, updates overshoot: the loss jumps or stays up, and what the base
model knew is overwritten.

**Severity.** With LoRA a warning above `lora_warning`, an error above `lora_error`; for full fine-tuning
`full_warning` and `full_error`. Info when the log is calm all the same: the loss fell and no gradient norm
spiked. Rates of 2e-4 (QLoRA) and 3e-4 (torchtune) are ordinary and are not reported.

**Fix.** 2e-4 for LoRA, 1e-5 for full fine-tuning.

Sources: QLoRA (arXiv 2305.14314, appendix B), torchtune recipes, TRL documentation `lora_without_regret`.
""",
)
def lr_too_high(context: AuditContext) -> Iterator[Observation]:
    run, plan, rate = _supervised_rate(context)
    full = not plan.lora and (
        bool(run.full_weights) or (run.settings.text("finetuning_type") or "").lower() == "full"
    )
    if not plan.lora and not full:
        raise NotApplicableError("neither an adapter nor full fine-tuning is known")
    kind, target = ("lora", 2e-4) if plan.lora else ("full", 1e-5)
    warning = context.threshold(f"config.lr_too_high.{kind}_warning")
    error = context.threshold(f"config.lr_too_high.{kind}_error")
    if rate <= warning:
        return
    calm = _is_calm(run)
    severity = Severity.INFO if calm else Severity.ERROR if rate > error else Severity.WARNING
    method = "LoRA" if plan.lora else "full fine-tuning"
    yield Observation(
        title=f"learning_rate {rate_text(rate)} is above {rate_text(warning)}, high for {method}",
        severity=severity,
        message="The loss fell and no gradient norm spiked, so it may have done no harm." if calm else "",
        values={"learning_rate": rate, "threshold": warning, "error_threshold": error, "calm_log": calm},
        fix=change(run.settings, "learning_rate", target, trainer=run.profile.trainer, old=rate),
    )


def _is_calm(run: Run) -> bool:
    if run.logs is None:
        return False
    steps, losses = run.logs.series("loss")
    curve, norms = Curve.of((steps, losses)), Curve.of(run.logs.series("grad_norm"))
    if len(curve) < 10 or len(curve) < len(losses) or curve.change >= -0.03:
        return False
    return len(norms) > 0 and len(norms.spikes(ratio=10, z=8)) == 0


@check(
    "config.warmup_exceeds_run",
    title="The run ends before the warm-up",
    severity=Severity.ERROR,
    needs=(Need.SETTINGS,),
    thresholds={"warning_share": 0.3},
    explain="""
During warm-up the learning rate climbs from zero. When the warm-up is as long as the run, the configured
rate is never reached and the run trains with a fraction of it; a fixed `warmup_steps: 500` copied from a
long run does that to a short one.

**Severity.** Error when the warm-up takes all the steps, or when the largest rate that was logged stays below
half of the configured one and was still rising at the end; warning when it takes more than `warning_share` of
the steps. transformers 5 reads a `warmup_steps` below 1 as a share of the steps, as `warmup_ratio` is, and so
does this check.

**Fix.** 5 % of the steps.

Sources: Morizeyao/GPT2-Chinese#60; transformers `TrainingArguments.get_warmup_steps`.
""",
)
def warmup_exceeds_run(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    plan = training_plan(context)
    scheduler = run.settings.text("lr_scheduler_type") or ""
    if scheduler == "constant":
        raise NotApplicableError("a constant learning rate has no warm-up")
    warmup, steps = plan.warmup_steps, plan.steps
    if steps is None or warmup is None or warmup <= 0:
        return
    reached = _peak_share(run)
    share = warmup / steps
    if share >= 1 or (reached is not None and reached < 0.5 and _still_rising(run)):
        severity = Severity.ERROR
    elif share > context.threshold("config.warmup_exceeds_run.warning_share") and warmup >= 10:
        severity = Severity.WARNING
    else:
        return
    peak = "" if reached is None else f" The largest logged rate is {percent(reached)} of the configured one."
    name = "warmup_steps" if run.settings.number("warmup_steps") else "warmup_ratio"
    new: float = max(1, math.ceil(0.05 * steps)) if name == "warmup_steps" else 0.05
    yield Observation(
        title=f"Warm-up takes {warmup:,} of {steps:,} optimizer steps",
        severity=severity,
        message=f"The learning rate is still climbing for {percent(min(1.0, share))} of the run.{peak}",
        values={"warmup_steps": warmup, "steps": steps, "share": share, "peak_reached": reached},
        fix=change(run.settings, name, new, trainer=run.profile.trainer),
    )


def _peak_share(run: Run) -> float | None:
    """The largest logged rate over the configured one."""
    configured = run.settings.number("learning_rate")
    if not configured or run.logs is None:
        return None
    rates = Curve.of(run.logs.series("learning_rate")).values
    return float(rates.max() / configured) if len(rates) else None


def _still_rising(run: Run) -> bool:
    rates = Curve.of(run.logs.series("learning_rate")).values if run.logs is not None else np.array([])
    return len(rates) >= 3 and bool(rates.argmax() == len(rates) - 1) and bool(rates[-1] > rates[0])


@check(
    "config.no_warmup",
    title="No warm-up at a high learning rate",
    severity=Severity.INFO,
    needs=(Need.SETTINGS,),
    thresholds={"rate": 5e-4, "early_rise": 1.3},
    explain="""
Adam's first steps rest on few gradients, and at a high rate they can throw the loss up. The harm usually
heals
within a few steps, so this is context and never a fault by itself: constant rates without warm-up are a sound
choice at ordinary rates.

**Reported** when there is no warm-up and the loss rose by `early_rise` within the first tenth of the log, or,
without a log, when the rate is at or above `rate`.

**Fix.** 5 % of the steps.

Source: TRL documentation `lora_without_regret` (constant rates work).
""",
)
def no_warmup(context: AuditContext) -> Iterator[Observation]:
    run, plan, rate = _supervised_rate(context)
    if plan.warmup_steps != 0:
        return
    curve = Curve.of(run.logs.series("loss")) if run.logs is not None else None
    if curve is not None and len(curve) >= 10:
        early = curve.values[: max(3, len(curve) // 10)]
        rose = bool(early.max() > context.threshold("config.no_warmup.early_rise") * early[0])
    else:
        rose = rate >= context.threshold("config.no_warmup.rate")
    if not rose:
        return
    steps = plan.steps or 100
    yield Observation(
        title=f"No warm-up at learning_rate {rate_text(rate)}",
        message="The loss rose right after the start." if curve is not None and len(curve) >= 10 else "",
        values={"learning_rate": rate, "steps": plan.steps},
        fix=change(
            run.settings, "warmup_steps", max(1, math.ceil(0.05 * steps)), trainer=run.profile.trainer, old=0
        ),
    )


@check(
    "config.weight_decay_high",
    title="Strong weight decay",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    thresholds={"limit": 0.1},
    explain="""
Weight decay pulls the adapter's matrices towards zero, and an adapter at zero is the base model. Above about
0.1 it can outweigh the gradient.

**Fix.** 0.01, or 0.

Source: axolotl documentation (values above 0.1 can suppress LoRA learning).
""",
)
def weight_decay_high(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    decay = run.settings.number("weight_decay")
    limit = context.threshold("config.weight_decay_high.limit")
    if decay is None or decay <= limit or not training_plan(context).lora:
        return
    yield Observation(
        title=f"weight_decay {decay:g} pulls the adapter towards zero",
        values={"weight_decay": decay, "limit": limit},
        fix=change(run.settings, "weight_decay", 0.01, trainer=run.profile.trainer),
    )


@check(
    "config.grad_clip_off",
    title="Gradient clipping is off",
    severity=Severity.INFO,
    needs=(Need.SETTINGS,),
    thresholds={"limit": 10.0},
    explain="""
Clipping bounds what one bad batch can do. Without it (`max_grad_norm` 0 or null, or above `limit`) a single
row that is cut, garbled or extreme moves the adapter as far as its gradient says.

**Severity.** Info; warning when the log shows gradient norms that spiked to ten times their neighbourhood.

**Fix.** 1.0, the default of transformers.
""",
)
def grad_clip_off(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    setting = run.settings.setting("max_grad_norm")
    if setting is None or not training_plan(context).supervised:
        return
    limit = run.settings.number("max_grad_norm")
    if limit is not None and 0 < limit <= context.threshold("config.grad_clip_off.limit"):
        return
    norms = Curve.of(run.logs.series("grad_norm")) if run.logs is not None else None
    spikes = 0 if norms is None else len(norms.spikes(ratio=10, z=8))
    shown = "off" if not limit else f"{limit:g}"
    fix: Fix = change(run.settings, "max_grad_norm", 1.0, trainer=run.profile.trainer)
    yield Observation(
        title=f"Gradient clipping is {shown if shown == 'off' else 'as good as off, at ' + shown}",
        severity=Severity.WARNING if spikes else Severity.INFO,
        message=f"{spikes} gradient norms spiked to ten times their neighbourhood." if spikes else "",
        values={"max_grad_norm": limit, "spikes": spikes},
        fix=fix,
    )
