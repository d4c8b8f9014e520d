"""The base model that is given against the one that the run was trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.token_sets import FirstDifference, first_difference, new_tokens
from gradian.audit.wording import listed

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.rows.tokenizer import Tokenizer

#: What mirrors and quantised copies add to a model's name.
COPY_SUFFIX = re.compile(
    r"(-unsloth)?(-bnb-4bit|-bnb-8bit|-4bit|-8bit|-gptq|-awq|-int4|-int8|-fp8|-gguf)$", re.IGNORECASE
)


def bare_name(name: str) -> str:
    """A model's name without its owner, path and the marks of a quantised copy: `unsloth/X-bnb-4bit` ->
    `x`.
    """
    last = PurePosixPath(name.replace("\\", "/").rstrip("/")).name.lower()
    if last in ("", ".", ".."):
        return name.lower()
    if last.startswith("models--"):  # a folder of the huggingface cache
        last = last.rsplit("--", 1)[-1]
    return COPY_SUFFIX.sub("", last)


@check(
    "run.base_model_mismatch",
    title="Another base model than the adapter's",
    severity=Severity.ERROR,
    needs=(Need.RUN,),
    explain="""
An adapter is a change to one model. On another it is noise, or it does not load at all.

**Severity.** Error when the tokenizer that was saved with the run has another vocabulary than the given base
model's (an extended vocabulary is not another one). Info when only the names differ and nothing was saved to
compare. Nothing when the vocabularies
are equal: a local path and a hub id, or a quantised copy (`unsloth/X-bnb-4bit` of `org/X`), are the same
model.

**Fix.** The base model that adapter_config.json names.

Sources: huggingface/autotrain-advanced#790, unslothai/unsloth-zoo#810.
""",
)
def base_model_mismatch(context: AuditContext) -> Iterator[Observation]:
    run, given = context.run, context.inputs.base_model
    assert run is not None
    if given is None:
        raise NotApplicableError("no base model was given to compare with")
    named = run.base_model
    own, base = context.run_tokenizer, context.base_tokenizer
    difference = _other_vocabulary(context, own, base)
    same_name = named is None or bare_name(named) == bare_name(given)
    if difference is not None:
        assert own is not None
        assert base is not None
        yield Observation(
            title=f"The run was trained on {named or 'another model'}, not on {given}: the vocabularies differ",
            message=(
                f"{own.vocab_size:,} against {base.vocab_size:,} tokens; the first difference is id "
                f"{difference.token_id}: {difference.run_token!r} in the run, {difference.base_token!r} in the "
                "base model."
            ),
            values={
                "adapter_base": named, "base_model": given, "run_vocabulary": own.vocab_size,
                "base_vocabulary": base.vocab_size, "first_difference": difference.token_id,
                "run_token": difference.run_token, "base_token": difference.base_token,
            },
            locations=(_where(context),),
            fix=Fix.change("base_model", given, named, text=f"--base-model {given} -> {named}")
            if named and not same_name
            else Fix(text="give the base model that the adapter was trained on"),
        )  # fmt: skip
        return
    if same_name or (own is not None and base is not None):
        return
    yield Observation(
        title=f"The adapter names {named} as its base model, {given} was given",
        severity=Severity.INFO,
        message="No tokenizer was saved with the run, so only the names can be compared.",
        values={"adapter_base": named, "base_model": given},
        locations=(_where(context),),
    )


def _other_vocabulary(
    context: AuditContext, own: Tokenizer | None, base: Tokenizer | None
) -> FirstDifference | None:
    """Where the run's vocabulary departs from the base model's; None when it is the same or extends it."""
    if own is None or base is None or own.sha256 == base.sha256 or new_tokens(context) is not None:
        return None
    return first_difference(own, base)


def _where(context: AuditContext) -> str:
    assert context.run is not None
    return (context.run.settings.where("base_model") or "adapter_config.json").split(": ")[0]


@check(
    "run.tokenizer_mismatch",
    title="The run's tokenizer works differently from the base model's",
    severity=Severity.WARNING,
    needs=(Need.RUN_TOKENIZER, Need.BASE_TOKENIZER),
    explain="""
The vocabulary is the same, but texts are cut up differently (other merges, another normaliser or
pre-tokeniser), or other tokens begin and end a text. What was trained does not fit what the base model's
tokenizer feeds at inference.

**Severity.** Warning; info when only the BOS or EOS token differs, which a run may have set on purpose. A
different pad token is not reported.

**Fix.** Load the tokenizer from the run folder.
""",
)
def tokenizer_mismatch(context: AuditContext) -> Iterator[Observation]:
    own, base = context.run_tokenizer, context.base_tokenizer
    assert own is not None
    assert base is not None
    if own.sha256 == base.sha256:
        return
    if first_difference(own, base) is not None:
        raise NotApplicableError("the vocabularies differ (run.base_model_mismatch)")
    parts = _different_parts(own, base)
    stated = context.profile.eos_token
    special = {
        name: [own.special_tokens.get(name), base.special_tokens.get(name)]
        for name in ("bos_token", "eos_token")
        if own.special_tokens.get(name) != base.special_tokens.get(name)
        and not (name == "eos_token" and stated is not None and own.special_tokens.get(name) == stated)
    }
    if not parts and not special:
        return
    names = [*parts, *(f"{name} ({pair[0]} against {pair[1]})" for name, pair in special.items())]
    yield Observation(
        title=f"The run's tokenizer differs from the base model's in {listed(names)}",
        severity=Severity.WARNING if parts else Severity.INFO,
        values={"parts": parts, "special_tokens": special},
        fix=Fix(text="load the tokenizer from the run folder"),
    )


def _different_parts(own: Tokenizer, base: Tokenizer) -> list[str]:
    left, right = json.loads(own.backend.to_str()), json.loads(base.backend.to_str())
    return [part for part in ("normalizer", "pre_tokenizer", "model") if left.get(part) != right.get(part)]
