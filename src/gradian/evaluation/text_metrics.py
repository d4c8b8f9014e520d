"""Text and number answers compared: exact, normalised, contained, by a pattern, by overlap of words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

from gradian.errors import ConfigError
from gradian.evaluation.extract import numbers, whole_json
from gradian.evaluation.json_metrics import json_same
from gradian.evaluation.normalise import find_whole, normalise, words
from gradian.evaluation.score import Compare, Score

Take = Literal["first", "last"]


def exact(said: str, wanted: str, item: Mapping[str, Any]) -> Score:
    """1 when the trimmed texts are equal; for a wanted JSON object or list, when the JSON values are.

    With JSON, the first value of the text is compared as a whole: key order, white space, code fences and the
    prose around it do not matter.
    """
    wanted_value = whole_json(wanted)
    if wanted_value is not None:
        return json_same(said, wanted_value)
    text = said.strip()
    same = text == wanted.strip()
    return Score(float(same), text, "equal" if same else "another text")


def normalized(said: str, wanted: str, item: Mapping[str, Any]) -> Score:
    """1 when the texts are equal after `normalise`."""
    text = normalise(said)
    if not text:
        return Score(0.0, None, "only punctuation in the answer")
    same = text == normalise(wanted)
    return Score(float(same), text, "equal after normalising" if same else "another text")


def no_word_wanted(wanted: str) -> str | None:
    """Why a wanted answer cannot be compared by its words; None when it can."""
    return None if words(wanted) else "the wanted answer holds no word"


def contains(said: str, wanted: str, item: Mapping[str, Any]) -> Score:
    """1 when the wanted text stands in the answer as whole words; case and white space do not matter."""
    text, part = (" ".join(unicodedata.normalize("NFKC", t).casefold().split()) for t in (said, wanted))
    if find_whole(text, part) < 0:
        return Score(0.0, said.strip(), "the wanted text is not in the answer")
    return Score(1.0, wanted.strip(), "the wanted text is in the answer")


def _check_take(take: object) -> None:
    if take not in ("first", "last"):
        raise ConfigError(
            f"take is {take!r}", where="take", why="several matches: which one counts?", fix="first or last"
        )


def regex(pattern: object, take: Take = "last") -> Compare:
    """A comparison by a pattern.

    With a group, the first group that took part in the match is the answer, and it has to equal the wanted
    text, or what the same pattern finds in the wanted text (`#### ([0-9]+)` reads a whole worked solution).
    Without a group the score is 1 when the pattern is found.

    Args:
        take: which match counts when there are several, the `last` or the `first`.

    Raises:
        ConfigError: no pattern, or one that Python's `re` does not accept.
    """
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError(
            "the metric regex needs a pattern", where="pattern", fix=r"for example: pattern: 'Answer: (\w+)'"
        )
    _check_take(take)
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"the pattern {pattern!r} is no regular expression", where="pattern", why=str(error)
        ) from None

    def find(text: str) -> str | None:
        found = None
        for match in compiled.finditer(text):
            groups = [group for group in match.groups() if group is not None]
            found = groups[0].strip() if groups else match.group().strip()
            if take == "first":
                break
        return found

    def compare(said: str, wanted: str, item: Mapping[str, Any]) -> Score:
        answer = find(said)
        if answer is None:
            return Score(0.0, None, "the pattern matches nothing in the answer")
        if compiled.groups == 0:
            return Score(1.0, answer, "the pattern matches")
        in_wanted = find(wanted)
        same = answer == (wanted.strip() if in_wanted is None else in_wanted)
        return Score(float(same), answer, "equal" if same else "another text")

    return compare


def no_number_wanted(wanted: str) -> str | None:
    """Why a wanted answer cannot be compared as a number; None when it can."""
    return None if numbers(wanted) else "the wanted answer holds no number"


def numeric(tolerance: object = 0, relative_tolerance: object = 0, take: Take = "last") -> Compare:
    """A comparison of one number of each text (see `extract.numbers` for what is read as a number).

    The score is 1 when `|said - wanted| <= max(tolerance, relative_tolerance * |wanted|)`. It is never
    decided by the text: `25` does not match `5`.

    Args:
        take: which number of the text is the answer, the `last` or the `first`.

    Raises:
        ConfigError: a tolerance that is not a number of at least 0.
    """
    _check_take(take)
    absolute, relative = (
        _tolerance("tolerance", tolerance),
        _tolerance("relative_tolerance", relative_tolerance),
    )
    which = 0 if take == "first" else -1

    def compare(said: str, wanted: str, item: Mapping[str, Any]) -> Score:
        found = numbers(said)
        if not found:
            return Score(0.0, None, "no number in the answer")
        text, value = found[which]
        target = numbers(wanted)[which][1]
        near = value == target or abs(value - target) <= max(absolute, relative * abs(target))
        return Score(
            float(near),
            text,
            "equal" if value == target else "within the tolerance" if near else "another number",
        )

    return compare


def _tolerance(name: str, given: object) -> Decimal:
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        value = Decimal(str(given))
        if value.is_finite() and value >= 0:
            return value
    raise ConfigError(f"{name} is {given!r}", where=name, fix="a number of at least 0")


def f1(said: str, wanted: str, item: Mapping[str, Any]) -> Score:
    """Harmonic mean of the precision and the recall of the words, as multisets (SQuAD, arXiv 1606.05250)."""
    said_words, wanted_words = words(said), words(wanted)
    if not said_words:
        return Score(0.0, None, "no word in the answer")
    shared = (Counter(said_words) & Counter(wanted_words)).total()
    return _overlap(shared, said_words, wanted_words)


def rouge_l(said: str, wanted: str, item: Mapping[str, Any]) -> Score:
    """F-measure of the longest common subsequence of words (Lin 2004, "ROUGE", section 3, beta = 1)."""
    said_words, wanted_words = words(said), words(wanted)
    if not said_words:
        return Score(0.0, None, "no word in the answer")
    return _overlap(longest_common_subsequence(said_words, wanted_words), said_words, wanted_words)


def _overlap(shared: int, said_words: list[str], wanted_words: list[str]) -> Score:
    value = 2 * shared / (len(said_words) + len(wanted_words))
    reason = f"{shared} words shared, {len(said_words)} said, {len(wanted_words)} wanted"
    return Score(value, " ".join(said_words), reason)


def longest_common_subsequence(left: list[str], right: list[str]) -> int:
    """Length of the longest common subsequence, with the rows of the table as the bits of one integer
    (Hyyro 2004, "Bit-parallel LCS-length computation revisited"), so that long answers cost little."""
    places: dict[str, int] = {}
    for at, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << at
    everything = (1 << len(left)) - 1
    row = everything
    for word in right:
        matches = row & places.get(word, 0)
        row = (row + matches | row - matches) & everything
    return len(left) - bin(row).count("1")
