"""Special tokens: does a row begin and end as the model needs it, and are the tokens the right ones?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.wording import plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


@check(
    "token.missing_eos",
    title="Rows without an end-of-sequence token",
    severity=Severity.ERROR,
    needs=(Need.TOKENS, Need.RUN),
    thresholds={"error_share": 0.50, "warning_share": 0.01},
    row_level=True,
    explain="""
What is learnt of a row does not end with a token that stops generation, neither EOS nor the end of a turn,
and this trainer adds none: the tuned model goes on and on. Whether a trainer adds one depends on its version:
TRL does from 0.17 on (0.16 too, by id), TRL before that, unsloth's text path and a Trainer of one's own do
not.

**Severity.** Error from half of the rows on, warning from 1 %. Rows that the length limit cuts are counted
under `data.truncated_completion`.

**Fix.** Append `tokenizer.eos_token` to the texts.

Sources: unslothai/unsloth#416 and #419, huggingface/trl#734.
""",
)
def missing_eos(context: AuditContext) -> Iterator[Observation]:
    facts, tokenizer = context.dataset, context.tokenizer
    assert facts is not None
    assert facts.tokens is not None
    assert tokenizer is not None
    tokens = facts.tokens
    learnt = tokens.known & (tokens.full_loss > 0) & (facts.answer_chars > 0)
    rows = np.flatnonzero(learnt & ~tokens.stop).tolist()
    share = len(rows) / max(1, int(learnt.sum()))
    error = context.threshold("token.missing_eos.error_share")
    warning = context.threshold("token.missing_eos.warning_share")
    if share < warning:
        return
    profile, eos = context.profile, context.profile.eos_token or tokenizer.eos_token
    own_code = profile.trainer == "transformers"
    yield Observation(
        title=f"{len(rows):,} of {plural(int(learnt.sum()), 'row')} do not end with {eos or 'a stop token'} "
        f"({some(rows)})",
        severity=Severity.ERROR if share >= error and not own_code else Severity.WARNING,
        message=f"{profile.reason}; it "
        + (
            "is run by code of your own, which may add it."
            if own_code
            else "tokenises these rows as they stand."
        ),
        rows=rows,
        of=int(learnt.sum()),
        values={"share": share, "stop_tokens": sorted(tokenizer.stop_ids), "error_share": error},
        assumes=f"{profile.trainer} adds no end-of-sequence token ({profile.end_of_text})",
        fix=Fix(
            text=f"append tokenizer.eos_token ({eos}) to each text"
            if eos
            else "give the tokenizer an eos_token"
        ),
    )


@check(
    "token.eos_not_turn_end",
    title="Generation stops at another token than turns end with",
    severity=Severity.WARNING,
    needs=(Need.TOKENS,),
    explain="""
The chat template ends assistant turns with one token and the tokenizer's `eos_token` is another, which the
rows never contain: the model learns to write the first and generation waits for the second (Qwen base models:
`<|im_end|>` and `<|endoftext|>`).

**Not reported** when `generation_config.json` lists the token that ends turns. When no such file is known
this is info.

**Fix.** Set the tokenizer's (or TRL's) `eos_token` to the token that ends turns.

Source: the TRL documentation on training base models.
""",
)
def eos_not_turn_end(context: AuditContext) -> Iterator[Observation]:
    facts, tokenizer = context.dataset, context.tokenizer
    assert facts is not None
    assert tokenizer is not None
    turn_end, eos = tokenizer.turn_end_id, tokenizer.eos_token_id
    if turn_end is None or not facts.templated.any():
        raise NotApplicableError("no template that ends turns with a token")
    base = context.base_tokenizer
    listed_ids = {*tokenizer.generation_eos_ids, *(base.generation_eos_ids if base is not None else ())}
    written = tokenizer.added_tokens[turn_end]
    if eos == turn_end or turn_end in listed_ids or context.profile.eos_token == written:
        return
    known = base is not None
    rows = int(facts.templated.sum())
    yield Observation(
        title=f"Answers end with {written}, and generation stops at {tokenizer.eos_token or 'nothing'}",
        severity=Severity.WARNING if known else Severity.INFO,
        message="No generation_config.json lists it." if known else "The base model's files are not known.",
        count=rows,
        of=facts.rows,
        values={"turn_end": written, "eos_token": tokenizer.eos_token},
        fix=Fix.change("eos_token", tokenizer.eos_token, written),
    )


@check(
    "token.pad_masks_eos",
    title="The padding mask also hides the end-of-sequence token",
    severity=Severity.ERROR,
    needs=(Need.TOKENS, Need.RUN),
    explain="""
