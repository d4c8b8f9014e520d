"""A conversation as the text that is tokenised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradian.errors import ModelError
from gradian.rows.row import Conversation, Turn
from gradian.rows.template import ChatTemplate
from gradian.rows.tokenizer import Tokenizer

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
        return concatenated(chosen)
    template = template_of(conversation, tokenizer)
    return template.render(
        _messages(chosen, normalize_messages), **_variables(conversation, add_generation_prompt)
    )


def _variables(conversation: Conversation, add_generation_prompt: bool) -> dict[str, Any]:
    """The template's variables; a row's `chat_template_kwargs` may replace its tools, never its messages."""
    variables = {"tools": conversation.tools, **conversation.template_kwargs}
    variables.pop("messages", None)
    variables["add_generation_prompt"] = add_generation_prompt
    return variables


def concatenated(turns: Sequence[Turn]) -> str:
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


def template_of(conversation: Conversation, tokenizer: Tokenizer) -> ChatTemplate:
    template = tokenizer.template_for(conversation.tools)
    if template is None:
        raise ModelError(
            "the tokenizer has no chat template",
            where=tokenizer.name_or_path,
            why=f"rows in the form `{conversation.shape.value}` are rendered with one",
            fix="pass the tokenizer that the run used (with chat_template.jinja), or rows as `text`",
        )
    return template


def render_with_spans(
    conversation: Conversation, tokenizer: Tokenizer, *, normalize_messages: bool = False
) -> tuple[str, list[tuple[int, int]]]:
    """The text of a templated conversation, and where its generation blocks lie. Errors as `render`."""
    return template_of(conversation, tokenizer).render_with_spans(
        _messages(conversation.turns, normalize_messages), **_variables(conversation, False)
    )
