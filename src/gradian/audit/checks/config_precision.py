"""Number formats and memory tricks that change what is learnt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gradian.audit.change import change, key_of
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.training_plan import trains_adapter

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run

#: Families whose weights were published in bfloat16, for a base model whose config is not at hand.
BFLOAT16_FAMILIES = re.compile(
    r"(qwen-?[23]|qwq|gemma|llama-?3|mistral-(small|nemo|large)|ministral|phi-?[34]|deepseek|olmo|granite|smollm)",
    re.IGNORECASE,
)
ZERO_STAGE_3 = re.compile(r"(z3|zero-?_?3|stage-?_?3)", re.IGNORECASE)


@check(
    "config.precision_conflict",
    title="Two number formats at once",
    severity=Severity.ERROR,
    needs=(Need.SETTINGS,),
    explain="""
`bf16` and `fp16` are alternatives, and so are `load_in_4bit` and `load_in_8bit`. With both set, trainers
either refuse to start or silently take one of them.

**Fix.** Keep bf16 (it has the range of float32), and 4-bit loading.
""",
)
def precision_conflict(context: AuditContext) -> Iterator[Observation]:
    assert context.run is not None
    settings = context.run.settings
    for kept, dropped in (("bf16", "fp16"), ("load_in_4bit", "load_in_8bit")):
        if settings.flag(kept) and settings.flag(dropped):
            yield Observation(
                title=f"{key_of(settings, kept)} and {key_of(settings, dropped)} are both on",
                values={kept: True, dropped: True},
                fix=change(settings, dropped, False),
            )


@check(
    "config.fp16_risk",
    title="Training in float16 for a bfloat16 model",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    explain="""
The base model's weights are bfloat16, whose range is that of float32. float16 ends at 65,504: activations of
such models pass that, the loss becomes NaN, and transformers then logs it as 0.

**Severity.** Warning; info when the run is over and its log is free of NaN.

**Fix.** `fp16 -> bf16`; on a device without bfloat16, float32.

Sources: hiyouga/LLaMA-Factory#7263 and #2916.
""",
)
def fp16_risk(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    if run.settings.flag("fp16") is not True or run.settings.flag("bf16") is True:
        return
    config = context.base_config
    stated = _dtype(config) if config is not None else None
    name = context.base_model_name or ""
    by_name = stated is None and bool(BFLOAT16_FAMILIES.search(name))
    if stated != "bfloat16" and not by_name:
        return
    sound = run.logs is not None and len(run.logs.train) >= 5 and _free_of_nan(run)
    key, file = key_of(run.settings, "fp16"), run.settings.setting("fp16")
    yield Observation(
        title="float16 training of a model whose weights are bfloat16",
        severity=Severity.INFO if sound else Severity.WARNING,
        message="The log is free of NaN, so it went well this time." if sound else "",
        values={"fp16": True, "base_dtype": stated, "base_model": name},
        assumes=f"{name} is a bfloat16 model, by its name" if by_name else None,
        fix=Fix.change(
            key, True, False, text=f"{key} true -> bf16 true", file=file.file if file is not None else None
        ),
    )


def _dtype(config: Mapping[str, Any]) -> str | None:
    value = config.get("dtype", config.get("torch_dtype"))
    if value is None and isinstance(config.get("text_config"), dict):
        value = config["text_config"].get("dtype", config["text_config"].get("torch_dtype"))
    return value.removeprefix("torch.") if isinstance(value, str) else None


def _free_of_nan(run: Run) -> bool:
    assert run.logs is not None, "asked for with a log only"
    names = ("loss", "grad_norm")
    return all(bool(np.isfinite(run.logs.series(name)[1]).all()) for name in names)


@check(
    "config.gradient_checkpointing",
    title="Gradient checkpointing that ZeRO-3 breaks",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    explain="""
With DeepSpeed ZeRO-3 and PEFT, non-re-entrant gradient checkpointing recomputes with parameters that were
partitioned in between, which fails or silently gives wrong shapes. TRL forces `use_reentrant: true` in that
case.

**Fix.** `gradient_checkpointing_kwargs: {use_reentrant: true}`.
""",
)
def gradient_checkpointing(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    settings = run.settings
    kwargs = settings.get("gradient_checkpointing_kwargs")
    if not isinstance(kwargs, dict) or kwargs.get("use_reentrant") is not False:
        return
    if not settings.flag("gradient_checkpointing") or not trains_adapter(run) or not _zero_3(run):
        return
    yield Observation(
        title="use_reentrant false with DeepSpeed ZeRO-3 and an adapter",
        values={"gradient_checkpointing_kwargs": kwargs, "deepspeed": str(settings.get("deepspeed"))[:200]},
        fix=change(settings, "gradient_checkpointing_kwargs", {**kwargs, "use_reentrant": True}),
    )


def _zero_3(run: Run) -> bool:
    stated = run.settings.get("deepspeed")
    if isinstance(stated, dict):
        zero = stated.get("zero_optimization")
        return isinstance(zero, dict) and zero.get("stage") == 3
    return isinstance(stated, str) and bool(ZERO_STAGE_3.search(stated))


@check(
    "config.quantized_merge",
    title="An adapter of a quantised base was merged",
    severity=Severity.INFO,
    needs=(Need.SETTINGS,),
    explain="""
The adapter was trained on 4-bit weights and full weights lie beside it. Merging into the 4-bit weights
rounds the update away; merging into the original 16-bit weights gives a model that differs slightly from the
one trained. Evaluate the merged model by itself.

**Fix.** Load the base in 16 bits, then merge; or keep base and adapter apart.

Sources: artidoro/qlora#29, unslothai/unsloth-zoo#810.
""",
)
def quantized_merge(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    four_bit = run.settings.flag("load_in_4bit") or "bnb-4bit" in (run.base_model or "")
    if not four_bit or not run.full_weights:
        raise NotApplicableError("no merged weights of a 4-bit base")
    yield Observation(
        title="Full weights beside an adapter that was trained on a 4-bit base",
        values={"full_weights": list(run.full_weights)},
        fix=Fix(text="merge into the 16-bit base, or keep base and adapter apart"),
    )
