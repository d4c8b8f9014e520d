"""Faults that can be seen in one piece of text: wrong encodings, loops, placeholders.

Pure functions of a string.
"""

from __future__ import annotations

import re
from collections import Counter

_FENCED = re.compile(r"```.*?(?:```|$)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SURROGATE = re.compile("[\ud800-\udfff]")

#: cp1252 leaves five bytes undefined; programs that write mojibake map them to the control characters of
#: latin-1.
_BYTE_OF = {bytes([code]).decode("cp1252", "ignore") or chr(code): code for code in range(0x80, 0x100)}
_TRAIL = "".join(character for character, code in _BYTE_OF.items() if 0x80 <= code <= 0xBF)
_QUOTES = "“”‘’‹›«»„‚…"
_SIGN = "".join(character for character in _TRAIL if character not in _QUOTES)
#: UTF-8 that was read as cp1252: the character of a lead byte, then those of the continuation bytes. A single
#: pair also occurs in real text (`«CAFÉ»`), so that leads of scripts that are written in words need two in a
#: row, and a closing quotation mark only counts before a letter.
_MOJIBAKE = re.compile(
    f"[ÃÂÄÅ][{re.escape(_SIGN)}]|[ÃÂÄÅ][{_QUOTES}](?=[^\\W\\d_])|(?:[Ð-ß][{re.escape(_TRAIL)}]){{2,}}"
    f"|â[{re.escape(_TRAIL)}]{{2}}|(?:[à-ï][{re.escape(_TRAIL)}]{{2}}){{2,}}|ð[{re.escape(_TRAIL)}]{{3}}"
)

REFUSALS = (
    "as an ai language model",
    "as a large language model",
    "as an ai assistant, i",
    "as an ai, i",
    "i'm just an ai",
    "i am just an ai",
    "i cannot assist with",
    "i can't assist with",
    "i cannot help with that",
    "i can't help with that",
    "i'm sorry, but i can't",
    "i'm sorry, but i cannot",
    "i am sorry, but i cannot",
    "i'm unable to assist",
    "i am unable to assist",
    "i cannot fulfill",
    "i can't fulfill",
    "i'm not able to provide",
    "i cannot provide assistance",
)
REFUSAL_WINDOW = 200
#: Every phrase holds one of these: most answers are settled by them.
_REFUSAL_SIGNS = (" ai", "language model", "cannot", "can't", "can’t", "unable", "not able")

PLACEHOLDERS = frozenset(
    [
        "nan",
        "none",
        "null",
        "n/a",
        "#n/a",
        "na",
        "todo",
        "tbd",
        "undefined",
        "string",
        "placeholder",
        "error",
        "...",
        "…",
        "-",
        "?",
        "<answer>",
        "[answer]",
        "[removed]",
        "[deleted]",
    ]
) | {"[object object]", "lorem ipsum"}


def repaired(text: str) -> str | None:
    """The text with UTF-8 that was read as cp1252 decoded again; None when there is none.

    Only runs that decode are changed, so that French, Portuguese and Vietnamese words stay as they are; code
    in fences is left alone.
    """
    if text.isascii() or not _MOJIBAKE.search(text):
        return None
    if "```" in text and not _MOJIBAKE.search(_FENCED.sub("", text)):
        return None
    changed = _MOJIBAKE.sub(lambda found: _decoded(found.group()), text)
    return changed if changed != text else None


def _decoded(run: str) -> str:
    try:
        return bytes(_BYTE_OF[character] for character in run).decode("utf-8")
    except UnicodeDecodeError:
        return run


def encoding_fault(text: str) -> str | None:
    """Which encoding fault a text has: `replacement character`, `mojibake`, `control character`,
    `unpaired surrogate`; None without one."""
    if text.isascii():
        return "control character" if _CONTROL.search(text) else None
    if "\ufffd" in text:
        return "replacement character"
    if _SURROGATE.search(text):
        return "unpaired surrogate"
    if repaired(text) is not None:
        return "mojibake"
    return "control character" if _CONTROL.search(text) else None


def refusal(answer: str) -> str | None:
    """The refusal phrase in the first 200 characters of an answer, None without one."""
    head = answer[:REFUSAL_WINDOW].casefold()
    if not any(sign in head for sign in _REFUSAL_SIGNS):
        return None
    head = head.replace("’", "'")
    return next((phrase for phrase in REFUSALS if phrase in head), None)


def placeholder(answer: str) -> str | None:
    """The answer, when it is nothing but a stand-in for a missing value."""
    if len(answer) > 32:
        return None
    text = answer.strip().casefold()
    return text if text in PLACEHOLDERS else None


def loop(answer: str) -> str | None:
    """What an answer says over and over: a run of four words that makes up more than 30 % of at least 50
    words, or a line that stands in it ten times. None without one. (The 4-gram share is after the rules for
    Gopher's data, Rae et al. 2021, arXiv 2112.11446, table A1.)"""
    if len(answer) < 100:
        return None
    words = answer.split()
    # A 4-gram can only cover 30 % of the words when the others are at most 70 %: most answers end here.
    if len(words) >= 50 and len(set(words)) <= 0.7 * len(words) + 4:
        gram, times = _most_frequent_gram(words)
        if times > 2 and 4 * times > 0.3 * len(words) and any(word.isalnum() for word in gram):
            return " ".join(gram)
    if answer.count("\n") >= 9:
        lines = Counter(line for part in answer.split("\n") if len(line := part.strip()) >= 8)
        if lines:
            line, times = lines.most_common(1)[0]
            if times >= 10 and sum(character.isalpha() for character in line) >= 4:
                return line
    return None


def _most_frequent_gram(words: list[str]) -> tuple[tuple[str, ...], int]:
    """The most frequent run of four words that are each frequent enough to make up 30 % of the text with
    it."""
    frequent = {word for word, times in Counter(words).items() if times > 0.075 * len(words)}
    grams: Counter[tuple[str, ...]] = Counter()
    run = 0
    for index, word in enumerate(words):
        run = run + 1 if word in frequent else 0
        if run >= 4:
            grams[tuple(words[index - 3 : index + 1])] += 1
    return grams.most_common(1)[0] if grams else ((), 0)
