"""Wrong encodings, loops and placeholders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.audit.text_faults import REFUSALS, encoding_fault, loop, placeholder, refusal, repaired


@pytest.mark.parametrize(
    "text", ["café", "naïve façade", "it’s “fine”", "Привет", "日本語", "€ 5", "🙂 ok", "¿qué?"]
)
def test_a_round_trip_through_cp1252_is_repaired(text: str) -> None:
    broken = "".join(
        bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in f"{text} and more".encode()
    )
    assert repaired(broken) == f"{text} and more"
    assert encoding_fault(broken) == "mojibake"


@pytest.mark.parametrize(
    "text",
    [
        "NÃO É POSSÍVEL",
        "Ânes et âmes, château",
        "Ñandú",
        "São Paulo",
        "```\nÃ© in code\n```",
        "plain ASCII",
        "Ð Đ ð",
        "Tiếng Việt Â Ê Ô",
    ],
)
def test_real_languages_are_left_alone(text: str) -> None:
    assert repaired(text) is None
    assert encoding_fault(text) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a \ufffd b", "replacement character"),
        ("bell \x07", "control character"),
        ("é \x00", "control character"),
        ("half \ud83d", "unpaired surrogate"),
        ("tab\tnew\r\nline", None),
    ],
)
def test_other_encoding_faults(text: str, fault: str | None) -> None:
    assert encoding_fault(text) == fault


@given(st.text())
def test_any_text_can_be_looked_at(text: str) -> None:
    encoding_fault(text)
    loop(text)
    refusal(text)
    placeholder(text)


def test_loops() -> None:
    assert loop("the same four words " * 20) is not None
    assert loop("\n".join(["the harbour is closed"] * 10)) == "the harbour is closed"
    assert loop("the same four words " * 10) is None  # 40 words are too few to call it a loop
    table = "\n".join(f"| {i} | {i * i} |" for i in range(60))
    assert loop(table) is None
    assert loop("\n".join(["}"] * 50 + ["x"])) is None
    assert loop(" ".join(f"word{i}" for i in range(500))) is None


def test_every_refusal_phrase_is_found() -> None:
    for phrase in REFUSALS:
        assert refusal(phrase.capitalize()) == phrase


def test_refusals_are_only_looked_for_at_the_start() -> None:
    assert refusal("I'm sorry, but I can't do that.") is not None
    assert refusal("I’m sorry, but I can’t do that.") is not None
    assert refusal("Sure. " + "x " * 120 + "as an AI language model") is None
    assert refusal("The model said nothing.") is None


@pytest.mark.parametrize("text", ["nan", " None ", "N/A", "[object Object]", "TODO", "..."])
def test_placeholders(text: str) -> None:
    assert placeholder(text) is not None


@pytest.mark.parametrize("text", ["no", "nothing", "a banana", "null and void is the contract"])
def test_answers_that_are_no_placeholders(text: str) -> None:
    assert placeholder(text) is None
