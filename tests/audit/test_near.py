"""Shingles, signatures, near copies and shared passages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.audit import near
from gradian.audit.near import BandTable, Pair, between, clusters, shingle_sets, verified, within
from gradian.audit.overlap import code_points as codes_of
from gradian.audit.overlap import shared_passages, window_hashes
from gradian.audit.shingles import frame_of, jaccard, shingle_hashes, signatures, without

NO_FRAME = np.empty(0, np.uint64)


def words(seed: int, count: int) -> list[str]:
    generator = np.random.default_rng(seed)
    return ["".join(chr(97 + letter) for letter in generator.integers(0, 26, 6)) for _ in range(count)]


@given(st.lists(st.text(max_size=20), max_size=8))
def test_shingles_of_a_block_are_those_of_each_text(texts: list[str]) -> None:
    hashes, starts = shingle_hashes(texts)
    for index, text in enumerate(texts):
        alone, _ = shingle_hashes([text])
        assert hashes[starts[index] : starts[index + 1]].tolist() == alone.tolist()
        assert len(alone) == max(0, len(text) - 4)


@given(st.text(min_size=5, max_size=60))
def test_shingles_are_a_function_of_the_five_characters(text: str) -> None:
    hashes, _ = shingle_hashes([text])
    by_shingle: dict[str, int] = {}
    for place, value in enumerate(hashes.tolist()):
        assert by_shingle.setdefault(text[place : place + 5], value) == value
    assert len(set(by_shingle.values())) == len(by_shingle)


@given(st.lists(st.text(alphabet="abcdef ", max_size=40), min_size=1, max_size=5), st.integers(0, 4))
def test_without_removes_exactly_the_frame(texts: list[str], which: int) -> None:
    hashes, starts = shingle_hashes(texts)
    frame = np.unique(shingle_hashes([texts[which % len(texts)]])[0])
    kept, kept_starts = without(hashes, starts, frame)
    for index in range(len(texts)):
        own = hashes[starts[index] : starts[index + 1]]
        expected = own[~np.isin(own, frame)]
        assert kept[kept_starts[index] : kept_starts[index + 1]].tolist() == expected.tolist()


def test_signatures_do_not_depend_on_the_block() -> None:
    texts = [" ".join(words(seed, 30)) for seed in range(20)]
    together = signatures(*shingle_hashes(texts))
    alone = np.concatenate([signatures(*shingle_hashes([text])) for text in texts])
    assert (together == alone).all()


def test_signatures_estimate_the_jaccard_similarity() -> None:
    base = words(1, 400)
    for kept in (0.9, 0.7, 0.4):
        other = base[: int(400 * kept)] + words(2, 400 - int(400 * kept))
        sets = shingle_sets({0: " ".join(base), 1: " ".join(other)}, NO_FRAME)
        signature = signatures(*shingle_hashes([" ".join(base), " ".join(other)]))
        estimate = float((signature[0] == signature[1]).mean())
        assert abs(estimate - jaccard(sets[0], sets[1])) < 0.15


def test_a_near_copy_is_found_and_a_different_text_is_not() -> None:
    texts = {row: " ".join(words(row, 40)) for row in range(300)}
    texts[300] = texts[17].replace(texts[17].split()[20], "another")
    table = BandTable(near.DUPLICATE_BAND, NO_FRAME)
    table.add(sorted(texts.items()))
    sets = shingle_sets(texts, NO_FRAME)
    pairs = verified(within(table).pairs, sets, sets, 0.8)
    assert [(pair.left, pair.right) for pair in pairs] == [(17, 300)]
    assert 0.8 < pairs[0].similarity < 1


def test_the_frame_of_a_template_does_not_make_texts_alike() -> None:
    frame_text = (
        "Read the following customer message carefully and answer with one of the allowed labels only: "
    )
    texts = {row: frame_text + " ".join(words(row, 14)) for row in range(60)}
    frame = frame_of(list(texts.values()), 0.2)
    assert len(frame) > 50
    sets = shingle_sets(texts, frame)
    every = [(a, b) for a in range(60) for b in range(a + 1, 60)]
    assert verified(every, sets, sets, 0.3) == []


def test_streaming_in_other_blocks_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {item: " ".join(words(item, 30)) for item in range(20)}
    rows = [(row, " ".join(words(row + 5, 30))) for row in range(200)]
    found = []
    for block, characters in ((1, 10**9), (7, 10**9), (512, 10**9), (512, 300)):
        monkeypatch.setattr(near, "BLOCK", block)
        monkeypatch.setattr(near, "BLOCK_CHARACTERS", characters)
        table = BandTable(near.CONTAMINATION_BAND, NO_FRAME)
        table.add(sorted(small.items()))
        found.append(between(table, rows).pairs)
    assert all(pairs == found[0] for pairs in found)
    assert {(item, item - 5) for item in range(5, 20)} <= set(found[0])


def test_pairs_are_capped_and_said_to_be() -> None:
    table = BandTable(near.DUPLICATE_BAND, NO_FRAME)
    text = " ".join(words(3, 30))
    table.add([(row, text) for row in range(100)])
    assert within(table).capped


def test_clusters_are_ordered() -> None:
    pairs = [Pair(5, 9, 1.0), Pair(1, 2, 1.0), Pair(9, 7, 1.0)]
    assert clusters(pairs) == [[5, 7, 9], [1, 2]]


@pytest.mark.parametrize("window", [1, 2, 3, 7, 20, 50, 64])
def test_windows_are_a_function_of_their_characters(window: int) -> None:
    text = "the harbour closes at nine and opens at six; the harbour closes at nine and opens at six."
    hashes = window_hashes(codes_of(text), window)
    assert len(hashes) == max(0, len(text) - window + 1)
    by_text: dict[str, int] = {}
    for place, value in enumerate(hashes.tolist()):
        assert by_text.setdefault(text[place : place + window], value) == value
    assert len(set(by_text.values())) == len(by_text)


@settings(max_examples=50)
@given(st.text(max_size=80), st.text(max_size=80), st.integers(1, 30))
def test_equal_windows_hash_alike_in_any_text(before: str, after: str, window: int) -> None:
    passage = "a passage of thirty characters"[:window]
    hashes = window_hashes(codes_of(before + passage + after), window)
    assert window_hashes(codes_of(passage), window)[0] in hashes


def test_shared_passages_cover_the_verbatim_part() -> None:
    secret = " ".join(words(9, 12))  # 83 characters
    items = {0: "Tell me: " + secret, 1: " ".join(words(10, 20))}
    rows = [(4, " ".join(words(11, 30))), (7, f"{' '.join(words(12, 5))} {secret} {' '.join(words(13, 5))}")]
    found = shared_passages(items, rows, common_rows=3)
    assert [(overlap.item, overlap.row) for overlap in found] == [(0, 7)]
    assert len(secret) <= found[0].covered <= len(secret) + 2
    assert found[0].share == found[0].covered / len(items[0])


def test_windows_over_the_end_of_a_row_belong_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = " ".join(words(15, 12))
    halves = [(3, secret[:40]), (4, secret[40:])]
    assert shared_passages({0: secret}, halves, common_rows=3) == []
    rows = [(row, f"{row} {secret if row == 8 else ''} {row}") for row in range(20)]
    results = []
    for block in (1, 3, 512):
        monkeypatch.setattr(near, "BLOCK", block)
        results.append(shared_passages({0: secret}, rows, common_rows=3))
    assert results[0] == results[1] == results[2]
    assert [overlap.row for overlap in results[0]] == [8]


def test_a_passage_in_many_rows_is_a_frame() -> None:
    frame = " ".join(words(14, 12))
    rows = [(row, f"{frame} {row}") for row in range(10)]
    assert shared_passages({0: f"{frame} and a question"}, rows, common_rows=3) == []
    assert shared_passages({0: f"{frame} and a question"}, rows[:3], common_rows=3) != []


def test_jaccard_by_hand() -> None:
    left, right = np.array([1, 2, 3], np.uint64), np.array([2, 3, 4, 5], np.uint64)
    assert jaccard(left, right) == 2 / 5
    assert jaccard(NO_FRAME, NO_FRAME) == 0
