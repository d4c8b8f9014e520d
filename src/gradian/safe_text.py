"""Hostile text made safe: the one place where text from rows, models and files is prepared for a medium.

Every string of a report may come from a training row. `visible` makes readable what cannot be seen: control
characters, ANSI escapes, bidirectional overrides, zero-width and tag characters, lone surrogates. Nothing
here drops a character without saying so. HTML needs no function of its own: Jinja's autoescape follows
`visible`.
"""

from __future__ import annotations

import re
import unicodedata

NOT_SEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u06dd\u070f\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""What a reader cannot see or what changes how the rest is seen. The joiners U+200C and U+200D are not here:
Indic scripts, Persian and emoji need them. Written out, so that it does not change with Python's Unicode."""

LONGEST_CLUSTER = 32  # code points; a longer run of combining marks is an attack, and is cut anywhere
ZERO_WIDTH_JOINER = "\u200d"

_MARKDOWN_ESCAPES = {
    "&": "&amp;",
    "<": "&lt;",
    "|": "&#124;",  # not `\\|`: parsers disagree on a backslash before it inside a table
    "\\": "&#92;",
    "`": "\\`",
    "*": "\\*",
    "[": "\\[",
    "]": "\\]",
    "~": "\\~",
    "$": "\\$",  # GitHub renders $...$ as mathematics
}
_INTERVAL = (
    r"\[[-+]?\d[-+\d.,% ]*\](?![(\[:])"  # `[-0.340, -0.200]` can be no link, and reads better as it is
)
_MARKDOWN_SPECIAL = re.compile(rf"{_INTERVAL}|&(?=[#\w])|<(?=[\w/!?])|[|\\`*\[\]~$]")
_MARKDOWN_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # inside a word it is no emphasis
_MARKDOWN_START = re.compile(r"^(?:(#|>|[-+=](?=\s|$|[-=])|:(?=-))|(\d+)(?=[.)](?:\s|$)))")
_BREAK = "&#8203;"  # a zero-width space between the parts of what would become a link or a mention
_LINKS = re.compile(r"(?i)(\b(?:https?|ftp|mailto|xmpp)):|(\bwww)\.|@(?=\w)")


def visible(text: str) -> str:
    """The text with everything invisible spelled out; line breaks and tabs stay.

    Control characters become their Unicode pictures (`\\x1b` -> `␛`, NUL -> `␀`), all others `\\u202e`.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    return NOT_SEEN.sub(_spelled_out, text)


def _spelled_out(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def truncate(text: str, limit: int) -> str:
    """At most about `limit` code points, then how many were left out: `… +1,204 chars`.

    Never cuts between a letter and its combining marks, inside a joined emoji or inside a flag.
    """
    if len(text) <= limit:
        return text
    end = _cluster_start(text, limit)
    left_out = len(text) - end
    return f"{text[:end]} … +{left_out:,} {'char' if left_out == 1 else 'chars'}"


def _cluster_start(text: str, end: int) -> int:
    for candidate in range(end, max(0, end - LONGEST_CLUSTER), -1):
        if not _continues(text, candidate):
            return candidate
    return end


def _continues(text: str, index: int) -> bool:
    """True when the character at `index` belongs to the one before it."""
    character = text[index]
    if character == ZERO_WIDTH_JOINER or text[index - 1] == ZERO_WIDTH_JOINER:
        return True
    if unicodedata.category(character)[0] == "M" or "\U0001f3fb" <= character <= "\U0001f3ff":
        return True
    if character == "\n" and text[index - 1] == "\r":
        return True
    if not _is_regional(character):
        return False
    before = index
    while before > 0 and _is_regional(text[before - 1]) and index - before < LONGEST_CLUSTER:
        before -= 1
    return (index - before) % 2 == 1  # flags are pairs


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def excerpt(text: str, limit: int) -> str:
    """Visible text of several lines, cut to about `limit` characters."""
    return visible(truncate(text, limit))


def one_line(text: str, limit: int | None = None) -> str:
    """Visible text on one line: line breaks become `⏎`, tabs and runs of spaces one space."""
    if limit is not None:
        text = truncate(text, limit)
    return re.sub(r"[ \t]+", " ", re.sub(r"[ \t]*\n[ \t]*", " ⏎ ", visible(text).strip()))


def code_spans(text: str) -> list[tuple[bool, str]]:
    """The text as pieces `(is_code, piece)`: what stands between two single back-ticks is code."""
    parts = text.split("`")
    if len(parts) % 2 == 0 or "``" in text:
        return [(False, text)]
    return [(index % 2 == 1, part) for index, part in enumerate(parts) if part]


def markdown(text: str) -> str:
    """One line of literal Markdown, also for a table cell: no markup, link, mention or HTML survives."""
    escaped = _LINKS.sub(_unlinked, one_line(text))
    escaped = _MARKDOWN_SPECIAL.sub(
        lambda match: _MARKDOWN_ESCAPES.get(match.group(), match.group()), escaped
    )
    escaped = _MARKDOWN_UNDERSCORE.sub(r"\_", escaped.replace("\0", _BREAK))
    return _MARKDOWN_START.sub(_literal_start, escaped)


def _unlinked(match: re.Match[str]) -> str:
    if match.group() == "@":
        return "@\0"
    return f"{match.group(1)}:\0" if match.group(1) else f"{match.group(2)}\0."


def _literal_start(match: re.Match[str]) -> str:
    return f"\\{match.group(1)}" if match.group(1) else f"{match.group(2)}\\"


def markdown_prose(text: str) -> str:
    """One line of Markdown in which back-ticked pieces are code and everything else is literal."""
    return "".join(markdown_code(piece) if code else _spaced(piece) for code, piece in code_spans(text))


def _spaced(piece: str) -> str:
    """`markdown` strips; between two code spans the outer spaces matter."""
    lead = " " if piece[:1].isspace() else ""
    tail = " " if piece[-1:].isspace() and piece.strip() else ""
    return f"{lead}{markdown(piece)}{tail}"


def markdown_code(text: str, limit: int | None = None) -> str:
    """A Markdown code span, also inside a table cell, whatever the text holds; empty text is `(empty)`."""
    line = one_line(text, limit)
    if not line:
        return "(empty)"
    if "|" in line:
        return markdown(line)  # a pipe ends a table cell even inside a code span
    fence = "`" * (_longest_run(line) + 1)
    padding = " " if "`" in (line[0], line[-1]) else ""
    return f"{fence}{padding}{line}{padding}{fence}"


def markdown_fence(text: str) -> str:
    """A fenced block whose fence is longer than any run of back-ticks inside it."""
    body = visible(text)
    fence = "`" * max(3, _longest_run(body) + 1)
    return f"{fence}text\n{body}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


_ASCII = str.maketrans({
    "→": "->", "…": "...", "·": "-", "✗": "x", "⏎": "/", "●": "*",
        "±": "+/-", "␀": "^@", "␛": "^[",
})  # fmt: skip


def encodable(text: str, encoding: str) -> str:
    """The text as a terminal of this encoding can print it: signs of ours in ASCII, the rest spelled out."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")
    return text
