"""What the adapter's tensors are called and shaped, against its own config and the base model's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gradian.audit.checks.adapter_weights import is_peft
from gradian.audit.checks.config_lora import EMBEDDINGS, HEADS
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.run.adapter import LORA_KEY, WEIGHTS_NAME, AdapterFile, inside

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run

#: Segments that a wrapper leaves in a name -> the same name without it. PEFT finds none of these when it
#: loads.
STRAY_SEGMENTS = (
    "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "inner", "default", "base_layer",
)  # fmt: skip
PREFIX = "base_model.model."
#: Parts of a model that lie outside its text stack, with sizes and layers of their own.
UNREACHED_BY_TEXT = re.compile(r"(vision|visual|audio|cross_attn|encoder|mtp|altup|per_layer)", re.IGNORECASE)
TRAINED_TOKENS = re.compile(r"(token_adapter\.)?trainable_tokens_delta$")


def lora_adapter(context: AuditContext) -> tuple[Run, AdapterFile]:
    """The run and its LoRA adapter with readable weights."""
    run = context.run
    assert run is not None
    assert run.adapter is not None
    if not any(tensor.size for tensor in run.adapter.tensors):
        raise NotApplicableError("no readable adapter weights")
    if str(run.adapter.config.get("peft_type", "LORA")).upper() != "LORA":
        raise NotApplicableError("not a LoRA adapter")
    return run, run.adapter


def strings(value: Any) -> tuple[str, ...]:
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
    saved = strings(adapter.config.get("modules_to_save"))
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
    wanted = list(strings(adapter.config.get("modules_to_save")))
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
    if not adapter.has_config or not is_peft(adapter):
        raise NotApplicableError("no config of PEFT's kind")
    if adapter.config.get("task_type") or adapter.config.get("auto_mapping"):
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
    if not adapter.has_config or not is_peft(adapter):
        raise NotApplicableError("no config of PEFT's kind")
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
