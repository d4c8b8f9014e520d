"""What the length limit takes away, and how much there is left to learn from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.facts import DROPPED, DatasetFacts
from gradian.audit.finding import Fix, Severity
from gradian.audit.length import length_key, raise_limit
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import percent, plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext

_TOO_LONG = DROPPED.index("too long")
_NO_TOKEN = DROPPED.index("no token to learn")
_ROLE_ORDER = DROPPED.index("role order")


def lengths_of(facts: DatasetFacts) -> dict[str, int]:
    """Median, 95th and 99th percentile and longest row in tokens, before the cut."""
    assert facts.tokens is not None
    known = facts.tokens.full[facts.tokens.known]
    return {
        "longest": int(known.max()),
        "p50": int(np.percentile(known, 50, method="lower")),
        "p95": int(np.percentile(known, 95, method="higher")),
        "p99": int(np.percentile(known, 99, method="higher")),
    }


def truncated(context: AuditContext, facts: DatasetFacts, id: str, *, of_eval: bool) -> Iterator[Observation]:
    """The rows of a data set that keep some of their targets and lose others to the length limit."""
    tokens = facts.tokens
    assert tokens is not None
    lost = tokens.full_loss - tokens.kept_loss
    # A line break that the template writes after the stop token is no loss: such a row still ends as it
    # should. torchtune puts a stop token in place of the last one, though, and that row is cut.
    whole = tokens.ended & (context.profile.overflow != "truncate_end_keep_eos")
    cut = tokens.known & (tokens.kept < tokens.full) & (lost > 0)
    mask = cut & (tokens.kept_loss > 0) & (tokens.dropped == 0) & ~whole
    rows = np.flatnonzero(mask).tolist()
    if not rows:
        return
    lost_tokens = int(lost[mask].sum())
    all_tokens = int(tokens.full_loss[tokens.known].sum())
    row_share, token_share = len(rows) / facts.rows, lost_tokens / max(1, all_tokens)
    limit = context.threshold(f"{id}.error_share")
    lengths = lengths_of(facts)
    severe = row_share >= limit or token_share >= limit
    yield Observation(
        title=f"{len(rows):,} of {plural(facts.rows, 'row')} lose their ending ({some(rows)})",
        severity=Severity.ERROR if severe and not of_eval else Severity.WARNING,
        message=(
            f"{length_key(context).key} is {context.profile.max_length:,} tokens and the longest row has "
            f"{lengths['longest']:,} (median {lengths['p50']:,}, p95 {lengths['p95']:,}, p99 "
            f"{lengths['p99']:,}). "
            f"{lost_tokens:,} of {all_tokens:,} learnt tokens ({percent(token_share)}) are cut off, always "
            "the end of the answer and with it the stop token."
        ),
        rows=rows,
        of_eval=of_eval,
        values={
            "max_length": context.profile.max_length,
            **lengths,
            "lost_tokens": lost_tokens,
            "loss_tokens": all_tokens,
            "row_share": row_share,
            "token_share": token_share,
            "error_share": limit,
        },
        assumes=f"{context.profile.trainer} cuts longer rows ({context.profile.overflow})",
        fix=raise_limit(context, tokens.full, rows),
    )


@check(
    "data.truncated_completion",
    title="Completions cut by the length limit",
    severity=Severity.ERROR,
    needs=(Need.TOKENS,),
    thresholds={"error_share": 0.01},
    row_level=True,
    explain="""
The row is longer than the trainer's length limit and the trainer cuts it. What is lost is the end of the
answer *and the token that says "stop"*: the model learns to break off, or to go on for ever. Trainers do not
warn. TRL's default is 1,024 tokens, whatever the model can read.

**Severity.** Any such row is reported; error from 1 % of the rows or of the learnt tokens on (`error_share`).

**Fix.** Raise the limit: the value named is the smallest power of two that covers every row. Where the model
itself is shorter, the value covers 99 % of the rows and the others have to be split.

**Not reported** where nothing is lost: no limit, packing that carries the rest into the next block, trainers
that drop the whole row (`data.rows_dropped_too_long`).

Sources: unslothai/unsloth#2904, huggingface/trl#2400, huggingface/transformers#30998.
""",
)
def truncated_completion(context: AuditContext) -> Iterator[Observation]:
    assert context.dataset is not None
    yield from truncated(context, context.dataset, "data.truncated_completion", of_eval=False)


@check(
    "data.truncated_prompt",
    title="Prompts cut by the length limit",
    severity=Severity.WARNING,
    needs=(Need.TOKENS,),
    row_level=True,
    explain="""
