"""Eval checks where they must fire, and where they must not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.auditing import TRL, audited, chat, finding, ids, pair, sound_rows

LONG = (
    "The warehouse by the old canal holds four hundred crates of lanterns, ropes and spare sails for the "
    "fishing fleet that leaves every morning at five; who keeps the key?"
)


def held_out(count: int = 60) -> list[dict[str, Any]]:
    return [
        pair(
            f"Name one tool for job {i * 13 + 5}.",
            f" For that one you take spanner {i * 7} and bring it back.",
        )
        for i in range(count)
    ]


def test_a_sound_eval_set_is_silent(tmp_path: Path) -> None:
    assert ids(audited(tmp_path, sound_rows(120), eval_rows=held_out(), select=["eval."])) == set()


@pytest.mark.parametrize("prompt", [LONG, LONG.upper(), f"  {LONG.replace(',', '')} "])
def test_exact_contamination(tmp_path: Path, prompt: str) -> None:
    rows = [*sound_rows(50), pair(LONG, " The clerk does.")]
    found = finding(
        audited(tmp_path, rows, eval_rows=[*held_out(), pair(prompt, " The clerk does.")]),
        "eval.contamination_exact",
    )
    assert found.rows == (60,)
    assert found.values["train_rows"] == [50]
    assert found.severity.value == "error"


def test_the_same_prompt_with_another_answer_is_a_warning(tmp_path: Path) -> None:
    rows = [*sound_rows(50), pair(LONG, " The clerk does.")]
    found = finding(
        audited(tmp_path, rows, eval_rows=[*held_out(), pair(LONG, " The cook.")]), "eval.contamination_exact"
    )
    assert found.severity.value == "warning"


def test_another_system_text_does_not_hide_contamination(tmp_path: Path) -> None:
    rows = [*sound_rows(50), chat(LONG, "The clerk does.", system="You are a clerk of the harbour.")]
    result = audited(tmp_path, rows, eval_rows=[*held_out(), chat(LONG, "The clerk does.")])
    assert finding(result, "eval.contamination_exact").values["train_rows"] == [50]
    assert "eval.contamination_near" not in ids(result)


def test_near_contamination(tmp_path: Path) -> None:
    rows = [*sound_rows(50), pair(LONG, " The clerk does.")]
    item = pair(LONG.replace("morning", "evening"), " The clerk does.")
    found = finding(audited(tmp_path, rows, eval_rows=[*held_out(), item]), "eval.contamination_near")
    assert found.rows == (60,)
    assert found.values["train_rows"] == [50]
    assert found.of_eval
    assert not found.row_level


def test_a_question_inside_a_longer_training_row(tmp_path: Path) -> None:
    padded = " ".join(f"Remark {i} of the harbour office, dated {i * 31}." for i in range(20))
    rows = [*sound_rows(50), pair(f"{padded} {LONG} {padded}", " The clerk does.")]
    found = finding(
        audited(tmp_path, rows, eval_rows=[*held_out(), pair(LONG, " Nobody.")]), "eval.contamination_near"
    )
    assert found.rows == (60,)
    assert "verbatim" in found.message


def test_a_shared_frame_is_no_contamination(tmp_path: Path) -> None:
    frame = (
        "Read the following remark of the harbour office and say in one word whether it is friendly or not: "
    )
    rows = [pair(f"{frame}{row['completion']}", " friendly") for row in sound_rows(80)]
    items = [pair(f"{frame}{row['completion']}", " friendly") for row in sound_rows(160)[100:]]
    assert "eval.contamination_near" not in ids(audited(tmp_path, rows, eval_rows=items))


def test_answer_leak(tmp_path: Path) -> None:
    answer = "It was Agnes Martin of the upper mill."
    rows = [*sound_rows(50), pair(f"Context: {answer} Say thanks.", " Thank you.")]
    items = [*held_out(), pair("Who had the key of the mill?", answer)]
    found = finding(audited(tmp_path, rows, eval_rows=items), "eval.answer_leak")
    assert found.rows == (60,)
    assert found.values["train_rows"] == [50]
    labels = [pair(f"Text {i}?", "the same long label for all") for i in range(60)]
    rows = [*sound_rows(50), pair("Say: the same long label for all", " ok then.")]
    assert "eval.answer_leak" not in ids(audited(tmp_path, rows, eval_rows=labels))


def test_conversations_that_were_split(tmp_path: Path) -> None:
    opening = "I would like to know when the harbour office opens in winter."
    rows = [chat(opening, "At nine.", "And on Sunday?", "It is closed.")]
    items = [chat(opening, "At nine.", "And in summer?", "At eight.")]
    assert (
        "1 by first question" in finding(audited(tmp_path, rows, eval_rows=items), "eval.group_leak").message
    )
    keyed = [{**row, "conversation_id": i} for i, row in enumerate(sound_rows(5))]
    other = [{**held_out()[0], "conversation_id": 3}, {**held_out()[1], "conversation_id": 77}]
    found = finding(audited(tmp_path, keyed, eval_rows=other), "eval.group_leak")
    assert found.rows == (0,)
    framed = [chat(opening, f"At {i}.", f"And on day {i}?", "No.") for i in range(20)]
    assert "eval.group_leak" not in ids(audited(tmp_path, framed, eval_rows=items))
    greeting = [chat("Hello", "Hi.", "When?", "Now.")]
    assert "eval.group_leak" not in ids(
        audited(tmp_path, greeting, eval_rows=[chat("Hello", "Hi.", "Who?", "Me.")])
    )


def test_small_and_repeated_eval_sets(tmp_path: Path) -> None:
    small = finding(audited(tmp_path, eval_rows=held_out(24)), "eval.too_small")
    assert "+-20 points" in small.title
    assert small.severity.value == "info"
    found = finding(audited(tmp_path, eval_rows=[*held_out(60), *held_out(3)]), "eval.duplicates")
    assert found.severity.value == "warning"
    assert found.values["surplus"] == 3
    assert not {"eval.too_small", "eval.duplicates"} & ids(audited(tmp_path, eval_rows=held_out(60)))


def test_unreadable_and_empty_items(tmp_path: Path) -> None:
    result = audited(tmp_path, eval_rows=[*held_out(60), "{broken", pair("Who?", ""), {"messages": 3}])
    assert finding(result, "eval.unreadable").rows == (60, 62)
    assert finding(result, "eval.no_answer").rows == (61,)


def test_truncated_eval_rows(tmp_path: Path) -> None:
    profile = replace(TRL, max_length=128, overflow="truncate_end")
    items = [*held_out(60), pair("Who?", " " + "x" * 300)]
    found = finding(audited(tmp_path, eval_rows=items, profile=profile), "eval.truncated")
    assert found.rows == (60,)
    assert found.severity.value == "warning"
    assert "eval.truncated" not in ids(audited(tmp_path, eval_rows=items))


def test_distribution_shift(tmp_path: Path) -> None:
    shifted = [pair(f"As JSON, {i}?", f'{{"job": {i}}}') for i in range(60)]
    found = finding(audited(tmp_path, sound_rows(60), eval_rows=shifted), "eval.distribution_shift")
    assert found.values["form"] == {"train": "prose", "eval": "json"}
    assert "eval.distribution_shift" not in ids(
        audited(tmp_path, sound_rows(60), eval_rows=sound_rows(160)[100:])
    )
