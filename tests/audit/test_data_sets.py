"""Checks that compare rows: duplicates, conflicts, forms, unfinished answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradian.audit.checks.data_duplicates import contradiction
from gradian.audit.checks.data_roles import edit_distance
from support.auditing import audited, chat, finding, ids, pair, sound_rows


def test_duplicates_by_surplus(tmp_path: Path) -> None:
    rows = [*sound_rows(300), pair("Who is it?", " It is me."), pair("who is  IT?", " it is me.")]
    assert finding(audited(tmp_path, rows), "data.duplicate_rows").severity.value == "info"
    many = [*sound_rows(70), *sound_rows(30)]
    found = finding(audited(tmp_path, many), "data.duplicate_rows")
    assert found.severity.value == "error"
    assert found.values["surplus"] == 30
    assert found.fix is not None
    assert found.fix.remove_rows == tuple(range(70, 100))


def test_a_set_that_is_repeated_as_a_whole_is_info(tmp_path: Path) -> None:
    found = finding(audited(tmp_path, sound_rows(50) * 3), "data.duplicate_rows")
    assert found.severity.value == "info"
    assert "repeated 3 times" in found.message


def test_rows_that_differ_in_tool_calls_or_images_are_no_duplicates(tmp_path: Path) -> None:
    def call(name: str) -> dict[str, Any]:
        turn = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": name, "arguments": {}}}],
        }
        return {"messages": [{"role": "user", "content": "go"}, turn]}

    def image(url: str) -> dict[str, Any]:
        asked = [{"type": "image", "url": url}, {"type": "text", "text": "What is it?"}]
        return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": "A cat."}]}

    rows = [call("f"), call("g"), image("1"), image("2")]
    assert not {"data.duplicate_rows", "data.conflicting_answers"} & ids(
        audited(tmp_path, rows[2:], tokenizer=None)
    )
    assert "data.duplicate_rows" not in ids(audited(tmp_path, rows, tokenizer=None))


def test_near_duplicates(tmp_path: Path) -> None:
    long = "The warehouse by the old canal holds four hundred crates of lanterns, ropes and spare sails for the fleet."
    rows = [*sound_rows(100), pair("Describe it.", f" {long}"), pair("Describe it!", f" {long[:-1]}s.")]
    found = finding(audited(tmp_path, rows), "data.near_duplicate_rows")
    assert found.rows == (100, 101)
    assert found.severity.value == "info"
    assert found.values["highest"] > 0.8


def test_one_passage_with_several_questions_is_no_copy(tmp_path: Path) -> None:
    passage = (
        "The warehouse by the old canal holds four hundred crates of lanterns, ropes and spare sails. " * 4
    )
    rows = [
        pair(f"{passage} Question: how many {n}?", f" {a}.")
        for n, a in (("crates", "four hundred"), ("canals", "one"))
    ]
    assert "data.near_duplicate_rows" not in ids(audited(tmp_path, [*sound_rows(60), *rows]))


@pytest.mark.parametrize(
    ("left", "right", "kind"),
    [
        ("positive", "negative", "label"),
        ("42", "43", "label"),
        ("Yes.", "yes", None),
        ("The capital of the country is Paris.", "The capital of the country is London.", "one place"),
        ("A horse is eating grass.", "The horses are eating grass.", None),
        ("Cold air spoils the first try.", "Nobody has ever needed to.", "different"),
        ("the fans watch the match", "watch a match with fans", None),
    ],
)
def test_contradictions(left: str, right: str, kind: str | None) -> None:
    assert contradiction(left, right) == kind


def test_one_pair_of_conflicting_labels_is_a_warning(tmp_path: Path) -> None:
    rows = [*sound_rows(400), pair("Is gate nine open?", " yes"), pair("Is gate nine open?", " no")]
    found = finding(audited(tmp_path, rows), "data.conflicting_answers")
    assert found.severity.value == "warning"
    assert found.rows == (400, 401)


def test_sampling_on_purpose_is_info(tmp_path: Path) -> None:
    rows = [
        pair(f"Write about gate {i}.", f" Text {word} {i}.")
        for i in range(10)
        for word in ("kelp", "iron", "moss", "dune")
    ]
    assert finding(audited(tmp_path, rows), "data.conflicting_answers").severity.value == "info"


def test_another_system_text_is_no_conflict(tmp_path: Path) -> None:
    rows = [
        chat("Who are you?", "A clerk.", system="Be a clerk."),
        chat("Who are you?", "A cook.", system="Be a cook."),
    ]
    assert "data.conflicting_answers" not in ids(audited(tmp_path, rows))


# -- forms --------------------------------------------------------------------------------------------------


def json_rows(count: int, **changes: str) -> list[dict[str, Any]]:
    rows = [pair(f"Part {i} as JSON.", json.dumps({"part": i, "ok": True})) for i in range(count)]
    for index, text in changes.items():
        rows[int(index[1:])] = pair(f"Part {index} as JSON.", text)
    return rows


def test_unparseable_json_names_the_closer(tmp_path: Path) -> None:
    found = finding(audited(tmp_path, json_rows(30, r4='{"part": 4, "ok": [true')), "data.json_unparseable")
    assert found.rows == (4,)
    assert found.of == 30
    assert found.fix is not None
    assert "append ']}' to row 4" in found.fix.text


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{'part': 4}", "single quotes"),
        ('{"part": 4} I hope it helps', "text after the JSON"),
        ('{"part" 4}', "syntax"),
    ],
)
def test_kinds_of_broken_json(tmp_path: Path, text: str, kind: str) -> None:
    found = finding(audited(tmp_path, json_rows(30, r4=text)), "data.json_unparseable")
    assert found.values["kinds"] == {kind: 1}


def test_json_lines_fences_and_usual_trailing_text_are_fine(tmp_path: Path) -> None:
    lines = json_rows(30, r1='{"a": 1}\n{"a": 2}', r2='```json\n{"part": 2}\n```')
    assert "data.json_unparseable" not in ids(audited(tmp_path, lines))
    talk = [pair(f"Part {i}?", json.dumps({"part": i}) + (" Done." if i % 3 else "")) for i in range(30)]
    assert "data.json_unparseable" not in ids(audited(tmp_path, talk))
    assert "data.json_unparseable" not in ids(audited(tmp_path, [*sound_rows(20), pair("x?", '{"a": 1')]))


def test_json_keys(tmp_path: Path) -> None:
    renamed = finding(audited(tmp_path, json_rows(30, r7='{"Part": 7, "ok": true}')), "data.json_keys_drift")
    assert renamed.severity.value == "warning"
    assert renamed.values["respelled"] == {"Part": "part"}
    optional = audited(tmp_path, json_rows(30, r7='{"part": 7, "ok": true, "remark": "x"}'))
    assert finding(optional, "data.json_keys_drift").severity.value == "info"
    assert "data.json_keys_drift" not in ids(audited(tmp_path, json_rows(30)))


def test_format_inconsistent(tmp_path: Path) -> None:
    found = finding(
        audited(tmp_path, json_rows(30, r2="I am sorry, I cannot read part two.")), "data.format_inconsistent"
    )
    assert found.rows == (2,)
    lists = [pair(f"List {i}?", f"- item {i}") for i in range(28)] + [
        pair("Say?", " A sentence in prose here.")
    ] * 2
    assert "data.format_inconsistent" not in ids(audited(tmp_path, lists))


def test_unbalanced_tags(tmp_path: Path) -> None:
    rows = [pair(f"Gate {i}?", f"<think>hm {i}</think> It is open.") for i in range(10)]
    rows[3] = pair("Gate?", "<think>hm It is open.")
    found = finding(audited(tmp_path, rows), "data.unbalanced_tags")
    assert found.rows == (3,)
    assert found.severity.value == "warning"
    opened = [pair(f"Gate {i}?", f"hm {i}</think> It is open.") for i in range(10)]
    assert finding(audited(tmp_path, opened), "data.unbalanced_tags").severity.value == "info"


def test_labels(tmp_path: Path) -> None:
    skewed = [pair(f"Text {i}?", " ham" if i % 20 else " spam") for i in range(200)]
    found = finding(audited(tmp_path, skewed), "data.label_imbalance")
    assert found.severity.value == "warning"
    assert "95 %" in found.title
    typo = [pair(f"Text {i}?", " positive" if i % 2 else " negative") for i in range(200)]
    typo[0] = pair("Text?", " postive")
    misspelt = finding(audited(tmp_path, typo), "data.label_imbalance")
    assert misspelt.values["misspelt"] == {"postive": "positive"}
    even = [pair(f"Text {i}?", " ham" if i % 2 else " spam") for i in range(200)]
    assert "data.label_imbalance" not in ids(audited(tmp_path, even))


def test_scripts(tmp_path: Path) -> None:
    rows = [*sound_rows(100), pair("Who is there, please?", " Это порт номер девять.")]
    assert finding(audited(tmp_path, rows), "data.language_mix").rows == (100,)
    translated = [pair(f"Translate: gate {i}", f" ворота номер {i}.") for i in range(30)]
    assert (
        "another script than their prompt"
        in finding(audited(tmp_path, translated), "data.language_mix").title
    )
    russian = [pair(f"Где ворота {i}?", f" Ворота {i} у порта.") for i in range(30)]
    assert "data.language_mix" not in ids(audited(tmp_path, russian))


# -- unfinished answers -------------------------------------------------------------------------------------


def test_unfinished_json_among_prose(tmp_path: Path) -> None:
    rows = [*sound_rows(100), pair("As JSON?", '{"a": 1, "b": "c')]
    found = finding(audited(tmp_path, rows), "data.unfinished_completion")
    assert found.rows == (100,)
    assert found.severity.value == "warning"
    assert "data.json_unparseable" not in ids(audited(tmp_path, rows))


def test_an_open_fence_in_one_of_many_rows(tmp_path: Path) -> None:
    rows = [*sound_rows(30), pair("Code?", "Like so:\n```python\nprint('x')\nfor i in")]
    found = finding(audited(tmp_path, rows), "data.unfinished_completion")
    assert found.rows == (30,)
    assert found.severity.value == "error"


def test_an_open_tag_where_the_others_are_closed(tmp_path: Path) -> None:
    rows = [pair(f"As XML {i}?", f"<order><id>{i}</id></order>") for i in range(40)]
    rows[7] = pair("As XML 7?", "<order><id>7</id")
    found = finding(audited(tmp_path, rows), "data.unfinished_completion")
    assert found.rows == (7,)
    assert found.severity.value == "error"
    notation = [pair(f"Tag {i}?", f"<noun> gate number {i}") for i in range(40)]
    assert "data.unfinished_completion" not in ids(audited(tmp_path, notation))


def test_prose_cut_at_a_field_width(tmp_path: Path) -> None:
    rows = sound_rows(200)
    for index in (10, 50, 90, 130):
        name = "abcdefghijklmnop"[index // 10] * 5
        text = f" The gate called {name} was built by the people of the old town, who were proud of it."
        rows[index] = pair(f"Tell me about gate {index}, please?", text[:80])
    found = finding(audited(tmp_path, rows), "data.unfinished_completion")
    assert found.rows == (10, 50, 90, 130)
    assert found.severity.value == "warning"
    assert "exactly 80 characters" in found.message


def test_answers_cut_at_a_field_width_where_none_has_a_full_stop(tmp_path: Path) -> None:
    words = ("harbour", "lantern", "violin", "orchard", "granite", "compass", "bakery", "meadow", "turbine")
    titles = [" ".join(words[(i * 7 + j * (i % 5 + 1)) % 9] for j in range(3 + i % 7)) for i in range(120)]
    rows = [pair(f"Title for text {i}?", title[:60]) for i, title in enumerate(titles)]
    cut = tuple(i for i, title in enumerate(titles) if len(title) > 60)
    assert len(cut) > 10
    found = finding(audited(tmp_path, rows), "data.unfinished_completion")
    assert set(cut) <= set(found.rows)
    assert "A cut at 60 characters" in found.message
    whole = [pair(f"Title for text {i}?", title) for i, title in enumerate(titles)]
    assert "data.unfinished_completion" not in ids(audited(tmp_path, whole))


def test_a_set_whose_answers_never_end_in_a_full_stop_is_silent(tmp_path: Path) -> None:
    rows = [
        pair(f"Title for text {i}?", f"the long and winding story of gate number {i} by the sea")
        for i in range(60)
    ]
    assert "data.unfinished_completion" not in ids(audited(tmp_path, rows))


def test_json_rows_that_are_cut_have_one_headline(tmp_path: Path) -> None:
    result = audited(tmp_path, json_rows(40, r4='{"part": 4, "ok', r9='{"part": 9'))
    assert finding(result, "data.json_unparseable").rows == (4, 9)
    assert "data.unfinished_completion" not in ids(result)
    assert "data.format_inconsistent" not in ids(result)


@pytest.mark.parametrize(
    ("left", "right", "limit", "distance"),
    [("kitten", "sitting", 10, 3), ("", "abc", 10, 3), ("same", "same", 10, 0), ("abcdef", "uvwxyz", 3, 4)],
)
def test_edit_distance(left: str, right: str, limit: int, distance: int) -> None:
    assert edit_distance(left, right, limit) == distance
