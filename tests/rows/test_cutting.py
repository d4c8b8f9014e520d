"""Length rules, against values worked by hand from the trainers' sources."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradian.rows.cutting import cut, infer_lengths
from gradian.rows.masks import mask_of_encoding, mask_of_spans, runs
from gradian.rows.profile import Overflow
from gradian.rows.tokenizer import load_tokenizer
from support.rows_tokenizers import TOKENIZERS

TWO = [load_tokenizer(TOKENIZERS / name) for name in ("headers-bos", "merge-space")]

RULES: tuple[Overflow, ...] = (
    "keep",
    "truncate_end",
    "truncate_start",
    "truncate_end_keep_eos",
    "truncate_proportional",
    "drop",
    "split",
)


@pytest.mark.parametrize(
    ("prompt", "answer", "limit", "kept"),
    [
        (100, 10, 50, (40, 10)),  # answer * 2 < limit: the answer whole, the prompt cut
        (10, 100, 50, (10, 40)),  # prompt * 2 < limit: the prompt whole, the answer cut
        (60, 60, 50, (25, 25)),  # both cut: int(50 * 60 / 120)
        (100, 50, 50, (34, 16)),  # int(50 * 50 / 150) = 16
        (5, 5, 50, (5, 5)),  # nothing to cut
        (30, 0, 10, (10, 0)),
        (0, 30, 10, (0, 10)),
    ],
)
def test_proportional_lengths(prompt: int, answer: int, limit: int, kept: tuple[int, int]) -> None:
    assert infer_lengths(prompt, answer, limit) == kept


def _cut(
    answer: str, limit: int | None, overflow: Overflow, eos_id: int | None = 99
) -> tuple[list[int], list[bool]]:
    mask = np.array([character == "A" for character in answer], dtype=np.bool_)
    ids = np.arange(len(answer), dtype=np.int32)
    kept, loss = cut(ids, mask, mask, limit, overflow, eos_id)
    assert kept.dtype == np.int32
    assert loss.dtype == np.bool_
    return kept.tolist(), loss.tolist()


def test_each_rule_on_a_row_of_two_turns() -> None:
    row = "ppppAAppAAAA"
    assert _cut(row, 5, "truncate_end") == ([0, 1, 2, 3, 4], [False] * 4 + [True])
    assert _cut(row, 5, "truncate_start") == ([7, 8, 9, 10, 11], [False] + [True] * 4)
    assert _cut(row, 5, "truncate_end_keep_eos") == ([0, 1, 2, 3, 99], [False] * 4 + [True])
    assert _cut(row, 3, "truncate_end_keep_eos") == ([0, 1, 99], [False] * 3)
    # First turn (4, 2) within 8: 2 * 2 < 8, kept whole. Second (2, 4) within 2: int(2 * 4 / 6) = 1 of each.
    assert _cut(row, 8, "truncate_proportional") == (
        [0, 1, 2, 3, 4, 5, 6, 8],
        [False] * 4 + [True] * 2 + [False, True],
    )
    # The first turn uses up the limit: LLaMA-Factory stops adding turns.
    assert _cut(row, 4, "truncate_proportional")[0] == [0, 1, 2, 4]
    for rule in ("keep", "drop", "split"):
        assert _cut(row, 5, rule)[0] == list(range(12))


def test_proportional_without_answer_cuts_the_end() -> None:
    assert _cut("pppppp", 4, "truncate_proportional")[0] == [0, 1, 2, 3]


@given(
    answer=st.text("pA", max_size=30), limit=st.none() | st.integers(0, 40), overflow=st.sampled_from(RULES)
)
def test_a_cut_only_removes(answer: str, limit: int | None, overflow: Overflow) -> None:
    ids, loss = _cut(answer, limit, overflow, eos_id=None)
    assert len(ids) == len(loss)
    assert ids == sorted(set(ids)), "order stays, nothing is repeated"
    assert sum(loss) <= answer.count("A")
    assert loss == [answer[i] == "A" for i in ids]
    if limit is not None and overflow not in ("keep", "drop", "split"):
        assert len(ids) <= limit
    if limit is None or len(answer) <= limit:
        assert len(ids) == len(answer)


@given(st.lists(st.booleans(), max_size=20))
def test_runs_cover_the_mask(bits: list[bool]) -> None:
    mask = np.array(bits, dtype=np.bool_)
    rebuilt = np.zeros(len(bits), dtype=np.bool_)
    for start, end in runs(mask):
        assert start < end
        rebuilt[start:end] = True
    assert rebuilt.tolist() == bits


@given(
    text=st.text(st.sampled_from("ab é€😀\n") | st.characters(exclude_categories=["Cs"]), max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=6),
)
@example(text=" 0", cuts=[1, 1])  # an empty span inside a token
def test_spans_of_an_encoding(text: str, cuts: list[int]) -> None:
    """The fast way and the plain one agree, also where one character is several tokens."""
    places = sorted(min(place, len(text)) for place in cuts)
    spans = list(zip(places[::2], places[1::2], strict=False))
    for tokenizer in TWO:
        (encoding,) = tokenizer.encode_with_offsets([text], True)
        assert mask_of_encoding(encoding, spans).tolist() == mask_of_spans(encoding.offsets, spans).tolist()


def test_a_token_that_reaches_into_a_span_counts() -> None:
    offsets = [(0, 2), (2, 4), (4, 4), (4, 7), (7, 9)]
    assert mask_of_spans(offsets, [(3, 5)]).tolist() == [False, True, True, True, False]
    assert mask_of_spans(offsets, [(0, 2), (7, 8)]).tolist() == [True, False, False, False, True]
    assert not mask_of_spans(offsets, []).any()
