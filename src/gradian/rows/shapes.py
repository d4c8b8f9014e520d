"""A record becomes a conversation: which keys it has decides its shape.

Knows the forms in which people write training rows; knows nothing of files, templates or tokens. Where a
record fits several shapes the order is that of TRL's preparation (`prompt` before `messages` before `text`),
then the forms that need a mapping in every trainer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gradian.errors import InputError
from gradian.rows.row import Conversation, Row, Shape, Turn

ROLE_ALIASES: Mapping[str, str] = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "ai": "assistant",
    "function_call": "assistant",  # ShareGPT: the call that the model writes
    "observation": "tool",  # ShareGPT: what the tool returned
}
KNOWN_ROLES = frozenset(
    {"system", "developer", "user", "assistant", "tool", "function", "observation", "ipython"}
)
MESSAGE_KEYS = ("messages", "conversations", "conversation")
SYSTEM_KEYS = ("system", "system_prompt")
#: (question, answer) columns that every trainer needs a mapping for.
QUESTION_ANSWER_KEYS = (
    ("question", "answer"),
    ("query", "response"),
    ("prompt", "response"),
    ("prompt", "answer"),
    ("prompt", "output"),
    ("question", "response"),
)
INSTRUCTION_ANSWER_KEYS = ("output", "response", "answer", "completion")


def shape_of(fields: Mapping[str, Any]) -> Shape:
    """The form in which a record is written. A key whose value is null counts only when nothing else fits."""
    filled = {key for key, value in fields.items() if value is not None}
    shape = _shape_of_keys(filled, fields)
    return shape if shape is not Shape.RAW else _shape_of_keys(set(fields), fields)


def _shape_of_keys(keys: set[str], fields: Mapping[str, Any]) -> Shape:
    if {"prompt", "completion"} <= keys:
        return Shape.PROMPT_COMPLETION
    if any(key in keys for key in MESSAGE_KEYS):
        return Shape.MESSAGES
    if "text" in keys and isinstance(fields["text"], str | None):
        return Shape.TEXT
    if "instruction" in keys and any(key in keys for key in INSTRUCTION_ANSWER_KEYS):
        return Shape.INSTRUCTION
    if any(question in keys and answer in keys for question, answer in QUESTION_ANSWER_KEYS):
        return Shape.QUESTION_ANSWER
    if {"input", "output"} <= keys:
        return Shape.INPUT_OUTPUT
    return Shape.RAW


def conversation_of(row: Row) -> Conversation:
    """The row as a conversation.

    Raises:
        InputError: the fields cannot be a conversation at all (`messages` is no list, a message has no role).
    """
    fields = row.fields
    shape = shape_of(fields)
    if shape is Shape.PROMPT_COMPLETION:
        return _prompt_completion(row)
    if shape is Shape.MESSAGES:
        return _messages(row)
    if shape is Shape.TEXT:
        return Conversation(shape, (), templated=False, plain_text=fields["text"] or "")
    if shape is Shape.RAW:
        return Conversation(shape, (), templated=False, plain_text=_raw_text(row))
    if shape is Shape.INSTRUCTION:
        answer_key = _first_key(fields, INSTRUCTION_ANSWER_KEYS)
        question_key = "instruction"
        question: Any = fields[question_key]
        if fields.get("input"):
            question = f"{_text(row, 'instruction')}\n{_text(row, 'input')}"
    elif shape is Shape.QUESTION_ANSWER:
        question_key, answer_key = _question_answer_keys(fields)
        question = fields[question_key]
    else:
        question_key, answer_key = "input", "output"
        question = fields[question_key]
    asked = (*_system_turns(fields), *_turns_of(row, question, "user", question_key))
    answered = _turns_of(row, fields[answer_key], "assistant", answer_key)
    return _split(row, shape, (*asked, *answered), len(asked))


def _prompt_completion(row: Row) -> Conversation:
    prompt, completion = row.fields["prompt"], row.fields["completion"]
    templated = not all(value is None or isinstance(value, str) for value in (prompt, completion))
    asked = _turns_of(row, prompt, "user", "prompt")
    answered = _turns_of(row, completion, "assistant", "completion")
    system = () if asked[0].role == "system" else _system_turns(row.fields)
    turns = (*system, *asked, *answered)
    return _split(row, Shape.PROMPT_COMPLETION, turns, len(system) + len(asked), templated=templated)


def _messages(row: Row) -> Conversation:
    key = _first_key(row.fields, MESSAGE_KEYS)
    turns = _turns_of_list(row, row.fields[key], key)
    if turns[0].role != "system":
        turns = (*_system_turns(row.fields), *turns)
    return _split(row, Shape.MESSAGES, turns, None)


def _split(
    row: Row, shape: Shape, turns: tuple[Turn, ...], prompt_turns: int | None, *, templated: bool = True
) -> Conversation:
    kwargs = row.fields.get("chat_template_kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise _refusal(row, f"`chat_template_kwargs` is {_kind(kwargs)}, not an object")
    return Conversation(
        shape=shape,
        turns=turns,
        prompt_turns=prompt_turns,
        templated=templated,
        tools=_tools(row),
        template_kwargs={key: value for key, value in kwargs.items() if value is not None},
    )


def _turns_of(row: Row, value: Any, role: str, key: str) -> tuple[Turn, ...]:
    """A string is one turn of `role`; a list (or one object) is messages."""
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, list | tuple):
        return _turns_of_list(row, value, key)
    if value is None or isinstance(value, str):
        return (Turn(role, value or ""),)
    if isinstance(value, bool | int | float):  # a column of labels or numbers
        return (Turn(role, json.dumps(value)),)
    raise _refusal(row, f"`{key}` is {_kind(value)}, neither text nor a list of messages")


def _turns_of_list(row: Row, value: Any, key: str) -> tuple[Turn, ...]:
    if isinstance(value, str) and value.lstrip().startswith("["):  # a list in a CSV cell
        try:
            value = json.loads(value)
        except ValueError as error:
            raise _refusal(row, f"`{key}` is text that looks like a JSON list but is none: {error}") from None
    if not isinstance(value, list | tuple):
        raise _refusal(row, f"`{key}` is {_kind(value)}, not a list of messages")
    if not value:
        raise _refusal(row, f"`{key}` is an empty list")
    return tuple(_turn(row, message, f"{key}[{index}]") for index, message in enumerate(value))


def _turn(row: Row, message: Any, where: str) -> Turn:
    if not isinstance(message, Mapping):
        raise _refusal(row, f"`{where}` is {_kind(message)}, not an object with a role and a content")
    role_key = _first_key(message, ("role", "from"))
    role = message.get(role_key)
    if not isinstance(role, str) or not role.strip():
        found = ", ".join(f"`{key}`" for key in message) or "no key"
        raise _refusal(row, f"`{where}` has no role: it has {found}")
    content_key = _first_key(message, ("content", "value"))
    name = role.strip().lower()
    extra = {key: value for key, value in message.items() if key not in (role_key, content_key)}
    return Turn(
        role=ROLE_ALIASES.get(name, name),
        content=message.get(content_key),
        extra=extra,
        has_content=content_key in message,
    )


def _system_turns(fields: Mapping[str, Any]) -> tuple[Turn, ...]:
    for key in SYSTEM_KEYS:
        value = fields.get(key)
        if isinstance(value, str) and value.strip():
            return (Turn("system", value),)
    return ()


def _tools(row: Row) -> tuple[Any, ...] | None:
    tools = row.fields.get("tools")
    if isinstance(tools, str):
        if not tools.strip():
            return None
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise _refusal(row, f"`tools` is text that is not JSON: {error}") from None
    if tools is None:
        return None
    if isinstance(tools, Mapping):
        tools = [tools]
    if not isinstance(tools, list | tuple):
        raise _refusal(row, f"`tools` is {_kind(tools)}, not a list of tool definitions")
    return tuple(tools)


def _raw_text(row: Row) -> str:
    if "input_ids" in row.fields:
        raise InputError(
            "the row is already tokenised (`input_ids`)",
            where=row.where,
            why="Gradian tokenises rows itself, so that it can follow the trainer and show the text",
            fix="pass the rows as they were before tokenising",
        )
    texts = [value for value in row.fields.values() if isinstance(value, str) and value]
    if texts:
        return "\n".join(texts)
    return json.dumps(dict(row.fields), ensure_ascii=False, default=str)


def _text(row: Row, key: str) -> str:
    value = row.fields[key]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _refusal(row, f"`{key}` is {_kind(value)}, not text")
    return value


def _question_answer_keys(fields: Mapping[str, Any]) -> tuple[str, str]:
    pairs = [pair for pair in QUESTION_ANSWER_KEYS if pair[0] in fields and pair[1] in fields]
    filled = [pair for pair in pairs if fields[pair[0]] is not None and fields[pair[1]] is not None]
    return (filled or pairs)[0]


def _first_key(fields: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The first of `keys` that holds a value, else the first that exists, else the first."""
    for key in keys:
        if fields.get(key) is not None:
            return key
    return next((key for key in keys if key in fields), keys[0])


def _refusal(row: Row, what: str) -> InputError:
    return InputError(
        what,
        where=row.where,
        why="the row cannot be read as a conversation",
        fix="mend or remove the row; docs/rows.md shows every form that is read",
    )


def _kind(value: Any) -> str:
    """What a value is, in JSON's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, Mapping):
        return "an object"
    return f"a {type(value).__name__}"