The pad token is the EOS token, and this collator hides every label whose **id** is the pad id. The EOS at the
end of each row is hidden with the padding, so the model never learns to stop. TRL masks by position since
0.16.1, and so do axolotl, LLaMA-Factory and torchtune; there the same setting is harmless and is not
reported.

**Fix.** A pad token of its own (`<|finetune_right_pad_id|>`, `<unk>`, a new token), or TRL 0.16.1.

Sources: huggingface/trl#976, huggingface/transformers#22794, unslothai/unsloth#416; fixed by
huggingface/trl#3200.
""",
)
def pad_masks_eos(context: AuditContext) -> Iterator[Observation]:
    facts, tokenizer, profile = context.dataset, context.tokenizer, context.profile
    assert facts is not None
    assert facts.tokens is not None
    assert tokenizer is not None
    if not profile.pad_masks_eos or tokenizer.eos_token_id is None:
        return
    pad = tokenizer.pad_token_id
    if pad is not None and pad != tokenizer.eos_token_id:
        return
    rows = np.flatnonzero(facts.tokens.known & (facts.tokens.pad_targets > 0)).tolist()
    if not rows:
        return
    trl = profile.trainer == "trl"
    name = f"TRL {profile.version}" if trl and profile.version else profile.trainer
    how = (
        f"pad_token_id == eos_token_id ({tokenizer.eos_token_id})"
        if pad is not None
        else "no pad token: EOS pads"
    )
    upgrade = f", or {name} -> >= 0.16.1" if trl else ""
    yield Observation(
        title=f"{how}, and {name} masks it: {len(rows):,} of {plural(facts.rows, 'row')} lose "
        f"{tokenizer.eos_token}",
        message=f"{profile.reason}; its collator hides every label that equals the pad id.",
        rows=rows,
        row_level=False,
        values={"pad_token_id": pad, "eos_token_id": tokenizer.eos_token_id},
        assumes=f"{name} masks padding by id",
        fix=Fix(text=f"pad_token {tokenizer.pad_token!r} -> a distinct token{upgrade}", key="pad_token"),
    )


@check(
    "token.pad_in_content",
    title="The pad token occurs in the rows",
    severity=Severity.WARNING,
    needs=(Need.TOKENS,),
    row_level=True,
    explain="""
A token that the model shall learn has the id of the pad token (pad set to `<unk>`, or to a token that the
text uses). Collators that mask by id hide it, and a model that is padded with it may read padding as text.

Pad tokens that equal EOS are `token.pad_masks_eos`.

**Fix.** Use a pad token that does not occur in text.
""",
)
def pad_in_content(context: AuditContext) -> Iterator[Observation]:
    facts, tokenizer = context.dataset, context.tokenizer
    assert facts is not None
    assert facts.tokens is not None
    assert tokenizer is not None
    pad = tokenizer.pad_token_id
    if pad is None or pad in tokenizer.stop_ids:
        return
    rows = np.flatnonzero(facts.tokens.known & (facts.tokens.pad_targets > 0)).tolist()
    if rows:
        yield Observation(
            title=f"{tokenizer.pad_token} is the pad token and occurs in {len(rows):,} of "
            f"{plural(facts.rows, 'row')} ({some(rows)})",
            rows=rows,
            values={"pad_token_id": pad, "occurrences": int(facts.tokens.pad_targets[rows].sum())},
            fix=Fix(text=f"pad_token {tokenizer.pad_token} -> a token that no text holds", key="pad_token"),
        )


@check(
    "token.double_bos",
    title="Rows begin with two BOS tokens",
    severity=Severity.WARNING,
    needs=(Need.TOKENS,),
    thresholds={"error_share": 0.50},
    row_level=True,
    explain="""
