"""Text brought to one form before it is compared, and cut into words. Knows nothing of scores."""

from __future__ import annotations

import unicodedata

# Scripts that put no space between words: a neighbouring letter does not mean that a word goes on.
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x31FF),  # CJK radicals, kana, bopomofo
    (0x3400, 0x9FFF),  # CJK ideographs
    (0xF900, 0xFAFF),  # CJK compatibility ideographs
    (0x20000, 0x3FFFF),  # CJK extensions
)
_APOSTROPHES = frozenset("'’‘ʼ`´")
_MINUS = frozenset("-−")


def _is_unspaced(char: str) -> bool:
    return any(low <= ord(char) <= high for low, high in _UNSPACED)


def _keeps(text: str, at: int) -> bool:
    """True when the punctuation mark at `at` belongs to a number: `3.5`, `1,000`, `-5`, `60%`."""
    before = text[at - 1] if at > 0 else ""
    after = text[at + 1] if at + 1 < len(text) else ""
    if before.isdigit() and after.isdigit():
        return text[at] in ".,:/-−"
    if text[at] in _MINUS and after.isdigit():
        return not before.isalnum()
    return text[at] == "%" and before.isdigit()


def normalise(text: str) -> str:
    """The text without the differences that do not matter to a reader.

    NFKC, case folded, punctuation out, white space collapsed. Marks that belong to a number stay (`3.5` is
    not `35`, `-5` is not `5`, `60%` is not `60`), and so do articles, which are words in most languages.
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    kept: list[str] = []
    for at, char in enumerate(text):
        if char in _APOSTROPHES:
            continue
        if char in _MINUS and _keeps(text, at):
            kept.append("-")
        elif unicodedata.category(char)[0] in "PC" or char in _MINUS:
            kept.append(char if _keeps(text, at) else " ")
        else:
            kept.append(char)
    return " ".join("".join(kept).split())


def words(text: str) -> list[str]:
    """The words of the normalised text; one token for each character of a script without spaces."""
    tokens: list[str] = []
    for part in normalise(text).split():
        word = ""
        for char in part:
            if _is_unspaced(char):
                if word:
                    tokens.append(word)
                tokens.append(char)
                word = ""
            else:
                word += char
        if word:
            tokens.append(word)
    return tokens


def find_whole(text: str, part: str) -> int:
    """Where `part` stands in `text` as whole words and whole numbers; -1 when it does not.

    `5` stands in `it is 5.` but in none of `25`, `5.3`, `1,500` and `-5`.
    """
    assert part, "an empty part is found everywhere"
    at = text.find(part)
    while at >= 0:
        if _is_free(text, at, -1) and _is_free(text, at + len(part) - 1, +1):
            return at
        at = text.find(part, at + 1)
    return -1


def _is_free(text: str, at: int, step: int) -> bool:
    """True when the word or number that has an end at `at` does not go on in the direction of `step`."""
    edge = text[at]
    near = text[at + step] if 0 <= at + step < len(text) else ""
    far = text[at + 2 * step] if 0 <= at + 2 * step < len(text) else ""
    if not edge.isalnum() or not near or _is_unspaced(edge):
        return True
    if near.isalnum() or near == "_":
        return _is_unspaced(near)
    if not edge.isdigit():
        return True
    if near in ".," and far.isdigit():
        return False
    if step > 0:
        return near != "%"
    return not (near in _MINUS and not far.isalnum())
