"""Conversations to token ids, loss mask and cut, as the trainer of a profile makes them.

The order of steps is TRL's (`SFTTrainer._prepare_dataset`): EOS text, rendering, ids, masks, then the length
limit, then rows without a target are left out. Other trainers differ in a rule of a step, not in the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gradian.rows.cutting import cut
from gradian.rows.items import answer_ids, prompt_ids
from gradian.rows.masks import (
    common_prefix_length,
    ends_with_stop,
    mask_of_encoding,
    surplus_bos,
    without_turn_ends,
)
from gradian.rows.profile import TrainerProfile
from gradian.rows.rendering import concatenated, render, render_with_spans
from gradian.rows.row import Conversation, TokenizedRow, Turn
from gradian.rows.spans import AssistantSpans, spans_by_prefix
from gradian.rows.template import TemplateRenderError
from gradian.rows.tokenizer import Tokenizer

__all__ = ["answer_ids", "prompt_ids", "render", "roles_alternate", "tokenize", "tokenize_many"]

Encoded = TypeVar("Encoded")

_BATCH_ROWS = 512
#: These write every row with a template; the others concatenate a prompt and a completion that are strings.
_TEMPLATE_EVERY_PAIR = frozenset({"llama_factory", "torchtune"})


@dataclass(frozen=True)
class _Plan:
    """A conversation as text, with what the ids are needed for.

    `spans` is None where the row has no assistant turns to find; `prompt` None where the row does not split.
    """

    text: str
    prompt: str | None
    special: bool
    templated: bool
    spans: AssistantSpans | None
    dropped: str | None


def tokenize(conversation: Conversation, tokenizer: Tokenizer, profile: TrainerProfile) -> TokenizedRow:
    """A conversation as the trainer saw it. Errors as `render`."""
    return tokenize_many([conversation], tokenizer, profile)[0]


def tokenize_many(
    conversations: Iterable[Conversation],
    tokenizer: Tokenizer,
    profile: TrainerProfile,
    *,
    wheres: Sequence[str] | None = None,
) -> list[TokenizedRow]:
    """Conversations as the trainer saw them, in order; the same as one by one, faster.

    Args:
        wheres: `Row.where` of each conversation, so that an error names the row. Errors as `render`.
    """
    rows: list[TokenizedRow] = []
    batch: list[_Plan] = []
    for index, conversation in enumerate(conversations):
        try:
            batch.append(_plan(conversation, tokenizer, profile))
        except TemplateRenderError as error:
            if error.where is None and wheres is not None:
                error.where = wheres[index]
            raise
        if len(batch) == _BATCH_ROWS:
            rows.extend(_tokenized(batch, tokenizer, profile))
            batch = []
    rows.extend(_tokenized(batch, tokenizer, profile))
    return rows


def _plan(conversation: Conversation, tokenizer: Tokenizer, profile: TrainerProfile) -> _Plan:
    dropped = (
        "role order" if profile.role_order == "skip" and not roles_alternate(conversation.turns) else None
    )
    prompt_turns = conversation.prompt_turns
    if conversation.turns and profile.trainer in _TEMPLATE_EVERY_PAIR:
        conversation = replace(conversation, templated=True)
    if not conversation.templated:
        text = render(conversation, tokenizer)
        eos = profile.eos_token or tokenizer.eos_token
        prompt = None if prompt_turns is None else concatenated(conversation.turns[:prompt_turns])
        answer = text if prompt is None else text[len(prompt) :]
        if profile.end_of_text == "append_text" and eos is not None and not answer.endswith(eos):
            text += eos
        return _Plan(text, prompt, True, False, None, dropped)

    def rendered(turns: Sequence[Turn], generation_prompt: bool) -> str:
        return render(
            conversation,
            tokenizer,
            turns=turns,
            add_generation_prompt=generation_prompt,
            normalize_messages=profile.normalizes_messages,
        )

    if profile.assistant_mask == "markers" and profile.loss_on == "assistant":
        text, blocks = render_with_spans(
            conversation, tokenizer, normalize_messages=profile.normalizes_messages
        )
        spans: AssistantSpans | None = AssistantSpans(blocks)
    else:
        text = rendered(conversation.turns, False)
        spans = None
        one_answer = (
            prompt_turns == len(conversation.turns) - 1 and conversation.turns[-1].role == "assistant"
        )
        wanted = profile.loss_on == "assistant" or profile.overflow == "truncate_proportional"
        if wanted and not one_answer:  # else the completion is the only answer, and the prompt's ids show it
            tokens = tokenizer.added_tokens
            stops = [tokens[i] for i in sorted(tokenizer.stop_ids & tokens.keys())]
            special = [tokens[i] for i in sorted(tokenizer.special_ids & tokens.keys())]
            spans = spans_by_prefix(text, conversation.turns, rendered, stops, special)
    prompt = None
    if prompt_turns:
        prompt = rendered(conversation.turns[:prompt_turns], True)
    return _Plan(text, prompt, profile.chat_adds_special_tokens, True, spans, dropped)


def _tokenized(
    plans: Sequence[_Plan], tokenizer: Tokenizer, profile: TrainerProfile
) -> Iterable[TokenizedRow]:
    """One batch. Offsets are asked for only where assistant turns must be found: they cost."""
    spanned = [plan for plan in plans if plan.spans is not None]
    plain = [plan for plan in plans if plan.spans is None]
    split = [plan for plan in plans if plan.prompt is not None]
    encodings = iter(_in_order(tokenizer.encode_with_offsets, [(p.text, p.special) for p in spanned]))
    plain_ids = iter(_in_order(tokenizer.encode_batch, [(p.text, p.special) for p in plain]))
    prompt_ids = iter(_in_order(tokenizer.encode_batch, [(p.prompt or "", p.special) for p in split]))
    for plan in plans:
        prompt = None if plan.prompt is None else next(prompt_ids)
        if plan.spans is None:
            yield _row(plan, next(plain_ids), None, prompt, tokenizer, profile)
        else:
            encoding = next(encodings)
            answers = mask_of_encoding(encoding, plan.spans.spans)
            yield _row(plan, encoding.ids, answers, prompt, tokenizer, profile)


def _in_order(
    encode: Callable[[Sequence[str], bool], list[Encoded]], texts: Sequence[tuple[str, bool]]
) -> list[Encoded]:
    """Encode texts of which some get special tokens and some do not, in two calls."""
    with_special = iter(encode([text for text, special in texts if special], True))
    without = iter(encode([text for text, special in texts if not special], False))
    return [next(with_special if special else without) for _, special in texts]


def _row(
    plan: _Plan,
    ids: list[int],
    answers: NDArray[np.bool_] | None,
    prompt: list[int] | None,
    tokenizer: Tokenizer,
    profile: TrainerProfile,
) -> TokenizedRow:
    """Ids and masks of one row: second BOS, prompt boundary, loss mask, EOS, length limit, in this order."""
    eos_id = tokenizer.eos_token_id if profile.eos_token is None else tokenizer.id_of(profile.eos_token)
    stop_ids = tokenizer.stop_ids if eos_id is None else tokenizer.stop_ids | {eos_id}
    mismatch = plan.spans is not None and plan.spans.prompt_differs
    if profile.removes_double_bos:
        surplus = surplus_bos(ids, tokenizer.bos_token_id)
        ids, answers = ids[surplus:], None if answers is None else answers[surplus:]
        prompt = None if prompt is None else prompt[surplus_bos(prompt, tokenizer.bos_token_id) :]
    completion = np.ones(len(ids), dtype=np.bool_)
    if prompt is not None:
        shared = common_prefix_length(prompt, ids)
        completion[:shared] = False
        mismatch = mismatch or shared < len(prompt)

    if profile.loss_on == "everything":
        loss = np.ones(len(ids), dtype=np.bool_)
    elif profile.loss_on == "completion" or answers is None:
        loss = completion
    else:
        loss = answers & completion
    if profile.loss_on == "assistant" and plan.templated and not profile.train_on_turn_end:
        loss = without_turn_ends(loss, ids, stop_ids, tokenizer)
    if answers is None:
        answers = completion if prompt is not None else np.zeros(len(ids), dtype=np.bool_)

    if profile.end_of_text in ("append_id", "append_if_room") and eos_id is not None and ids[-1:] != [eos_id]:
        last = bool(loss[-1]) if len(loss) else True  # EOS is a target where what it ends is one
        ids = [*ids, eos_id]
        loss, answers = np.append(loss, last), np.append(answers, last)
    full = np.asarray(ids, dtype=np.int32)
    overflow = profile.overflow
    if profile.end_of_text == "append_if_room" and overflow == "drop":
        overflow = "truncate_end"  # the tokenizer call has cut the row before the length filter sees it
    kept, kept_loss = cut(full, loss, answers, profile.max_length, overflow, eos_id)
    too_long = overflow == "drop" and profile.max_length is not None and len(full) > profile.max_length
    nothing_to_learn = profile.drops_fully_masked and not kept_loss.any()
    return TokenizedRow(
        ids=kept,
        loss_mask=kept_loss,
        full_tokens=len(full),
        full_loss_tokens=int(loss.sum()),
        ends_with_stop=ends_with_stop(ids, loss, stop_ids, tokenizer),
        dropped=plan.dropped
        or ("too long" if too_long else "no token to learn" if nothing_to_learn else None),
        boundary_mismatch=mismatch,
    )


def roles_alternate(turns: Sequence[Turn]) -> bool:
    """LLaMA-Factory's rule: after a system turn, (user or tool) and assistant in turn, an even number.

    True for a row without turns.
    """
    rest = turns[1:] if turns and turns[0].role == "system" else turns
    asks, answers = {"user", "tool", "observation", "ipython"}, {"assistant", "function"}
    return len(rest) % 2 == 0 and all(
        turn.role in (answers if index % 2 else asks) for index, turn in enumerate(rest)
    )
