"""What the adapter's tensors are called and shaped, against its own config and the base model's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gradian.audit.change import change
from gradian.audit.checks.adapter_weights import LAYER
from gradian.audit.checks.config_lora import EMBEDDINGS, HEADS
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.wording import listed, plural
from gradian.run.adapter import LORA_KEY, WEIGHTS_NAME, AdapterFile, inside
from gradian.run.safetensors_header import Tensor

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run

#: Segments that a wrapper leaves in a name -> the same name without it. PEFT finds none of these when it
#: loads.
STRAY_SEGMENTS = (
    "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "inner", "default", "base_layer",
)  # fmt: skip
PREFIX = "base_model.model."
TRAINED_TOKENS = re.compile(r"(token_adapter\.)?trainable_tokens_delta$")
MOE_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
MLP_TARGETS = frozenset({"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "gate_up_proj"})
#: The fused expert parameters of transformers 5.
EXPERT_PARAMETERS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def lora_adapter(context: AuditContext) -> tuple[Run, AdapterFile]:
    """The run and its LoRA adapter with readable weights."""
    run = context.run
    assert run is not None
    assert run.adapter is not None
    if run.adapter.weights is None or not run.adapter.tensors:
        raise NotApplicableError("no readable adapter weights")
    if str(run.adapter.config.get("peft_type", "LORA")).upper() != "LORA":
        raise NotApplicableError("not a LoRA adapter")
    return run, run.adapter


def _strings(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


@check(
    "adapter.unexpected_keys",
    title="Tensor names that PEFT will not load",
    severity=Severity.ERROR,
    needs=(Need.ADAPTER,),
    explain="""
PEFT looks for `base_model.model.<module path>.lora_A.weight` and the like. A name with another prefix or
with a segment that a wrapper left behind (`_orig_mod` of torch.compile, FSDP's, `.default.` of the state
dict) is passed over with at most a
warning: those matrices stay at their start values.

**Reported** for names that match no form that PEFT writes. Modules named in `modules_to_save`, embeddings
saved because the vocabulary grew, trained token rows and parameters adapted with `target_parameters` have
forms of their own and are not reported; neither are torchtune's own names in a torchtune run, which need its
conversion.

**Fix.** The renaming rule.

Sources: huggingface/peft#2699, vllm-project/vllm#34186.
""",
)
def unexpected_keys(context: AuditContext) -> Iterator[Observation]:
    run, adapter = lora_adapter(context)
    saved = _strings(adapter.config.get("modules_to_save"))
    direct = bool(adapter.config.get("target_parameters"))
    wrong: list[tuple[str, str]] = []
    for tensor in adapter.tensors:
        expected = _expected_name(tensor.name, saved, direct)
        if expected != tensor.name:
            wrong.append((tensor.name, expected))
    if not wrong:
        return
    if run.profile.trainer == "torchtune" and all("lora_a" in name or "lora_b" in name for name, _ in wrong):
        raise NotApplicableError("torchtune's own names")
    name, expected = wrong[0]
    rule = f"{name} -> {expected}" if expected else f"{name} is no name that PEFT knows"
    yield Observation(
        title=f"{len(wrong)} of {len(adapter.tensors)} tensor names are not those that PEFT loads",
        message=f"The first: {rule}.",
        count=len(wrong),
        of=len(adapter.tensors),
        values={"tensors": [name for name, _ in wrong[:20]], "expected": expected},
        locations=(inside(adapter.name, WEIGHTS_NAME),),
        fix=Fix(
            text=f"rename: {_rename_rule(name, expected)}"
            if expected
            else "save again with model.save_pretrained()"
        ),
    )


def _expected_name(name: str, saved: tuple[str, ...], direct: bool) -> str:
    """The name under which PEFT saves this tensor: the same when it is right, "" when it cannot be told."""
    cleaned = name.removeprefix("module.")
    stray = [segment for segment in STRAY_SEGMENTS if segment != "base_layer" or not direct]
    parts = cleaned.split(".")
    last_module = next((part for part in reversed(parts) if part in EMBEDDINGS | HEADS), None)
    if last_module is not None and "base_layer" in stray:
        stray.remove("base_layer")  # save_embedding_layers writes embed_tokens.base_layer.weight
    kept = [part for part in parts if part not in stray]
    cleaned = ".".join(kept)
    if not cleaned.startswith(PREFIX):
        cleaned = PREFIX + cleaned
    match = LORA_KEY.match(cleaned)
    if match and match["suffix"] in ("", ".weight", ".bias"):
        embedding = match["matrix"].startswith("lora_embedding")
        if match["suffix"] == "" and not embedding and match["matrix"] != "lora_magnitude_vector":
            cleaned += ".weight"
        return cleaned
    if TRAINED_TOKENS.search(cleaned):
        return cleaned
    module = cleaned.removeprefix(PREFIX)
    if any(f".{name}." in f".{module}" for name in saved):
        return cleaned
    if last_module is not None and module.endswith((".weight", ".bias")):
        return cleaned
    return ""


def _rename_rule(name: str, expected: str) -> str:
    gone = [
        part for part in STRAY_SEGMENTS if f".{part}." in f".{name}." and f".{part}." not in f".{expected}."
    ]
    rules = [f"remove '.{part}'" for part in gone]
    if name.startswith("module."):
        rules.append("remove the prefix 'module.'")
    elif not name.startswith(PREFIX):
        rules.append(f"add the prefix '{PREFIX}'")
    if expected.endswith(".weight") and not name.endswith(".weight"):
        rules.append("add the suffix '.weight'")
    return ", ".join(rules) or f"{name} -> {expected}"


@check(
    "adapter.rank_mismatch",
    title="Matrix shapes that do not fit",
    severity=Severity.ERROR,
    needs=(Need.ADAPTER,),
    explain="""
