"""The values in the adapter file: there at all, trained, finite, of a sane size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.curve import Curve
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.training_plan import lora_scale
from gradian.audit.wording import listed, plural
from gradian.run.adapter import WEIGHTS_NAME, AdapterFile, inside

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run

LAYER = re.compile(r"\.(?:layers|h|blocks|layer)\.(\d+)\.")
#: Parts of a model that text alone never reaches.
UNREACHED = re.compile(r"(vision|visual|image|audio|mm_projector|multi_modal)", re.IGNORECASE)
EXPERT = re.compile(r"\.experts\.\d+\.")


def _adapter(context: AuditContext) -> tuple[Run, AdapterFile]:
    run = context.run
    assert run is not None
    assert run.adapter is not None
    return run, run.adapter


def is_peft(adapter: AdapterFile) -> bool:
    """False when the config is another library's under the same name (MLX, adapters): PEFT's has a type."""
    return not adapter.has_config or "peft_type" in adapter.config


@check(
    "adapter.missing",
    title="No adapter weights",
    severity=Severity.ERROR,
    needs=(Need.ADAPTER,),
    explain="""
The folder has an `adapter_config.json` and no weights beside it, so there is nothing to load: saving failed,
or only the configuration was copied.

**Severity.** Error. Info when the weights are there as a pickle (`adapter_model.bin`): a pickle can run code
when it is opened, so Gradian does not open it, and the checks on weights are left out.

**Fix.** Copy `adapter_model.safetensors` too, or save again with `safe_serialization=True`.
""",
)
def missing(context: AuditContext) -> Iterator[Observation]:
    _, adapter = _adapter(context)
    if adapter.weights is not None or adapter.damage is not None:
        return
    if not is_peft(adapter):
        raise NotApplicableError("not PEFT's kind of adapter_config.json")
    if adapter.pickle is not None:
        yield Observation(
            title=f"{inside(adapter.name, adapter.pickle)} is a pickle and was not read",
            severity=Severity.INFO,
            values={"bytes": adapter.weights_bytes},
            locations=(inside(adapter.name, adapter.pickle),),
            fix=Fix(text="save the adapter again with safe_serialization=True"),
        )
        return
    yield Observation(
        title=f"{inside(adapter.name, 'adapter_config.json')} has no weights beside it",
        locations=(inside(adapter.name, "adapter_config.json"),),
        fix=Fix(text=f"copy {inside(adapter.name, WEIGHTS_NAME)} from where it was trained"),
    )


@check(
    "adapter.unreadable",
    title="The adapter file is damaged",
    severity=Severity.ERROR,
    needs=(Need.ADAPTER,),
    explain="""
The weights file is no sound safetensors file: cut short by a full disk or a broken download, a Git LFS
pointer instead of the file, or another format under that name.

**Fix.** Copy it again; for a pointer, `git lfs pull`.
""",
)
def unreadable(context: AuditContext) -> Iterator[Observation]:
    _, adapter = _adapter(context)
    if adapter.damage is None:
        return
    name = inside(adapter.name, WEIGHTS_NAME)
    pointer = "LFS" in adapter.damage
    yield Observation(
        title=f"{name} {adapter.damage}",
        values={"bytes": adapter.weights_bytes},
        locations=(name,),
        fix=Fix(text="git lfs pull" if pointer else f"copy {name} again from where it was trained"),
    )


@check(
    "adapter.no_tensors",
    title="The adapter file holds no tensors",
    severity=Severity.ERROR,
    needs=(Need.ADAPTER,),
    explain="""
The file is there and holds nothing: the state dict was collected from the wrong wrapper and no name matched,
or ZeRO-3 saved the empty shards of one process. Loading it gives the base model.

**Fix.** `trainer.save_model()` or `model.save_pretrained()` on the PEFT model; with ZeRO-3,
`stage3_gather_16bit_weights_on_model_save: true`.

