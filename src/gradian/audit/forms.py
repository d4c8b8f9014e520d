"""The outer form of an answer: what kind of text it is, and whether it stops in the middle.

Pure functions of one string. They look at form only and never judge content.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

#: What an answer looks like. `json` starts like JSON and parses; `broken json` starts like it and does not.
FORMS = ("prose", "json", "broken json", "number", "label", "code", "list", "tagged", "empty")
FORM_CODE = {form: code for code, form in enumerate(FORMS)}

#: A label is at most this many words without an end of sentence.
LABEL_WORDS = 4

_THINK = re.compile(r"^\s*<(think|thinking|reasoning)>.*?</\1>\s*", re.DOTALL)
_FENCE = re.compile(r"^\s*```[\w+-]*[ \t]*\n(.*?)(?:\n[ \t]*```\s*)?$", re.DOTALL)
_NUMBER = re.compile(r"^[+-]?[$€£]?\d[\d,.  ]*%?$")
_LIST = re.compile(r"^(?:[-*•]|\d+[.)])\s")
_TAGGED = re.compile(r"^<([A-Za-z][\w-]{0,30})(?:\s[^<>]{0,500})?>")
#: Tags that have a check of their own, and HTML's that need no end.
PAIRED_TAGS = (
    "think",
    "thinking",
    "reasoning",
    "thought",
    "answer",
    "solution",
    "scratchpad",
    "tool_call",
    "plan",
)
_VOID_TAGS = frozenset({"br", "hr", "img", "input", "link", "meta", "p", "li"})
#: `{` or `[` followed by what can follow in JSON: `[INST]`, `{name}` and `[1] Smith` are not JSON.
_JSON_OBJECT = re.compile(r"""^\{\s*(?:"|'|\}|$)""")
_JSON_ARRAY = re.compile(r'^\[\s*(?:[{\["\]]|-?\d[\d.eE+-]*\s*(?:,|\]\s*$)|(?:true|false|null)\s*[,\]]|$)')


def normalised(text: str) -> str:
    """Unicode NFKC, casefold, runs of white space as one space, no space at the ends."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def without_thinking(text: str) -> str:
    """The text after a leading closed reasoning block."""
    return _THINK.sub("", text, count=1) if "<" in text[:200] else text


def json_body(text: str) -> str | None:
    """The part of an answer that wants to be JSON, from its first bracket on; None when it does not start so.

    A leading reasoning block and a code fence around the JSON are taken off.
    """
    body = without_thinking(text).strip()
    if body.startswith("```"):
        fence = _FENCE.match(body)
        if fence is None:
            return None
        body = fence.group(1).strip()
    if _JSON_OBJECT.match(body) or _JSON_ARRAY.match(body):
        return body
    return None


def json_error(body: str) -> tuple[str, int] | None:
    """Why the text is not JSON, and at which character; None when it is, also as one JSON value a line."""
    try:
        json.loads(body)
    except RecursionError:
        return ("nested too deeply", 0)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and _is_json_lines(body):
            return None
        return (error.msg, error.pos)
    except ValueError:  # an integer with thousands of digits: JSON, but Python will not build it
        return None
    return None


def _is_json_lines(body: str) -> bool:
    lines = [line for line in body.splitlines() if line.strip()]
    if len(lines) < 2:
        return False
    try:
        return all(isinstance(json.loads(line), dict | list) for line in lines)
    except (ValueError, RecursionError):
        return False


def trailing_prose(body: str) -> bool:
    """The text is a whole JSON value with something after it."""
    try:
        _, end = json.JSONDecoder().raw_decode(body)
    except (ValueError, RecursionError):
        return False
    return bool(body[end:].strip())


def missing_closers(body: str) -> str | None:
    """What has to be appended to close the open strings and brackets of JSON; None when brackets do not
    match.

    The empty string says that nothing is open.
    """
    stack: list[str] = []
    in_string = False
    escaped = False
    for character in body:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "{[":
            stack.append("}" if character == "{" else "]")
        elif character in "}]" and (not stack or stack.pop() != character):
            return None
    return ('"' if in_string else "") + "".join(reversed(stack))


def form_of(answer: str) -> str:
    """The form of an answer, one of `FORMS`."""
    text = without_thinking(answer).strip()
    if not text:
        return "empty"
    if text[0] in "{[`":
        body = json_body(text)
        if body is not None:
            return "json" if json_error(body) is None else "broken json"
    if text.startswith("```"):
        return "code"
    if len(text) <= 24 and _NUMBER.match(text):
        return "number"
    if _TAGGED.match(text):
        return "tagged"
    if _LIST.match(text):
        return "list"
    if len(text) <= 60 and "\n" not in text and len(text.split()) <= LABEL_WORDS and text[-1] not in ".!?":
        return "label"
    return "prose"


_STOP_AT_END = re.compile(r"(?:<\|[^|<>]{1,30}\|>|</s>|<eos>|<end_of_turn>)$")
_FENCE_LINE = re.compile(r"^[ \t]*(```+|~~~+)", re.MULTILINE)
_FENCED = re.compile(r"^[ \t]*```.*?^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_EMOTICON = re.compile(r"[:;=8xX]['^-]?[()\[\]{}]|[()\[\]{}]['^-]?[:;=8]|<3")
_ENUMERATED = re.compile(r"(?:^|\s)\(?\w{1,3}[)\]]", re.MULTILINE)
#: What an answer in prose ends with: punctuation of any script, a closing mark, a symbol such as an emoji.
_ENDS = frozenset(".!?…。！？｡।؟۔։\"'”’»)]}`*_|>~:;")
_PATH_MARKS = frozenset("/@\\#=")
PROSE_WORDS = 8


def without_stop(text: str) -> str:
    """The text without the stop tokens (at most a few) that are written out at its end."""
    # Only the last characters are searched: an expression over the whole text could be made to backtrack for
    # hours.
    for _ in range(4):
        stripped = text.rstrip()
        found = _STOP_AT_END.search(stripped[-40:]) if stripped.endswith(">") else None
        if found is None:
            break
        text = stripped[: len(stripped) - len(found.group())]
    return text


def open_form(answer: str) -> str | None:
    """How an answer stops in the middle, seen by its form; None when it does not.

    `JSON that does not close`, `an open code fence`, `an open bracket` or `an open quotation`. The last two
    also need an end that is no end of a sentence, since brackets in prose are not always matched.
    """
    text = without_stop(without_thinking(answer)).strip()
    if not text:
        return None
    if text[0] in "{[`":
        body = json_body(text)
        if body is not None and json_error(body) is not None and missing_closers(body):
            return "JSON that does not close"
    fences = (
        [match.group(1)[:3] for match in _FENCE_LINE.finditer(text)] if "```" in text or "~~~" in text else []
    )
    if len(fences) % 2:
        return "an open code fence"
    tag = _TAGGED.match(text)
    if tag is not None and f"</{tag[1]}" not in text and tag[1].lower() not in (*PAIRED_TAGS, *_VOID_TAGS):
        return "an open tag"
    if ends_properly(text):
        return None
    if not any(mark in text for mark in '([{"“«'):
        return None
    prose = _ENUMERATED.sub(" ", _EMOTICON.sub(" ", _FENCED.sub("", text)))
    if any(prose.count(opener) > prose.count(closer) for opener, closer in ("()", "[]", "{}")):
        return "an open bracket"
    if prose.count("“") > prose.count("”") or prose.count("«") > prose.count("»"):
        return "an open quotation"
    return None


def ends_properly(text: str) -> bool:
    """The text ends like a finished one: with punctuation or a closing mark, a symbol, a number, a path or a
    link, or in a line that is an item of a list, a heading or a row of a table."""
    text = text.rstrip()
    if not text or text[-1] in _ENDS or unicodedata.category(text[-1])[0] == "S":
        return True
    last_line = text.rsplit("\n", 1)[-1].strip()
    if _LIST.match(last_line) or last_line.startswith(("#", "|", "<", "$", ">>>", "http")):
        return True
    last_word = last_line.rsplit(None, 1)[-1][-200:]
    return any(character in _PATH_MARKS or character.isdigit() for character in last_word)


def sentence_end(answer: str) -> bool | None:
    """True when prose ends like a finished sentence, False when it does not; None for what is no prose of at
    least eight words, and for scripts that write no full stops."""
    text = without_stop(without_thinking(answer)).strip()
    if form_of(text) != "prose" or len(text.split(None, PROSE_WORDS)) < PROSE_WORDS:
        return None
    if unicodedata.category(text[-1]) == "Lo":  # Thai and others write no full stop
        return None
    return ends_properly(text)


def parsed_json(answer: str) -> Any:
    """The JSON value of an answer; None when it has none."""
    body = json_body(answer)
    if body is None:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
