"""An eval item as ids: what a model is asked, and what an answer to it is."""

from __future__ import annotations

from collections.abc import Sequence

from gradian.errors import InputError
from gradian.rows.rendering import concatenated, render
from gradian.rows.row import Conversation, Turn
from gradian.rows.tokenizer import Tokenizer


def prompt_ids(conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
    """The ids from which a model answers an eval item: its prompt, with the generation prompt.

    Raises:
        InputError: the item has no prompt. Others as `render`.
    """
    prompt = _prompt_turns(conversation)
    if conversation.templated:
        text = _render_modern(conversation, tokenizer, prompt, generation_prompt=True)
        return tokenizer.encode(text, add_special_tokens=False)
    return _without_added_eos(tokenizer.encode(concatenated(prompt), add_special_tokens=True), tokenizer)


def answer_ids(conversation: Conversation, tokenizer: Tokenizer, answer: str) -> list[int]:
    """The ids of an answer as they follow `prompt_ids`, ending with the stop token and nothing after it.

    Where the prompt's ids are no prefix of the whole (a token merges across the boundary, or the template
    renders the prompt alone otherwise) the answer is tokenised on its own. Errors as `prompt_ids`.
    """
    prompt = prompt_ids(conversation, tokenizer)
    turns = (*_prompt_turns(conversation), Turn("assistant", answer))
    if conversation.templated:
        text = _render_modern(conversation, tokenizer, turns, generation_prompt=False)
        whole = tokenizer.encode(text, add_special_tokens=False)
        stop = tokenizer.eos_token_id if tokenizer.turn_end_id is None else tokenizer.turn_end_id
    else:
        text = concatenated(turns)
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
    """Without the EOS of the post-processor: a prompt that ends so would be answered with nothing."""
    return ids[:-1] if tokenizer.adds_eos and ids[-1:] == [tokenizer.eos_token_id] else ids


def _up_to_stop(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """Ids up to the first of the stop tokens at their end (Phi writes end of turn, line break and EOS)."""
    stop = None
    for index in range(len(ids) - 1, -1, -1):
        if ids[index] in tokenizer.stop_ids:
            stop = index
        elif tokenizer.decode([ids[index]]).strip():
            break
    return ids if stop is None else ids[: stop + 1]
