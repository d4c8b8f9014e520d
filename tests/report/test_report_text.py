"""Hostile text: what each function must make of it."""

from __future__ import annotations

import html
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len

from gradian.report import text
from gradian.report.terminal_table import fit_label, fit_text

SPECIAL = st.text(
    alphabet="`*_[]()<>|\\&#;!~$@:/.-+=\"' \n\t\r\0\x1b\u202e\u200b\ud800ab1é漢👩\u200d🇦", max_size=60
)
ANY = st.one_of(st.text(max_size=60), SPECIAL)
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("nul\0bell\x07del\x7f", "nul␀bell␇del␡"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("lone\ud83d", "lone\\ud83d"),
        ("line\u2028sep", "line\\u2028sep"),
        ("a\r\nb\rc\td", "a\nb␍c\td"),
        ("👩\u200d🔬 मस्\u200dते naïve 漢", "👩\u200d🔬 मस्\u200dते naïve 漢"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(raw: str, shown: str) -> None:
    assert text.visible(raw) == shown


@given(ANY)
def test_visible_text_has_no_control_and_can_be_written(raw: str) -> None:
    shown = text.visible(raw)
    assert text.visible(shown) == shown
    shown.encode("utf-8")
    assert all(unicodedata.category(character) != "Cc" or character in "\n\t" for character in shown)


@pytest.mark.parametrize(
    ("raw", "limit", "shown"),
    [
        ("short", 5, "short"),
        ("abcdef", 5, "abcde … +1 char"),
        ("x" * 1_004_321, 4, "xxxx … +1,004,317 chars"),
        ("abe\u0301", 3, "ab … +2 chars"),  # not between e and its accent
        ("ab👩\u200d🔬", 3, "ab … +3 chars"),  # not inside the joined emoji
        ("a👍🏽", 2, "a … +2 chars"),  # not between the hand and its colour
        ("🇦🇹🇩🇪", 3, "🇦🇹 … +2 chars"),  # not inside a flag
        ("a" + "\u0301" * 500, 100, "a" + "\u0301" * 99 + " … +401 chars"),  # an attack: cut anywhere
    ],
)
def test_truncation_counts_what_it_leaves_out(raw: str, limit: int, shown: str) -> None:
    assert text.truncate(raw, limit) == shown


@given(ANY, st.integers(0, 40))
def test_nothing_is_lost_without_being_counted(raw: str, limit: int) -> None:
    shown = text.truncate(raw, limit)
    if len(raw) <= limit:
        assert shown == raw
    else:
        kept, rest = shown.rsplit(" … +", 1)
        assert raw.startswith(kept)
        assert len(kept) <= limit
        assert len(kept) + int(rest.split()[0].replace(",", "")) == len(raw)


def test_one_line_shows_line_breaks() -> None:
    assert text.one_line("  a \n\n b\t\tc  ") == "a ⏎ ⏎ b c"


@given(ANY)
def test_markdown_reads_as_the_text_itself(raw: str) -> None:
    rendered = PARSER.renderInline(text.markdown(raw))
    assert "<" not in rendered
    assert html.unescape(rendered).replace("\u200b", "") == text.one_line(raw)


@given(ANY)
def test_markdown_starts_no_block(raw: str) -> None:
    kinds = [token.type for token in PARSER.parse(text.markdown(raw))]
    assert kinds in ([], ["paragraph_open", "inline", "paragraph_close"])


@given(ANY)
def test_markdown_stays_inside_its_table_cell(raw: str) -> None:
    for cell in (text.markdown(raw), text.markdown_code(raw)):
        tokens = PARSER.parse(f"| a | b |\n| --- | --- |\n| {cell} | end |\n")
        assert sum(token.type == "td_open" for token in tokens) == 2
        assert [token.content for token in tokens if token.type == "inline"][-1] == "end"


@given(ANY)
def test_a_fence_holds_whatever_is_in_it(raw: str) -> None:
    tokens = PARSER.parse(text.markdown_fence(raw))
    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].content == text.visible(raw) + "\n"


@given(ANY.filter(lambda raw: "|" not in raw and text.one_line(raw)))
def test_a_code_span_holds_whatever_is_in_it(raw: str) -> None:
    (inline,) = [token for token in PARSER.parse(f"x {text.markdown_code(raw)}") if token.type == "inline"]
    assert inline.children is not None
    assert [child.content for child in inline.children if child.type == "code_inline"] == [text.one_line(raw)]


@pytest.mark.parametrize(
    ("raw", "written"),
    [
        ("p < 0.001, [-0.758, -0.583]", "p < 0.001, [-0.758, -0.583]"),  # numbers stay readable
        ("json_valid __init__", "json_valid \\_\\_init\\_\\_"),
        ("see https://e.example and www.e.example", "see https:&#8203;//e.example and www&#8203;.e.example"),
        ("@team", "@&#8203;team"),
        ("[x](javascript:1)", "\\[x\\](javascript:1)"),
        ("[1](//e)", "\\[1\\](//e)"),
        ("<b>a|b</b>", "&lt;b>a&#124;b&lt;/b>"),
    ],
)
def test_markdown_of_known_texts(raw: str, written: str) -> None:
    assert text.markdown(raw) == written


def test_code_spans_need_pairs() -> None:
    assert text.code_spans("set `a` and `b`") == [(False, "set "), (True, "a"), (False, " and "), (True, "b")]
    assert text.code_spans("one ` only") == [(False, "one ` only")]
    assert text.code_spans("``two``") == [(False, "``two``")]


@given(ANY, st.integers(1, 50))
def test_terminal_text_is_never_wider_than_asked(raw: str, width: int) -> None:
    assert cell_len(fit_text(raw, width)) <= width
    assert cell_len(fit_label(raw, width)) <= width


def test_a_terminal_that_cannot_print_it_gets_ascii() -> None:
    assert text.encodable("0.9 → 0.2 … naïve 漢 ●", "ascii") == "0.9 -> 0.2 ... na\\xefve \\u6f22 *"
    assert text.encodable("0.9 → naïve", "latin-1") == "0.9 -> naïve"
    assert text.encodable("0.9 → 漢", "utf-8") == "0.9 → 漢"
    assert text.encodable("→", "no-such-encoding") == "->"