Sources: huggingface/transformers#24551, tloen/alpaca-lora#334, hiyouga/LLaMA-Factory#852.
""",
)
def no_tensors(context: AuditContext) -> Iterator[Observation]:
    run, adapter = _adapter(context)
    if adapter.weights is None:
        return
    empty = [tensor for tensor in adapter.tensors if tensor.size == 0]
    if adapter.tensors and len(empty) < len(adapter.tensors):
        return
    targets = run.settings.strings("target_modules")
    expected = f"; adapter_config.json expects {plural(len(targets), 'target module')}" if targets else ""
    held = f"{len(empty)} tensors without elements" if empty else "0 tensors"
    yield Observation(
        title=f"{inside(adapter.name, WEIGHTS_NAME)} holds {held} ({adapter.weights_bytes:,} bytes){expected}",
        count=len(adapter.tensors),
        values={"tensors": len(adapter.tensors), "empty": len(empty), "bytes": adapter.weights_bytes,
                "target_modules": list(targets or ())},
        locations=(inside(adapter.name, WEIGHTS_NAME),),
        fix=Fix(
            text="stage3_gather_16bit_weights_on_model_save: true, then save again"
            if empty
            else "save the PEFT model itself: trainer.save_model() or model.save_pretrained()"
        ),
    )  # fmt: skip


@check(
    "adapter.zero_b",
    title="LoRA B matrices are zero",
    severity=Severity.ERROR,
    needs=(Need.ADAPTER,),
    explain="""
PEFT starts B at zero, so that the adapter starts as no change. An adapter whose every B is exactly zero is
still that: loading it gives the base model. Training never reached it (the optimiser was not wired to it,
everything was masked), or it was saved before training, or from a copy.

**Severity.** Error when all are zero. Warning when some are (a layer that gets no gradient: wrong
`layers_to_transform`, a layer that is not used); info when those are experts of a mixture that never got a
token, or parts for images or sound in a text run.

**Fix.** Depends on the cause. When the log shows that the loss fell, training worked and saving did not.

Sources: huggingface/peft#1402, tloen/alpaca-lora#357; PEFT `LoraLayer.reset_lora_parameters`.
""",
)
def zero_b(context: AuditContext) -> Iterator[Observation]:
    run, adapter = _adapter(context)
    scans = adapter.b_scans
    zero = sorted(name for name, scan in scans.items() if scan.zero)
    if not zero:
        return
    location = (inside(adapter.name, WEIGHTS_NAME),)
    if len(zero) == len(scans):
        learnt = _loss_fell(run)
        yield Observation(
            title=f"{len(zero)} of {len(scans)} lora_B tensors are exactly zero: the adapter is the base model",
            message=(
                "The logged loss fell all the same, so the model was trained and something else was saved."
                if learnt
                else ""
            ),
            count=len(zero),
            of=len(scans),
            values={"zero": len(zero), "lora_b": len(scans), "loss_fell": learnt},
            locations=location,
            fix=Fix(
                text="save the trained PEFT model (trainer.save_model()), not the one it was made from"
                if learnt
                else "check that the adapter's parameters require gradients and are the optimiser's"
            ),
        )
        return
    unreached = [name for name in zero if UNREACHED.search(name) or EXPERT.search(name)]
    layers = sorted({int(match[1]) for name in zero if (match := LAYER.search(name))})
    where = (
        f" (layers {', '.join(map(str, layers[:8]))}{', ...' if len(layers) > 8 else ''})" if layers else ""
    )
    yield Observation(
        title=f"{len(zero)} of {len(scans)} lora_B tensors are exactly zero{where}",
        severity=Severity.INFO if len(unreached) == len(zero) else Severity.WARNING,
        message=f"The first: {listed(zero[:3])}.",
        count=len(zero),
        of=len(scans),
        values={"zero": len(zero), "lora_b": len(scans), "layers": layers, "tensors": zero[:20]},
        locations=location,
        fix=Fix(
            text="leave them out of target_modules or layers_to_transform, or find out why they get no gradient"
        ),
    )


def _loss_fell(run: Run) -> bool:
    if run.logs is None:
        return False
    curve = Curve.of(run.logs.series("loss"))
    return len(curve) >= 5 and curve.head > 0.05 and curve.change < -0.05


@check(
    "adapter.nan",
    title="NaN or infinity in the adapter",
    severity=Severity.ERROR,
    needs=(Need.ADAPTER,),
    explain="""
One such number makes every output NaN. safetensors does not look at values, so the file loads without a word.

