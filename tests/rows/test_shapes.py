"""Every shape of row, its aliases, and what cannot be a conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.errors import InputError
from gradian.rows.row import Conversation, Row, Shape, Turn
from gradian.rows.shapes import conversation_of, shape_of


def conversation(fields: dict[str, Any]) -> Conversation:
    return conversation_of(Row(4, "train.jsonl", 7, fields))


def pairs(result: Conversation) -> list[tuple[str, Any]]:
    return [(turn.role, turn.content) for turn in result.turns]


A, B = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
UA = [("user", "a"), ("assistant", "b")]

SHAPES: list[tuple[dict[str, Any], Shape, list[tuple[str, Any]], int | None, bool]] = [
    ({"messages": [A, B]}, Shape.MESSAGES, UA, None, True),
    (
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        Shape.MESSAGES,
        UA,
        None,
        True,
    ),
    ({"conversation": [A, B], "id": 7}, Shape.MESSAGES, UA, None, True),
    ({"messages": json.dumps([A, B])}, Shape.MESSAGES, UA, None, True),
    ({"prompt": "a", "completion": "b"}, Shape.PROMPT_COMPLETION, UA, 1, False),
    ({"prompt": [A], "completion": [B]}, Shape.PROMPT_COMPLETION, UA, 1, True),
    ({"prompt": [A], "completion": "b"}, Shape.PROMPT_COMPLETION, UA, 1, True),
    ({"prompt": "a", "completion": B}, Shape.PROMPT_COMPLETION, UA, 1, True),
    ({"prompt": "a", "completion": "b", "messages": [B]}, Shape.PROMPT_COMPLETION, UA, 1, False),
    ({"prompt": None, "completion": None, "messages": [A, B]}, Shape.MESSAGES, UA, None, True),
    (
        {"prompt": "a", "completion": None},
        Shape.PROMPT_COMPLETION,
        [("user", "a"), ("assistant", "")],
        1,
        False,
    ),
    ({"question": "a", "answer": "b"}, Shape.QUESTION_ANSWER, UA, 1, True),
    ({"query": "a", "response": "b"}, Shape.QUESTION_ANSWER, UA, 1, True),
    ({"prompt": "a", "response": "b"}, Shape.QUESTION_ANSWER, UA, 1, True),
    ({"question": "a", "answer": 42}, Shape.QUESTION_ANSWER, [("user", "a"), ("assistant", "42")], 1, True),
    ({"input": "a", "output": "b"}, Shape.INPUT_OUTPUT, UA, 1, True),
    ({"instruction": "a", "input": "", "output": "b"}, Shape.INSTRUCTION, UA, 1, True),
    ({"instruction": "a", "output": "b"}, Shape.INSTRUCTION, UA, 1, True),
    ({"instruction": "a", "response": "b"}, Shape.INSTRUCTION, UA, 1, True),
    (
        {"instruction": "a", "input": "x", "output": "b", "system": "s"},
        Shape.INSTRUCTION,
        [("system", "s"), ("user", "a\nx"), ("assistant", "b")],
        2,
        True,
    ),
    (
        {"messages": [A, B], "system_prompt": "s"},
        Shape.MESSAGES,
        [("system", "s"), *UA],
        None,
        True,
    ),
    (
        {"messages": [{"role": "system", "content": "own"}, A], "system": "s"},
        Shape.MESSAGES,
        [("system", "own"), ("user", "a")],
        None,
        True,
    ),
    ({"messages": [A, B], "system": ""}, Shape.MESSAGES, UA, None, True),
]


@pytest.mark.parametrize(("fields", "shape", "turns", "prompt_turns", "templated"), SHAPES)
def test_shapes(
    fields: dict[str, Any],
    shape: Shape,
    turns: list[tuple[str, Any]],
    prompt_turns: int | None,
    templated: bool,
) -> None:
    assert shape_of(fields) is shape
    result = conversation(fields)
    assert result.shape is shape
    assert pairs(result) == turns
    assert result.prompt_turns == prompt_turns
    assert result.templated is templated
    assert result.plain_text is None


@pytest.mark.parametrize(
    ("fields", "shape", "text"),
    [
        ({"text": "a"}, Shape.TEXT, "a"),
        ({"text": None}, Shape.TEXT, ""),
        ({"text": "all", "instruction": "a", "output": "b"}, Shape.TEXT, "all"),
        ({"title": "a", "body": "b", "n": 3}, Shape.RAW, "a\nb"),
        ({"prompt": "p", "chosen": "c", "rejected": "r"}, Shape.RAW, "p\nc\nr"),
        ({"n": 3, "ok": True}, Shape.RAW, '{"n": 3, "ok": true}'),
        ({"text": 5}, Shape.RAW, '{"text": 5}'),
        ({}, Shape.RAW, "{}"),
    ],
)
def test_rows_without_turns(fields: dict[str, Any], shape: Shape, text: str) -> None:
    assert shape_of(fields) is shape
    result = conversation(fields)
    assert (result.shape, result.turns, result.plain_text, result.templated) == (shape, (), text, False)


@pytest.mark.parametrize(
    ("written", "role"),
    [
        ("human", "user"),
        (" User ", "user"),
        ("GPT", "assistant"),
        ("bot", "assistant"),
        ("model", "assistant"),
        ("chatgpt", "assistant"),
        ("ai", "assistant"),
        ("function_call", "assistant"),
        ("observation", "tool"),
        ("system", "system"),
        ("developer", "developer"),
        ("tool", "tool"),
        ("function", "function"),
        ("ipython", "ipython"),
        ("narrator", "narrator"),
    ],
)
def test_role_aliases(written: str, role: str) -> None:
    assert conversation({"messages": [{"role": written, "content": "x"}]}).turns[0].role == role


def test_what_a_message_holds_survives() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    calls = [{"function": {"name": "f", "arguments": "{}"}}]
    messages = [
        {"role": "user", "content": parts, "name": None},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "assistant", "tool_calls": calls},
    ]
    turns = conversation({"messages": messages, "tools": '[{"name": "f"}]'}).turns
    assert [turn.as_message() for turn in turns] == messages
    assert [turn.has_content for turn in turns] == [True, True, False]
    assert [turn.text for turn in turns] == ["a\nb", "", ""]


def test_tools_and_template_kwargs() -> None:
    tools = [{"name": "f"}]
    for written in (tools, json.dumps(tools), tools[0], json.dumps(tools[0])):
        assert conversation({"messages": [A, B], "tools": written}).tools == tuple(tools)
    for none in (None, "", "null"):
        assert conversation({"messages": [A, B], "tools": none}).tools is None
    result = conversation(
        {"messages": [A, B], "chat_template_kwargs": {"enable_thinking": False, "other": None}}
    )
    assert result.template_kwargs == {"enable_thinking": False}, "tables fill absent keys with null"


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"messages": "hello"}, "`messages` is text, not a list"),
        ({"messages": "[broken"}, "looks like a JSON list"),
        ({"messages": {"role": "user"}}, "`messages` is an object"),
        ({"messages": []}, "empty list"),
        ({"messages": [A, "b"]}, r"`messages\[1\]` is text"),
        ({"messages": [A, {"content": "b"}]}, r"`messages\[1\]` has no role: it has `content`"),
        ({"messages": [{}]}, "it has no key"),
        ({"messages": [{"role": 3, "content": "b"}]}, "has no role"),
        ({"messages": [{"role": " ", "content": "b"}]}, "has no role"),
        ({"messages": None}, "null"),
        ({"prompt": [], "completion": [B]}, "`prompt` is an empty list"),
        ({"prompt": [A], "completion": []}, "`completion` is an empty list"),
        ({"instruction": ["a"], "input": "b", "output": "c"}, "`instruction` is a list"),
        ({"messages": [A], "tools": "{"}, "`tools` is text that is not JSON"),
        ({"messages": [A], "tools": 3}, "`tools` is a number"),
        ({"messages": [A], "chat_template_kwargs": [1]}, "`chat_template_kwargs` is a list"),
        ({"input_ids": [1, 2], "labels": [1, 2]}, "already tokenised"),
    ],
)
def test_what_cannot_be_a_conversation_is_named(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what) as error:
        conversation(fields)
    assert str(error.value).startswith("train.jsonl:7: ")
    assert "fix:" in str(error.value)


def test_the_answer_of_a_conversation() -> None:
    many = conversation({"messages": [A, B, A, {"role": "assistant", "content": "last"}]})
    assert (many.answer_start, many.answer_text, many.prompt_text) == (3, "last", "a\nb\na")
    assert conversation({"messages": [A]}).answer_start == 1
    assert conversation({"prompt": [A, B, A], "completion": [B]}).answer_start == 3


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "from", "content", "value", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
SHAPE_KEYS = ("messages", "conversations", "prompt", "completion", "text", "question", "answer", "input")
OTHERS = ("output", "instruction", "system", "tools", "chat_template_kwargs", "input_ids", "other")
KEYS = st.sampled_from((*SHAPE_KEYS, *OTHERS))


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_record_is_a_conversation_or_a_clear_error(fields: dict[str, Any]) -> None:
    try:
        result = conversation(fields)
    except InputError:
        return
    assert result.shape is shape_of(fields)
    assert all(isinstance(turn, Turn) and turn.role == turn.role.strip().lower() for turn in result.turns)
    assert (result.plain_text is None) is bool(result.turns)
    assert result.answer_start <= len(result.turns)
