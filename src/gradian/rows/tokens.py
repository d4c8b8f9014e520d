"""Conversations to token ids, loss mask and cut, as the trainer of a profile makes them.

The order of steps is TRL's (`SFTTrainer._prepare_dataset`): EOS text, rendering, ids, masks, then the length limit,
then rows without a target are left out. Other trainers differ in a rule of a step, never in the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradian.errors import InputError, ModelError
from gradian.rows.cutting import cut
from gradian.rows.profile import TrainerProfile
from gradian.rows.row import Conversation, TokenizedRow, Turn
from gradian.rows.spans import AssistantSpans, spans_by_prefix
from gradian.rows.template import ChatTemplate
from gradian.rows.tokenizer import Tokenizer

Encoded = TypeVar("Encoded")

_BATCH_ROWS = 512
#: Names under which a message's reasoning is passed; the first is the one that templates read.
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def render(
    conversation: Conversation,
    tokenizer: Tokenizer,
    *,
    add_generation_prompt: bool = False,
    turns: Sequence[Turn] | None = None,
    normalize_messages: bool = False,
) -> str:
    """The text of a conversation, or of other `turns` in its place.

    Args:
        add_generation_prompt: end with the opening of an assistant turn.
        turns: what to render instead of the conversation's own turns (a prefix of them).
        normalize_messages: drop null keys and fill `reasoning_content`, as recent transformers do.

    Raises:
        TemplateRenderError: the template refuses the conversation.
        ModelError: the row needs a chat template and the tokenizer has none.
    """
    chosen = conversation.turns if turns is None else turns
    if not conversation.templated:
        if conversation.plain_text is not None:
            return conversation.plain_text
        return _concatenated(chosen)
    template = _template_of(conversation, tokenizer)
    text: str = template.render(
        _messages(chosen, normalize_messages),
        tools=conversation.tools,
        **{**conversation.template_kwargs, "add_generation_prompt": add_generation_prompt},
    )
    return text


def _concatenated(turns: Sequence[Turn]) -> str:
    """Prompt and completion as they stand: trainers that concatenate strings read no system column."""
    return "".join(turn.text for turn in turns if turn.role != "system")


def _messages(turns: Sequence[Turn], normalize: bool) -> list[dict[str, Any]]:
    messages = [turn.as_message() for turn in turns]
    if not normalize:
        return messages
    return [_normalized(message) for message in messages]


def _normalized(message: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in message.items() if value is not None}
    reasoning = next((kept[key] for key in _REASONING_KEYS if key in kept), None)
    if reasoning is None:
        return kept
    return {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def _template_of(conversation: Conversation, tokenizer: Tokenizer) -> ChatTemplate:
    template = tokenizer.template_for(conversation.tools)
    if template is None:
        raise ModelError(
            "the tokenizer has no chat template",
            where=tokenizer.name_or_path,
            why=f"rows in the form `{conversation.shape.value}` are rendered with one",
            fix="pass the tokenizer that the run used (the folder with chat_template.jinja), or rows as `text`",
        )
    return template


@dataclass(frozen=True)
class _Plan:
    """A conversation as text, with what the ids are needed for.

    `spans` is None where the row has no assistant turns to find; `prompt` None where the row does not split.
    """

    text: str
    prompt: str | None
    special: bool
    spans: AssistantSpans | None
    dropped: str | None


def tokenize(conversation: Conversation, tokenizer: Tokenizer, profile: TrainerProfile) -> TokenizedRow:
    """A conversation as the trainer saw it. Errors as `render`."""
    return tokenize_many([conversation], tokenizer, profile)[0]


def tokenize_many(
    conversations: Iterable[Conversation], tokenizer: Tokenizer, profile: TrainerProfile
) -> list[TokenizedRow]:
    """Conversations as the trainer saw them, in order; the same as one by one, faster. Errors as `render`."""
    rows: list[TokenizedRow] = []
    batch: list[_Plan] = []
    for conversation in conversations:
        batch.append(_plan(conversation, tokenizer, profile))
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
    if not conversation.templated:
        text = render(conversation, tokenizer)
        eos = profile.eos_token or tokenizer.eos_token
        if profile.end_of_text == "append_text" and eos is not None and not text.endswith(eos):
            text += eos
        prompt = None if prompt_turns is None else _concatenated(conversation.turns[:prompt_turns])
        return _Plan(text, prompt, True, None, dropped)

    def rendered(turns: Sequence[Turn], generation_prompt: bool) -> str:
        return render(
            conversation,
            tokenizer,
            turns=turns,
            add_generation_prompt=generation_prompt,
            normalize_messages=profile.normalizes_messages,
        )

    if profile.assistant_mask == "markers" and profile.loss_on == "assistant":
        text, blocks = _template_of(conversation, tokenizer).render_with_spans(
            _messages(conversation.turns, profile.normalizes_messages),
            tools=conversation.tools,
            **{**conversation.template_kwargs, "add_generation_prompt": False},
        )
        spans: AssistantSpans | None = AssistantSpans(blocks)
    else:
        text = rendered(conversation.turns, False)
        spans = None
        if profile.loss_on == "assistant" or profile.overflow == "truncate_proportional":
            stops = [
                tokenizer.added_tokens[i] for i in sorted(tokenizer.stop_ids) if i in tokenizer.added_tokens
            ]
            spans = spans_by_prefix(text, conversation.turns, rendered, stops)
    prompt = None
    if prompt_turns:
        prompt = rendered(conversation.turns[:prompt_turns], True)
    return _Plan(text, prompt, profile.chat_adds_special_tokens, spans, dropped)


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
            answers = mask_of_spans(encoding.offsets, plan.spans.spans)
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
    surplus = _surplus_bos(ids, tokenizer.bos_token_id) if profile.removes_double_bos else 0
    ids = ids[surplus:]
    answers = np.zeros(len(ids), dtype=np.bool_) if answers is None else answers[surplus:]
    completion = np.ones(len(ids), dtype=np.bool_)
    mismatch = plan.spans is not None and plan.spans.prompt_differs
    if prompt is not None:
        surplus = _surplus_bos(prompt, tokenizer.bos_token_id) if profile.removes_double_bos else 0
        shared = _common_prefix_length(prompt[surplus:], ids)
        completion[:shared] = False
        mismatch = mismatch or shared < len(prompt) - surplus

    if profile.loss_on == "everything":
        loss = np.ones(len(ids), dtype=np.bool_)
    elif profile.loss_on == "completion" or plan.spans is None:
        loss = completion
    else:
        loss = answers & completion
        if not profile.train_on_turn_end:
            loss = _without_turn_ends(loss, ids, stop_ids, tokenizer)

    if profile.end_of_text in ("append_id", "append_if_room") and eos_id is not None and ids[-1:] != [eos_id]:
        # EOS is a target where what it ends is one.
        last = bool(loss[-1]) if len(loss) else True
        ids = [*ids, eos_id]
        loss, answers = np.append(loss, last), np.append(answers, last)

    overflow = profile.overflow
    if profile.end_of_text == "append_if_room" and overflow == "drop":
        overflow = "truncate_end"  # the tokenizer call has cut the row before the length filter sees it
    full = np.asarray(ids, dtype=np.int32)
    kept, kept_loss = cut(full, loss, answers, profile.max_length, overflow, eos_id)
    dropped = plan.dropped
    if (
        dropped is None
        and overflow == "drop"
        and profile.max_length is not None
        and len(full) > profile.max_length
    ):
        dropped = "too long"
    if dropped is None and profile.drops_fully_masked and not kept_loss.any():
        dropped = "no token to learn"
    return TokenizedRow(
        ids=kept,
        loss_mask=kept_loss,
        full_tokens=len(full),
        full_loss_tokens=int(loss.sum()),
        ends_with_stop=_ends_with_stop(ids, loss, stop_ids, tokenizer),
        dropped=dropped,
        boundary_mismatch=mismatch,
    )


def mask_of_spans(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """True for every token that overlaps a span: bool `[tokens]`, as `return_assistant_tokens_mask` has it."""
    mask = np.zeros(len(offsets), dtype=np.bool_)
    current = 0
    for index, (start, end) in enumerate(offsets):
        while current < len(spans) and start >= spans[current][1]:
            current += 1
        if current == len(spans):
            break
        mask[index] = end > spans[current][0]
    return mask


def roles_alternate(turns: Sequence[Turn]) -> bool:
    """LLaMA-Factory's rule: after a system turn, (user or tool) and assistant in turn, an even number.

    True for a row without turns.
    """
    rest = turns[1:] if turns and turns[0].role == "system" else turns
    asks, answers = {"user", "tool", "observation", "ipython"}, {"assistant", "function"}
    return len(rest) % 2 == 0 and all(
        turn.role in (answers if index % 2 else asks) for index, turn in enumerate(rest)
    )


def prompt_ids(conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
    """The ids from which a model answers an eval item: the prompt, with the generation prompt where templated.

    Raises:
        InputError: the item has no prompt. Others as `render`.
    """
    prompt = _prompt_turns(conversation)
    if conversation.templated:
        text = _render_modern(conversation, tokenizer, prompt, generation_prompt=True)
        return tokenizer.encode(text, add_special_tokens=False)
    return _without_added_eos(tokenizer.encode(_concatenated(prompt), add_special_tokens=True), tokenizer)


def answer_ids(conversation: Conversation, tokenizer: Tokenizer, answer: str) -> list[int]:
    """The ids of an answer as they follow `prompt_ids`, ending with the stop token and nothing after it.

    Where the prompt's ids are no prefix of the whole (a token merges across the boundary, the template renders the
    prompt alone otherwise) the answer is tokenised on its own. Errors as `prompt_ids`.
    """
    prompt = prompt_ids(conversation, tokenizer)
    turns = (*_prompt_turns(conversation), Turn("assistant", answer))
    if conversation.templated:
        text = _render_modern(conversation, tokenizer, turns, generation_prompt=False)
        whole = tokenizer.encode(text, add_special_tokens=False)
        stop = tokenizer.eos_token_id if tokenizer.turn_end_id is None else tokenizer.turn_end_id
    else:
        text = _concatenated(turns)
        whole = _without_added_eos(tokenizer.encode(text, add_special_tokens=True), tokenizer)
        stop = tokenizer.eos_token_id
    if whole[: len(prompt)] == prompt:
        ids = whole[len(prompt) :]
    else:
        ids = tokenizer.encode(answer, add_special_tokens=False)
    if conversation.templated:
        ids = _up_to_stop(ids, tokenizer)
    if stop is None or (ids and ids[-1] in tokenizer.stop_ids):
        return ids
    return [*ids, stop]


def _prompt_turns(conversation: Conversation) -> tuple[Turn, ...]:
    turns = conversation.turns[: conversation.answer_start]
    if not turns:
        raise InputError(
            "the item has no prompt",
            why=f"its form is `{conversation.shape.value}`, which does not say where the answer begins"
            if conversation.plain_text is not None
            else "it begins with an assistant turn",
            fix="write eval items as prompt and completion, question and answer, or messages",
        )
    return turns


def _render_modern(
    conversation: Conversation, tokenizer: Tokenizer, turns: Sequence[Turn], *, generation_prompt: bool
) -> str:
    """Text for generation: with today's message rules, whatever the trainer's were."""
    return render(
        conversation,
        tokenizer,
        turns=turns,
        add_generation_prompt=generation_prompt,
        normalize_messages=True,
    )


def _without_added_eos(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """Without the EOS that the post-processor writes: a prompt that ends so would be answered with nothing."""
    return ids[:-1] if tokenizer.adds_eos and ids[-1:] == [tokenizer.eos_token_id] else ids


def _up_to_stop(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """Ids up to the last stop token, when only white space follows it."""
    last = next((i for i in range(len(ids) - 1, -1, -1) if ids[i] in tokenizer.stop_ids), None)
    if last is None or tokenizer.decode(ids[last + 1 :]).strip():
        return ids
    return ids[: last + 1]


def _common_prefix_length(ids: Sequence[int], other: Sequence[int]) -> int:
    length = min(len(ids), len(other))
    return next((i for i in range(length) if ids[i] != other[i]), length)


def _surplus_bos(ids: Sequence[int], bos_id: int | None) -> int:
    """How many leading BOS ids are followed by another."""
    if bos_id is None:
        return 0
    leading = next((i for i, token_id in enumerate(ids) if token_id != bos_id), len(ids))
    return max(leading - 1, 0)


def _ends_with_stop(
    ids: Sequence[int], loss: NDArray[np.bool_], stop_ids: frozenset[int], tokenizer: Tokenizer
) -> bool:
    """The last target, white space aside, ends the answer."""
    for index in np.flatnonzero(loss)[::-1].tolist():
        if ids[index] in stop_ids:
            return True
        if tokenizer.decode([ids[index]]).strip():
            return False
    return False


def _without_turn_ends(
    loss: NDArray[np.bool_], ids: Sequence[int], stop_ids: frozenset[int], tokenizer: Tokenizer
) -> NDArray[np.bool_]:
    """The mask without the stop token, and what follows it, at the end of every trained turn."""
    result: NDArray[np.bool_] = loss.copy()
    edges = np.flatnonzero(np.diff(np.concatenate(([False], loss, [False])).astype(np.int8)))
    for start, end in edges.reshape(-1, 2).tolist():
        last = end - 1
        while last >= start and ids[last] not in stop_ids and not tokenizer.decode([ids[last]]).strip():
            last -= 1
        if last >= start and ids[last] in stop_ids:
            result[last:end] = False
    return result