A must be `[r, in]` and B `[out, r]`, with the r of adapter_config.json (or of its `rank_pattern`), and in
and out must be the base model's sizes. When they are not, loading fails, or the config is another adapter's:
with the wrong r the scale alpha / r is wrong too.

**Not looked at:** parameters adapted with `target_parameters`, whose A holds r rows for every expert.

**Fix.** The r of the weights, or the config that belongs to them.
""",
)
def rank_mismatch(context: AuditContext) -> Iterator[Observation]:
    run, adapter = lora_adapter(context)
    stated = adapter.config.get("r")
    if not isinstance(stated, int) or adapter.config.get("target_parameters"):
        raise NotApplicableError("the config states no single rank")
    shapes = {tensor.name: tensor for tensor in adapter.tensors}
    wrong: list[str] = []
    ranks: Counter[int] = Counter()
    for a_tensor in adapter.matrices("lora_A"):
        match = LORA_KEY.match(a_tensor.name)
        assert match is not None, "matrices of a kind match the pattern"
        b_tensor = shapes.get(a_tensor.name.replace("lora_A", "lora_B"))
        rank = a_tensor.shape[0] if a_tensor.shape else 0
        ranks[rank] += 1
        expected = _rank_of(match["module"], stated, adapter.config.get("rank_pattern"))
        if rank != expected or b_tensor is None or len(b_tensor.shape) < 2 or b_tensor.shape[1] != rank:
            wrong.append(
                f"{match['module']} (A {list(a_tensor.shape)}, B {list(b_tensor.shape) if b_tensor else 'missing'})"
            )
    sizes = _wrong_sizes(adapter, context.base_config)
    if not wrong and not sizes:
        return
    common = ranks.most_common(1)[0][0] if ranks else stated
    only_rank = bool(wrong) and common != stated
    yield Observation(
        title=(
            f"{len(wrong)} of {len(adapter.matrices('lora_A'))} modules do not have rank {stated}"
            if wrong
            else f"{plural(len(sizes), 'matrix', 'matrices')} of another size than the base model's"
        ),
        message=f"The first: {listed((wrong or sizes)[:3])}.",
        count=len(wrong) or len(sizes),
        of=len(adapter.matrices("lora_A")),
        values={"r": stated, "ranks": {str(rank): count for rank, count in sorted(ranks.items())},
                "modules": (wrong or sizes)[:20]},
        locations=(inside(adapter.name, WEIGHTS_NAME), inside(adapter.name, "adapter_config.json")),
        fix=change(run.settings, "lora_r", common)
        if only_rank
        else Fix(text="load the adapter with the base model and the adapter_config.json it was saved with"),
    )  # fmt: skip


def _rank_of(module: str, rank: int, pattern: Any) -> int:
    """The rank of a module: that of the pattern's first key that matches the end of its name, as PEFT
    does.
    """
    for key, value in pattern.items() if isinstance(pattern, dict) else ():
        try:
            matches = re.match(rf"(.*\.)?({key})$", module)
        except re.error:
            continue
        if matches and isinstance(value, int):
            return value
    return rank


def _wrong_sizes(adapter: AdapterFile, config: Mapping[str, Any] | None) -> list[str]:
    """Matrices that read or write the residual stream with another width than the base model's."""
    width = (config or {}).get("hidden_size")
    if not isinstance(width, int) or "text_config" in (config or {}):
        return []
    reads = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    writes = ("o_proj", "down_proj")
    wrong = []
    for tensor in adapter.tensors:
        match = LORA_KEY.match(tensor.name)
        if match is None or len(tensor.shape) != 2 or UNUSUAL.search(tensor.name):
            continue
        last = match["module"].rsplit(".", 1)[-1]
        size = _width(match["matrix"], last, tensor, reads, writes)
        if size is not None and size != width:
            wrong.append(f"{match['module']}.{match['matrix']} {list(tensor.shape)}, hidden_size {width}")
    return wrong


UNUSUAL = re.compile(r"(vision|visual|audio|cross_attn|encoder|mtp|altup|per_layer)", re.IGNORECASE)