**Fix.** Train again from the last sound checkpoint, in bf16 instead of fp16, with a lower rate. The finding
names sound checkpoints when there are any.
""",
)
def nan(context: AuditContext) -> Iterator[Observation]:
    run, adapter = _adapter(context)
    bad = {name: scan for name, scan in sorted(adapter.scans.items()) if scan.nan or scan.infinite}
    if not bad:
        return
    elements = sum(scan.nan + scan.infinite for scan in bad.values())
    sound = _last_sound_checkpoint(run, adapter)
    yield Observation(
        title=f"{elements:,} NaN or infinite values in {len(bad)} of {len(adapter.scans)} tensors",
        message=f"The first: {listed(list(bad)[:3])}.",
        count=len(bad),
        of=len(adapter.scans),
        values={"elements": elements, "tensors": list(bad)[:20], "sound_checkpoint": sound},
        locations=(inside(adapter.name, WEIGHTS_NAME),),
        fix=Fix(
            text=f"go on from {sound}, in bf16"
            if sound
            else "train again in bf16, with a lower learning_rate"
        ),
    )


def _last_sound_checkpoint(run: Run, final: AdapterFile) -> str | None:
    """The last checkpoint whose B matrices are finite; at most three are looked at."""
    others = [
        point for point in run.checkpoints if point.adapter is not None and point.adapter.name != final.name
    ]
    for point in reversed(others[-3:]):
        assert point.adapter is not None
        scans = point.adapter.b_scans.values()
        if scans and not any(scan.nan or scan.infinite for scan in scans):
            return point.name
    return None


@check(
    "adapter.tiny_update",
    title="The adapter hardly moved",
    severity=Severity.WARNING,
    needs=(Need.ADAPTER,),
    thresholds={"max_abs_b": 1e-5, "steps": 20},
    explain="""
B starts at zero and its largest entry is still below `max_abs_b` after at least `steps` optimizer steps: the
model answers as the base model does. The learning rate was too low, or nearly everything was masked.

**Fix.** See the finding that it follows from, if there is one; else raise the learning rate.
""",
)
def tiny_update(context: AuditContext) -> Iterator[Observation]:
    run, adapter = _adapter(context)
    scans = [scan for scan in adapter.b_scans.values() if scan.known and not scan.nan]
    steps = run.logs.global_step if run.logs is not None else None
    if not scans or steps is None or steps < context.threshold("adapter.tiny_update.steps"):
        return
    largest = max(scan.max_abs for scan in scans)
    limit = context.threshold("adapter.tiny_update.max_abs_b")
    if largest == 0 or largest >= limit:
        return
    yield Observation(
        title=f"The largest entry of any lora_B is {largest:.1e} after {steps:,} steps",
        values={"max_abs_b": largest, "threshold": limit, "steps": steps, "scale": lora_scale(run.settings)},
        locations=(inside(adapter.name, WEIGHTS_NAME),),
        fix=Fix(text="raise learning_rate (ten times)"),
    )


@check(
    "adapter.exploded",
    title="The adapter grew out of bounds",
    severity=Severity.WARNING,
    needs=(Need.ADAPTER,),
    thresholds={"max_abs_b": 10, "layer_ratio": 20},
    explain="""
An entry of B above `max_abs_b`, or a matrix whose norm is more than `layer_ratio` times the median of its
kind. Trained adapters have entries of a few hundredths. Such a matrix overrides what the base model does
there.

**Fix.** A lower learning rate, gradient clipping at 1.0, or an earlier checkpoint.
""",
)
def exploded(context: AuditContext) -> Iterator[Observation]:
    _, adapter = _adapter(context)
    scans = {name: scan for name, scan in adapter.b_scans.items() if scan.known and not scan.nan}
    if not scans:
        return
    limit = context.threshold("adapter.exploded.max_abs_b")
    ratio = context.threshold("adapter.exploded.layer_ratio")
    by_kind: dict[str, list[float]] = {}
    for name, scan in scans.items():
        by_kind.setdefault(_kind(name), []).append(scan.sum_squares**0.5)
    medians = {kind: float(np.median(norms)) for kind, norms in by_kind.items()}
    large = sorted(
        name
        for name, scan in scans.items()
        if scan.max_abs > limit
        or (len(by_kind[_kind(name)]) >= 4 and scan.sum_squares**0.5 > ratio * medians[_kind(name)] > 0)
    )
    if not large:
        return
    largest = max(scans[name].max_abs for name in large)
    yield Observation(
        title=f"{len(large)} of {len(scans)} lora_B tensors are out of bounds (largest entry {largest:.3g})",
        message=f"The first: {listed(large[:3])}.",
        count=len(large),
        of=len(scans),
        values={"tensors": large[:20], "max_abs_b": largest, "threshold": limit, "layer_ratio": ratio},
        locations=(inside(adapter.name, WEIGHTS_NAME),),
        fix=Fix(text="lower learning_rate, max_grad_norm 1.0, or use an earlier checkpoint"),
    )


def _kind(name: str) -> str:
    """A tensor's name without its layer: matrices of one kind have one shape."""
    return LAYER.sub(".", name)
