"""What a row is known by: the texts that rows are compared by, and their hashes."""

from __future__ import annotations

import hashlib
import json

from gradian.audit.forms import normalised
from gradian.rows.row import Conversation, Row

SYSTEM_ROLES = ("system", "developer")


def hash_of(text: str) -> int:
    """64-bit BLAKE2b of a text; lone surrogates are hashed as they stand."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def prompt_and_answer(conversation: Conversation) -> tuple[str, str]:
    """The two texts that rows are compared by: without the system turn, which training and eval rows often do
    not share.

    Tool calls are part of the answer and images and tools of the prompt: without them two rows that call
    different functions, or ask the same of different images, would look alike.
    """
    start = conversation.answer_start
    return with_extras(conversation, start, without_system(conversation, start), conversation.answer_text)


def without_system(conversation: Conversation, start: int) -> str:
    """The text of the turns before `start`, but for system turns."""
    return "\n".join(turn.text for turn in conversation.turns[:start] if turn.role not in SYSTEM_ROLES)


def with_extras(conversation: Conversation, start: int, prompt: str, answer: str) -> tuple[str, str]:
    """Prompt and answer with what is no text: tool calls after the answer (which begins at turn `start`),
    digests of images and tools after the prompt."""
    for index, turn in enumerate(conversation.turns):
        if turn.extra and index >= start:
            calls = turn.extra.get("tool_calls") or turn.extra.get("function_call")
            if calls:
                answer += "\n" + json.dumps(calls, sort_keys=True, ensure_ascii=False, default=str)
        if isinstance(turn.content, list):
            parts = [part for part in turn.content if isinstance(part, dict) and part.get("type") != "text"]
            if parts:
                prompt += f"\n{hash_of(json.dumps(parts, sort_keys=True, default=str)):016x}"
    if conversation.tools:
        prompt += f"\n{hash_of(json.dumps(conversation.tools, sort_keys=True, default=str)):016x}"
    return prompt, answer


#: Columns in which data sets keep the id of a conversation that several rows are cut from.
ID_KEYS = ("conversation_id", "conv_id", "dialogue_id", "dialog_id", "session_id", "thread_id")
#: A shorter first question ("Hello") opens many conversations.
OPENING_CHARACTERS = 40


def id_hash(row: Row) -> int:
    """Hash of the conversation id that the row itself has; 0 without one."""
    for key in ID_KEYS:
        value = row.fields.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return hash_of(f"{key}={value}")
    return 0


def opening_hash(conversation: Conversation) -> int:
    """Hash of the first question of a conversation with several; 0 for others and for a short question."""
    asked = [turn for turn in conversation.turns if turn.role == "user"]
    if len(asked) < 2:
        return 0
    opening = normalised(asked[0].text)
    return hash_of(opening) if len(opening) >= OPENING_CHARACTERS else 0