The trainer cuts long rows at the start (TRL's `truncation_mode: keep_end`), or prompt and answer in
proportion (LLaMA-Factory): the beginning of the prompt is lost, often the system text or the task itself, and
the answer is learnt without what it answers.

**Fix.** Raise the limit to the value named.
""",
)
def truncated_prompt(context: AuditContext) -> Iterator[Observation]:
    facts, profile = context.dataset, context.profile
    assert facts is not None
    tokens = facts.tokens
    assert tokens is not None
    if profile.overflow not in ("truncate_start", "truncate_proportional"):
        return
    kept_prompt, full_prompt = tokens.kept - tokens.kept_loss, tokens.full - tokens.full_loss
    cut = tokens.known & (tokens.dropped == 0) & (tokens.kept < tokens.full)
    shorter = (kept_prompt < full_prompt) | (profile.overflow == "truncate_start")
    rows = np.flatnonzero(cut & shorter & (tokens.kept_loss > 0)).tolist()
    if rows:
        lengths = lengths_of(facts)
        yield Observation(
            title=f"{len(rows):,} of {plural(facts.rows, 'row')} lose a part of their prompt ({some(rows)})",
            message=f"{length_key(context).key} is {profile.max_length:,} tokens; the longest row has "
            f"{lengths['longest']:,}.",
            rows=rows,
            values={"max_length": profile.max_length, **lengths},
            assumes=f"{profile.trainer} cuts longer rows ({profile.overflow})",
            fix=raise_limit(context, tokens.full, rows),
        )


@check(
    "data.rows_dropped_too_long",
    title="Rows left out because they are too long",
    severity=Severity.ERROR,
    needs=(Need.TOKENS,),
    thresholds={"error_share": 0.05, "warning_share": 0.001},
    row_level=True,
    explain="""
The trainer leaves a row out when it is longer than the limit (axolotl's `excess_length_strategy: drop`,
LLaMA-Factory's plain packing). The model never sees it, and only a log line says so. It is usually the
longest and hardest rows that go.

**Severity.** Error from 5 % of the rows on, warning from 0.1 %, else info.

**Fix.** Raise the limit to the value named, or let the trainer cut instead of drop.

Sources: axolotl `handle_long_seq_in_dataset`, axolotl#1731 and #3068, hiyouga/LLaMA-Factory#5271.
""",
)
def rows_dropped_too_long(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    tokens = facts.tokens
    assert tokens is not None
    rows = np.flatnonzero(tokens.dropped == _TOO_LONG).tolist()
    if not rows:
        return
    share = len(rows) / facts.rows
    error = context.threshold("data.rows_dropped_too_long.error_share")
    warning = context.threshold("data.rows_dropped_too_long.warning_share")
    severity = Severity.ERROR if share >= error else Severity.WARNING if share >= warning else Severity.INFO
    lengths = lengths_of(facts)
    fix = raise_limit(context, tokens.full, rows)
    if context.profile.trainer == "axolotl":
        fix = fix.model_copy(update={"text": f"{fix.text}, or excess_length_strategy drop -> truncate"})
    yield Observation(
        title=f"{len(rows):,} of {plural(facts.rows, 'row')} are too long and left out ({some(rows)})",
        severity=severity,
        message=(
            f"{length_key(context).key} is {context.profile.max_length:,} tokens; the longest row has "
            f"{lengths['longest']:,} (p95 {lengths['p95']:,}, p99 {lengths['p99']:,})."
        ),
        rows=rows,
        values={
            "max_length": context.profile.max_length,
            **lengths,
            "row_share": share,
            "error_share": error,
        },
        assumes=f"{context.profile.trainer} drops rows that are longer than the limit",
        fix=fix,
    )


@check(
    "data.no_trainable_tokens",
    title="Rows with nothing to learn from",
    severity=Severity.ERROR,
    needs=(Need.TOKENS,),
    row_level=True,
    explain="""
After the loss mask and the length limit no token of the row is a target. Either the prompt alone fills the
limit, or the mask finds no answer in the row. TRL 1.9 and later silently drop such rows; older versions feed
them, and a batch of them has a loss of 0.0 or NaN. When every row is like this, the run ends normally and the
adapter is unchanged.

**Fix.** Raise the limit to the value named, or mend the mask (see the evidence for which it is).

Sources: huggingface/trl#6668, huggingface/trl#1053, unslothai/unsloth#1128 and #2364, huggingface/trl#6320.
""",
)
def no_trainable_tokens(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    tokens = facts.tokens
    assert tokens is not None
    mask = tokens.known & (tokens.kept_loss == 0) & np.isin(tokens.dropped, (0, _NO_TOKEN))
    rows = np.flatnonzero(mask).tolist()
    if not rows:
        return
    cut = np.flatnonzero(mask & (tokens.full_loss > 0)).tolist()
    unmasked = len(rows) - len(cut)
    profile = context.profile
    at = f" at {length_key(context).key} {profile.max_length:,}" if cut and profile.max_length else ""
    reasons = []
    if cut:
        reasons.append(
            f"in {plural(len(cut), 'row')} the prompt alone fills the {profile.max_length:,} tokens"
        )
    if unmasked:
        reasons.append(f"in {plural(unmasked, 'row')} the loss mask ({profile.loss_on}) marks nothing")
    effect = "leaves them out without a word" if profile.drops_fully_masked else "feeds them: loss 0.0 or NaN"
    fix = (
        raise_limit(context, tokens.full, cut)
        if cut
        else Fix(text=f"mend the loss mask or drop {some(rows)}", safe=False)
    )
    yield Observation(
        title=f"{len(rows):,} of {plural(facts.rows, 'row')} have zero trainable tokens{at}",
        message=f"{'; '.join(reasons)[:1].upper()}{'; '.join(reasons)[1:]}. The trainer {effect}.",
        rows=rows,
        values={"max_length": profile.max_length, "prompt_fills_limit": len(cut), "nothing_masked": unmasked},
        assumes=f"loss on {profile.loss_on}; {profile.overflow}",
        fix=fix,
    )


@check(
    "data.low_trainable_ratio",
    title="Few tokens of each row are learnt",
    severity=Severity.INFO,
    needs=(Need.TOKENS,),
    thresholds={"info_ratio": 0.02, "warning_ratio": 0.005},
    explain="""
Only a small part of each row is a target: long context, very short answers. The mean loss then rests on few
tokens, is noisy, and an error in the mask is hard to see in it.

**Severity.** Info when the median row is below 2 %, warning below 0.5 %. Nothing is necessarily wrong.

Source: Liquid4All/liquid-finetune#37.
""",
)
def low_trainable_ratio(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    tokens = facts.tokens
    assert tokens is not None
    trained = tokens.known & (tokens.dropped == 0) & (tokens.kept_loss > 0)
    if not trained.any():
        return
    ratio = tokens.kept_loss[trained] / tokens.kept[trained]
    median, low = float(np.median(ratio)), float(np.percentile(ratio, 5))
    info = context.threshold("data.low_trainable_ratio.info_ratio")
    warning = context.threshold("data.low_trainable_ratio.warning_ratio")
    if median >= info:
        return
    rows = np.flatnonzero(trained)[ratio <= low].tolist()
    yield Observation(
        title=f"Only {percent(median)} of a row's tokens are learnt (median)",
        severity=Severity.WARNING if median < warning else Severity.INFO,
        message=f"In 5 % of the rows it is {percent(low)} or less ({some(rows)}).",
        rows=rows,
        count=int(trained.sum()),
        values={"median": median, "p5": low, "info_ratio": info, "warning_ratio": warning},
    )


@check(
    "data.length_outliers",
    title="Answers far longer than all others",
    severity=Severity.INFO,
    needs=(Need.ROWS,),
    thresholds={"times_p99": 8, "times_median": 20},
    row_level=True,
    explain="""
A few answers are many times longer than the rest: more than 8 times the 99th percentile, or 20 times the
median when they are fewer than 1 % of the rows. With a loss that averages over tokens, one such row can weigh
as much as dozens of others. Often it is a whole document that slipped into the answer column.
""",
)
def length_outliers(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    usable = facts.readable & (facts.answer_chars > 0)
    if usable.sum() < 20:
        return
    lengths = facts.answer_chars[usable]
    p99, median = float(np.percentile(lengths, 99)), float(np.median(lengths))
    by_p99 = context.threshold("data.length_outliers.times_p99") * p99
    by_median = context.threshold("data.length_outliers.times_median") * median
    beyond = usable & (facts.answer_chars > min(by_p99, by_median)) & (facts.answer_chars > 500)
    rows = np.flatnonzero(beyond).tolist()
    if not rows or len(rows) > 0.01 * usable.sum():
        return
    longest = int(facts.answer_chars[beyond].max())
    yield Observation(
        title=f"{plural(len(rows), 'answer')} up to {longest / median:,.0f} times the median length "
        f"({some(rows)})",
        message=f"Median {median:,.0f} characters, p99 {p99:,.0f}, longest {longest:,}.",
        rows=rows,
        values={"median_characters": median, "p99_characters": p99, "longest_characters": longest},
    )
