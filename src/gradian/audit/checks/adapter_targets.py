"""The modules that were to be adapted against those that were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gradian.audit.change import change
from gradian.audit.checks.adapter_names import UNREACHED_BY_TEXT, lora_adapter, strings
from gradian.audit.checks.adapter_weights import LAYER
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, Observation, check
from gradian.run.adapter import LORA_KEY, WEIGHTS_NAME, AdapterFile, inside

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run

MOE_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
MLP_TARGETS = frozenset({"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "gate_up_proj"})
#: The fused expert parameters of transformers 5.
EXPERT_PARAMETERS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


@check(
    "adapter.targets_unmatched",
    title="Target modules that were not adapted",
    severity=Severity.WARNING,
    needs=(Need.ADAPTER,),
    explain="""
The config lists modules for which the weights hold nothing: the base model has no module of that name, so
nothing was trained there, and PEFT is silent as long as one of the listed names matches. In
mixture-of-experts models since transformers 5
the experts are one fused parameter: `gate_proj`, `up_proj` and `down_proj` match nothing, and the experts,
most of the model, stay as they were.

Layers without any adapter, while others have one, are reported too, unless `layers_to_transform` says so.

**Fix.** For experts, `target_parameters`; else names that the model has, or `all-linear`.

Sources: huggingface/peft#3009, unslothai/unsloth#6936 and #11014.
""",
)
def targets_unmatched(context: AuditContext) -> Iterator[Observation]:
    run, adapter = lora_adapter(context)
    config = context.base_config or {}
    targets = adapter.config.get("target_modules")
    modules = {match["module"] for tensor in adapter.tensors if (match := LORA_KEY.match(tensor.name))}
    layers = config.get("num_hidden_layers")
    unmatched = [
        name
        for name in sorted(strings(targets) if isinstance(targets, list) else ())
        if name != "all-linear" and not any(f".{module}".endswith(f".{name}") for module in modules)
    ]
    if unmatched:
        yield _unmatched(run, adapter, unmatched, config)
    holes = _layer_holes(modules, layers if isinstance(layers, int) else None)
    if (
        holes
        and adapter.config.get("layers_to_transform") is None
        and not adapter.config.get("exclude_modules")
    ):
        yield Observation(
            title=f"Layers {', '.join(map(str, holes[:8]))}{', ...' if len(holes) > 8 else ''} have no adapter",
            count=len(holes),
            of=layers if isinstance(layers, int) else None,
            values={"layers": holes, "num_hidden_layers": layers},
            locations=(inside(adapter.name, WEIGHTS_NAME),),
            fix=Fix(
                text="check layers_to_transform and that the whole model was saved (pipeline parallelism)"
            ),
        )


def _unmatched(
    run: Run, adapter: AdapterFile, unmatched: list[str], config: Mapping[str, Any]
) -> Observation:
    experts = next(
        (config[key] for key in MOE_KEYS if isinstance(config.get(key), int) and config[key] > 1), None
    )
    mixture = experts is not None and bool(MLP_TARGETS & {name.rsplit(".", 1)[-1] for name in unmatched})
    layers = config.get("num_hidden_layers")
    places = f" (0 of {layers} layers)" if isinstance(layers, int) else ""
    fix: Fix = (
        change(run.settings, "target_parameters", EXPERT_PARAMETERS)
        if mixture
        else change(run.settings, "target_modules", "all-linear")
    )
    if mixture:
        fix = fix.model_copy(update={"text": f"target_parameters: [{', '.join(EXPERT_PARAMETERS)}]"})
    message = (
        f"The base model is {config.get('model_type')} with {experts} experts, which are one fused parameter that "
        "target_modules does not reach."
        if mixture
        else "The base model has no module of these names."
    )
    return Observation(
        title=f"target_modules {', '.join(unmatched)} have no tensors in the adapter{places}",
        message=message,
        count=len(unmatched),
        of=len(strings(adapter.config.get("target_modules"))),
        values={
            "unmatched": unmatched,
            "model_type": config.get("model_type"),
            "experts": experts,
            "layers": layers,
        },
        locations=(inside(adapter.name, "adapter_config.json"),),
        fix=fix,
    )


def _layer_holes(modules: set[str], layers: int | None) -> list[int]:
    """Layers without any adapted module, among those of the text model."""
    text = [module for module in modules if not UNREACHED_BY_TEXT.search(module)]
    found = {int(match[1]) for module in text if (match := LAYER.search(f".{module}."))}
    if not found:
        return []
    return sorted(set(range(layers if layers is not None else max(found) + 1)) - found)
