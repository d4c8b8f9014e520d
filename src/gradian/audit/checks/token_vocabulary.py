"""Tokens that the vocabulary lacks, that were never trained, or that the model cannot place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.finding import Fix, Severity
from gradian.audit.length import length_key, model_limit
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.wording import listed, percent, plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


@check(
    "token.unk_rate",
    title="Text that the tokenizer does not know",
    severity=Severity.WARNING,
    needs=(Need.TOKENS,),
    thresholds={"share": 0.001},
    row_level=True,
    explain="""
More than 0.1 % of the tokens are the unknown token: characters that the vocabulary lacks are lost, and the
model learns to write `<unk>`. Tokenizers that work on bytes never do this.
""",
)
def unk_rate(context: AuditContext) -> Iterator[Observation]:
    facts, tokenizer = context.dataset, context.tokenizer
    assert facts is not None
    assert facts.tokens is not None
    assert tokenizer is not None
    unknown, total = int(facts.tokens.unknown.sum()), int(facts.tokens.kept[facts.tokens.known].sum())
    limit = context.threshold("token.unk_rate.share")
    if tokenizer.unk_token_id in tokenizer.stop_ids or unknown <= limit * total:
        return
    rows = np.flatnonzero(facts.tokens.unknown > 0).tolist()
    yield Observation(
        title=f"{percent(unknown / total)} of the tokens are {tokenizer.unk_token}, in "
        f"{plural(len(rows), 'row')} ({some(rows)})",
        rows=rows,
        values={"unknown": unknown, "tokens": total, "threshold": limit},
        fix=Fix(text="use the tokenizer of the model, or replace the characters that it lacks", safe=False),
    )


#: Base models whose header and turn tokens were never trained (their embedding rows are alike).
_UNTRAINED = re.compile(r"(?i)llama-?3(\.[0-3])?-(?!.*(instruct|chat))(\d+b)")
_HEADER_TOKENS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


@check(
    "token.untrained_special",
    title="Control tokens that the base model never learnt",
    severity=Severity.WARNING,
    needs=(Need.TOKENS, Need.RUN),
    explain="""
The rows use control tokens that exist in the vocabulary of this *base* model but were never trained (Llama 3
base: `<|start_header_id|>`, `<|end_header_id|>`, `<|eot_id|>`). LoRA leaves the embeddings as they are, so
the model reads and writes noise there.

**Fix.** Tune the embeddings of these tokens (`trainable_token_indices`), start from the instruct model, or
use a template without them.

Source: unsloth's `fix_untrained_tokens`, which raises for this.
""",
)
def untrained_special(context: AuditContext) -> Iterator[Observation]:
    facts, tokenizer, run = context.dataset, context.tokenizer, context.run
    assert facts is not None
    assert tokenizer is not None
    assert run is not None
    name = context.base_model_name or ""
    if not _UNTRAINED.search(name):
        raise NotApplicableError("no base model with untrained tokens is known by this name")
    source = tokenizer.template.source if tokenizer.template is not None else ""
    used = [token for token in _HEADER_TOKENS if token in source and tokenizer.id_of(token) is not None]
    config = run.adapter.config if run.adapter is not None else {}
    covered = bool(config.get("trainable_token_indices")) or any(
        "embed" in str(module)
        for key in ("modules_to_save", "target_modules")
        for module in config.get(key) or ()
    )
    if used and not covered and facts.templated.any():
        ids = [tokenizer.id_of(token) for token in used]
        yield Observation(
            title=f"{listed(used)} were never trained in {name}, and the adapter leaves them so",
            count=int(facts.templated.sum()),
            of=facts.rows,
            values={"tokens": used, "ids": ids},
            fix=Fix.change(
                "trainable_token_indices",
                None,
                {"embed_tokens": ids},
                text=f"trainable_token_indices: {{embed_tokens: {ids}}}, or start from the instruct model",
            ),
        )


@check(
    "token.over_model_context",
    title="Rows longer than the model can read",
    severity=Severity.WARNING,
    needs=(Need.TOKENS, Need.BASE_CONFIG),
    row_level=True,
    explain="""
The trainer's length limit is above `max_position_embeddings` of the base model, without RoPE scaling, and
rows are longer than that: positions that the model has never seen.

**Fix.** Lower the limit to the model's, or scale its positions.
""",
)
def over_model_context(context: AuditContext) -> Iterator[Observation]:
    facts, config = context.dataset, context.base_config
    assert facts is not None
    assert facts.tokens is not None
    assert config is not None
    limit = config.get("max_position_embeddings")
    if not isinstance(limit, int) or limit <= 0 or config.get("rope_scaling"):
        return
    rows = np.flatnonzero(facts.tokens.kept > limit).tolist()
    if rows:
        name = length_key(context)
        yield Observation(
            title=f"{len(rows):,} of {plural(facts.rows, 'row')} are longer than the model's {limit:,} "
            "positions",
            rows=rows,
            values={"max_position_embeddings": limit, "max_length": context.profile.max_length},
            fix=Fix.change(
                name.key, context.profile.max_length, model_limit(context) or limit, file=name.file
            ),
        )