def _width(
    matrix: str, last: str, tensor: Tensor, reads: tuple[str, ...], writes: tuple[str, ...]
) -> int | None:
    if matrix == "lora_A" and last in reads:
        return tensor.shape[1]
    return tensor.shape[0] if matrix == "lora_B" and last in writes else None


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
        for name in sorted(_strings(targets) if isinstance(targets, list) else ())
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
            title=f"layers {', '.join(map(str, holes[:8]))}{', ...' if len(holes) > 8 else ''} have no adapter",
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
        of=len(_strings(adapter.config.get("target_modules"))),
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
    text = [module for module in modules if not UNUSUAL.search(module)]
    found = {int(match[1]) for module in text if (match := LAYER.search(f".{module}."))}
    if not found:
        return []
    return sorted(set(range(layers if layers is not None else max(found) + 1)) - found)


@check(
    "adapter.modules_to_save_missing",
    title="Modules that should have been saved are not there",
    severity=Severity.ERROR,
    needs=(Need.ADAPTER,),
    explain="""
`modules_to_save` names modules that were trained in full and belong into the adapter's file. Without them
the loaded model has them at random (a classifier head) or as in the base model (embeddings). A sequence
classification adapter (`task_type: SEQ_CLS`) always needs its head.

**Not reported** for an `lm_head` that is tied to embeddings which are in the file.

**Fix.** Save again with `model.save_pretrained()`.
""",
)
def modules_to_save_missing(context: AuditContext) -> Iterator[Observation]:
    _, adapter = lora_adapter(context)
    names = [tensor.name for tensor in adapter.tensors]
    wanted = list(_strings(adapter.config.get("modules_to_save")))
    if adapter.config.get("task_type") == "SEQ_CLS" and not set(wanted) & {"score", "classifier"}:
        wanted.append("score or classifier")
    gone = [
        name for name in wanted
        if not any(f".{part}." in f".{tensor}." for part in name.split(" or ") for tensor in names)
    ]  # fmt: skip
    has_embeddings = any(part in EMBEDDINGS for tensor in names for part in tensor.split("."))
    tied = (context.base_config or {}).get("tie_word_embeddings", True)
    gone = [name for name in gone if name not in HEADS or not (has_embeddings and tied)]
    if not gone:
        return
    yield Observation(
        title=f"{', '.join(gone)} should be in the adapter and {'is' if len(gone) == 1 else 'are'} not",
        count=len(gone),
        of=len(wanted),
        values={"missing": gone, "modules_to_save": wanted},
        locations=(inside(adapter.name, WEIGHTS_NAME),),
        fix=Fix(text="save again with model.save_pretrained()"),
    )


@check(
    "adapter.task_type_missing",
    title="No task type",
    severity=Severity.INFO,
    needs=(Need.ADAPTER,),
    explain="""
`task_type` is null, so that PEFT loads a plain `PeftModel` without `generate`. unsloth writes `auto_mapping`
instead, which serves the same end and is not reported.

**Fix.** `"task_type": "CAUSAL_LM"`.
""",
)
def task_type_missing(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    adapter = run.adapter
    assert adapter is not None
    if not adapter.has_config or adapter.config.get("task_type") or adapter.config.get("auto_mapping"):
        return
    yield Observation(
        title="adapter_config.json has no task_type",
        values={"task_type": None},
        locations=(inside(adapter.name, "adapter_config.json"),),
        fix=Fix.change("task_type", None, "CAUSAL_LM", file=inside(adapter.name, "adapter_config.json")),
    )


@check(
    "adapter.base_unset",
    title="The adapter does not say what it belongs to",
    severity=Severity.WARNING,
    needs=(Need.ADAPTER,),
    explain="""
`base_model_name_or_path` is empty, or a path that exists on no other machine. Whoever loads the adapter has
to guess the base model, and a wrong guess of the same shape loads without a word.

**Severity.** Warning; info when `--base-model` is given, which settles it here.

**Fix.** The hub id of the base model.
""",
)
def base_unset(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    adapter = run.adapter
    assert adapter is not None
    if not adapter.has_config:
        return
    named = adapter.config.get("base_model_name_or_path")
    absolute = isinstance(named, str) and bool(re.match(r"(/|[A-Za-z]:[\\/]|~)", named))
    if isinstance(named, str) and named.strip() and named != "None":
        if not absolute or context.base_tokenizer is not None or context.base_config is not None:
            return
        title = f"base_model_name_or_path is a path that is not on this machine: {named}"
    else:
        title = "base_model_name_or_path is empty"
    file = inside(adapter.name, "adapter_config.json")
    yield Observation(
        title=title,
        severity=Severity.INFO if context.inputs.base_model else Severity.WARNING,
        values={"base_model_name_or_path": named},
        locations=(file,),
        fix=Fix.change("base_model_name_or_path", named, "<hub id of the base model>", file=file),
    )