The text begins with the BOS token already (a template or a prepared `text` column wrote it) and the tokenizer
adds another. At inference there is one.

**Severity.** Error from half of the rows on. unsloth and axolotl remove the second one, so nothing is
reported there.

**Fix.** Take the BOS text out of the column, or pass `messages` instead of prepared text.

Sources: OpenRLHF#393, huggingface/trl#1114.
""",
)
def double_bos(context: AuditContext) -> Iterator[Observation]:
    facts, tokenizer = context.dataset, context.tokenizer
    assert facts is not None
    assert facts.tokens is not None
    assert tokenizer is not None
    rows = np.flatnonzero(facts.tokens.leading_bos >= 2).tolist()
    if rows:
        share = len(rows) / facts.rows
        limit = context.threshold("token.double_bos.error_share")
        yield Observation(
            title=f"{len(rows):,} of {plural(facts.rows, 'row')} begin with {tokenizer.bos_token} twice "
            f"({some(rows)})",
            severity=Severity.ERROR if share >= limit else Severity.WARNING,
            rows=rows,
            values={"share": share, "error_share": limit},
            fix=Fix(
                text=f"take {tokenizer.bos_token} out of the texts, or pass messages instead of prepared text"
            ),
        )


@check(
    "token.prompt_boundary_mismatch",
    title="Prompt and answer share a token",
    severity=Severity.WARNING,
    needs=(Need.TOKENS,),
    thresholds={"warning_share": 0.01},
    row_level=True,
    explain="""
The tokens of the prompt are not the beginning of the tokens of prompt and completion: the last character of
the prompt (mostly a space) is joined with the first of the answer into one token. The loss mask then starts
one token early or late, and at inference the model gets a prompt that it has not been tuned on.

**Severity.** Warning from 1 % of the rows on, else info.

**Fix.** Move the space from the end of the prompt to the start of the completion.

Sources: TRL's warning "Mismatch between tokenized prompt and the start of tokenized prompt+completion",
huggingface/trl#4147, lm-sys/FastChat#2992.
""",
)
def prompt_boundary_mismatch(context: AuditContext) -> Iterator[Observation]:
    facts, tokenizer = context.dataset, context.tokenizer
    assert facts is not None
    assert facts.tokens is not None
    assert tokenizer is not None
    rows = np.flatnonzero(facts.tokens.mismatch & ~facts.templated).tolist()
    if not rows:
        return
    prompt, answer = facts.texts_of({rows[0]})[rows[0]]
    alone, whole = tokenizer.encode(prompt, True), tokenizer.encode(prompt + answer, True)
    shared = next((i for i, (a, b) in enumerate(zip(alone, whole, strict=False)) if a != b), len(alone))
    share = len(rows) / facts.rows
    limit = context.threshold("token.prompt_boundary_mismatch.warning_share")
    spaced = prompt[-1:].isspace()
    yield Observation(
        title=f"{len(rows):,} of {plural(facts.rows, 'row')}: the prompt's tokens do not begin the row's "
        f"({some(rows)})",
        severity=Severity.WARNING if share >= limit else Severity.INFO,
        message=f"Row {rows[0]}: the prompt ends with {tokenizer.decode(alone[shared:])!r}, the row has "
        f"{tokenizer.decode(whole[shared : shared + 1])!r} there.",
        rows=rows,
        values={
            "share": share,
            "warning_share": limit,
            "prompt_ids": alone[shared:],
            "row_ids": whole[shared : shared + 4],
        },
        fix=Fix(
            text="move the trailing space from the prompt to the completion"
            if spaced
            else "part prompt and completion at a place where tokens do not join (a line break)",
            safe=False,
        ),
    )
