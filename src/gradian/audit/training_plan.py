"""The schedule of a run in numbers: learning rate, batch, steps, epochs, as its files and its rows state
them.

Numbers that no file states stay None; the only thing taken for granted is one device where none is counted.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run
    from gradian.run.settings import RunSettings

#: Argument classes and stages of methods whose learning rates and losses follow other rules.
PREFERENCE_OR_RL = re.compile(
    r"(dpo|kto|orpo|cpo|grpo|ppo|rloo|xpo|reward|prm|bco|online|gkd)", re.IGNORECASE
)
#: Optimisers whose learning rate is not on Adam's scale.
OTHER_SCALE = re.compile(
    r"(sgd|adafactor|prodigy|dadapt|d_adapt|schedule_free|lion|muon|adagrad|lomo)", re.IGNORECASE
)
#: num_train_epochs where no file states it. Sources: transformers TrainingArguments, axolotl's schema.
DEFAULT_EPOCHS = {"trl": 3.0, "unsloth": 3.0, "transformers": 3.0, "llama_factory": 3.0, "axolotl": 1.0}


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What a run was to do, and did.

    Attributes:
        learning_rate: the peak that was configured; without one, the largest that was logged.
        batch: rows per device and forward pass. accumulation: forward passes per optimizer step.
        devices: as some file states it, else None.
        rows: rows that reach the model each epoch; None without rows, with packing or when streaming.
        epochs: epochs asked for. max_steps: the step limit asked for, None without one.
        steps: optimizer steps planned. steps_done: those carried out.
        epochs_done: epochs carried out.
        warmup_steps: steps until the learning rate reaches its peak.
        lora: an adapter is trained, and nothing says that the whole model is.
        supervised: supervised fine-tuning (no preference or reinforcement method).
        continued: an existing adapter is trained on.
    """

    learning_rate: float | None
    batch: int | None
    accumulation: int
    devices: int | None
    rows: int | None
    epochs: float | None
    max_steps: int | None
    steps: int | None
    steps_done: int | None
    epochs_done: float | None
    warmup_steps: int | None
    lora: bool
    supervised: bool
    continued: bool

    @property
    def effective_batch(self) -> int | None:
        """Rows per optimizer step, on one device where no file counts them; None when no file states a
        batch.
        """
        return None if self.batch is None else self.batch * self.accumulation * (self.devices or 1)

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in an epoch; a last step with fewer passes counts (transformers >= 4.46)."""
        if self.rows is None or not self.effective_batch:
            return None
        return max(1, math.ceil(self.rows / self.effective_batch))

    def steps_for(self, epochs: float) -> int | None:
        """Optimizer steps that so many epochs take."""
        return None if self.steps_per_epoch is None else math.ceil(self.steps_per_epoch * epochs)


def training_plan(context: AuditContext) -> TrainingPlan:
    """The plan of the run. Needs a run folder."""
    run = context.run
    assert run is not None, "a training plan is read from a run"
    settings, logs = run.settings, run.logs
    batch = settings.integer("per_device_train_batch_size") or (logs.train_batch_size if logs else None)
    accumulation = settings.integer("gradient_accumulation_steps") or 1
    rows = None if run.profile.packing or settings.flag("streaming") else rows_reaching_the_model(context)
    max_steps = settings.integer("max_steps")
    max_steps = max_steps if max_steps is not None and max_steps > 0 else None
    epochs = settings.number("num_train_epochs")
    if epochs is None and max_steps is None:
        epochs = logs.num_train_epochs if logs else None
    if epochs is None:
        epochs = DEFAULT_EPOCHS.get(run.profile.trainer)
    plan = TrainingPlan(
        learning_rate=_learning_rate(run),
        batch=batch,
        accumulation=accumulation,
        devices=_devices(settings, batch, accumulation),
        rows=rows,
        epochs=epochs,
        max_steps=max_steps,
        steps=None,
        steps_done=logs.global_step if logs else None,
        epochs_done=logs.epoch if logs else None,
        warmup_steps=None,
        lora=trains_adapter(run),
        supervised=is_supervised(run),
        continued=bool(settings.text("init_adapter")),
    )
    planned = logs.max_steps if logs else None
    steps = planned or max_steps or (plan.steps_for(epochs) if epochs else None)
    return replace(plan, steps=steps, warmup_steps=_warmup_steps(settings, steps))


def rows_reaching_the_model(context: AuditContext) -> int | None:
    """Training rows that are read and not left out by the trainer; None without a data set."""
    facts = context.dataset
    if facts is None:
        return None
    kept = facts.readable.copy()
    if facts.tokens is not None:
        kept &= facts.tokens.dropped == 0
    return int(kept.sum())


def trains_adapter(run: Run) -> bool:
    """True when the run trains a LoRA adapter."""
    settings = run.settings
    method = settings.text("finetuning_type")
    if method is not None and method.lower() != "lora":
        return False
    if run.adapter is not None:
        return str(run.adapter.config.get("peft_type", "LORA")).upper() == "LORA"
    named = (settings.text("peft_type") or "").lower()
    return (
        named in ("lora", "qlora")
        or settings.integer("lora_r") is not None
        or settings.flag("use_peft") is True
    )


def is_supervised(run: Run) -> bool:
    """False for preference and reinforcement methods, whose rates and losses follow other rules."""
    if run.logs is not None and run.logs.kind != "sft":
        return False
    class_name = run.args_class.rsplit(".", 1)[-1]
    stage = run.settings.text("stage") or run.settings.text("rl") or ""
    return not PREFERENCE_OR_RL.search(class_name) and not PREFERENCE_OR_RL.search(stage) and stage != "rm"


def adam_like(settings: RunSettings) -> bool:
    """True when the optimiser's learning rate is on Adam's scale."""
    return not OTHER_SCALE.search(str(settings.get("optim") or ""))


def lora_scale(settings: RunSettings) -> float | None:
    """alpha / r, or alpha / sqrt(r) with rank-stabilised LoRA (arXiv 2312.03732); None when not stated."""
    r, alpha = settings.number("lora_r"), settings.number("lora_alpha")
    if not r or alpha is None or r < 0:
        return None
    return alpha / (math.sqrt(r) if settings.flag("use_rslora") else r)


def learning_rate_travel(run: Run) -> float | None:
    """The sum of the learning rate over all steps: about the farthest that Adam can move any one entry.

    The logged rates are taken for all the steps up to theirs. None without logged rates.
    """
    if run.logs is None:
        return None
    steps, rates = run.logs.series("learning_rate")
    finite = np.isfinite(rates)
    steps, rates = steps[finite], rates[finite]
    if len(rates) == 0:
        return None
    widths = np.diff(steps, prepend=0).clip(min=1)
    return float(np.dot(rates, widths))


def _learning_rate(run: Run) -> float | None:
    configured = run.settings.number("learning_rate")
    if configured is not None or run.logs is None:
        return configured
    _, rates = run.logs.series("learning_rate")
    rates = rates[np.isfinite(rates)]
    return float(rates.max()) if len(rates) else None


def _devices(settings: RunSettings, batch: int | None, accumulation: int) -> int | None:
    """From a model card's device count, or its total batch size, or the pickled state of accelerate."""
    stated = settings.integer("num_devices")
    total = settings.integer("total_train_batch_size")
    if stated is None and total and batch and total % (batch * accumulation) == 0:
        stated = total // (batch * accumulation)
    state = settings.get("distributed_state")
    if stated is None and isinstance(state, dict) and isinstance(state.get("num_processes"), int):
        stated = state["num_processes"]
    return stated if stated and stated > 0 else None


def _warmup_steps(settings: RunSettings, steps: int | None) -> int | None:
    """Warm-up in steps. transformers >= 5 reads a `warmup_steps` below 1 as a share, as `warmup_ratio` is."""
    stated, ratio = settings.number("warmup_steps"), settings.number("warmup_ratio")
    if stated is not None and stated >= 1:
        return int(stated)
    if stated is not None and stated < 0:
        return None  # transformers refuses it
    share = stated if stated else ratio
    if share and 0 < share < 1:
        return None if steps is None else math.ceil(share * steps)
    return None if stated is None and ratio is None else 0


def rate_text(rate: float) -> str:
    """A learning rate as people write it: `2e-04`, `1.5e-05`."""
    if rate == 0 or not math.isfinite(rate):
        return f"{rate:g}"
    exponent = math.floor(math.log10(abs(rate)) + 1e-9)
    mantissa = round(rate / 10**exponent, 2)
    return f"{mantissa:g}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
