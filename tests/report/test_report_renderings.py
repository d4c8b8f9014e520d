"""All renderings: golden files, the same content in the same order, hostile rows, determinism.

`GRADIAN_WRITE_GOLDEN=1` writes the golden files anew; look at the difference before committing it.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections import Counter
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console

from gradian.errors import ConfigError
from gradian.report.json_file import load_report
from gradian.report.model import Report
from gradian.report.render import render
from gradian.report.terminal import render_terminal
from gradian.version import __version__
from support.reports import CUT, MECHANICAL, REPORTS, row_scores

GOLDEN = Path(__file__).parent / "golden"
VOID = {"meta", "input", "br", "link", "img", "hr"}
ENUMS = {"outcome", "cause", "confidence", "severity"}
HOSTILE = {
    "rich markup": "[/] [bold red]x[/bold red] [link=http://e.example]y[/link] :boom:",
    "ansi": "\x1b[31mred\x1b[0m \x1b]8;;http://e.example\x07link\x1b]8;;\x07 \x9b2J",
    "html": "</script></style></pre></title><script>alert(1)</script>"
    "<img src=//e.example onerror=alert(1)> \" ' onload=x",
    "fences": "`````\n# h1\n`````\n~~~\n<b>\n``` ` ``",
    "markdown": "|a|\\|b|\n|---|\n\n# h\n- [x](javascript:alert(1)) ![i](http://e.example/i.png) "
    "<http://e.example> [r]\n\n[r]: http://e",
    "template": "{{ 7 * 7 }} {% raw %} {# c #} ${7*7}",
    "control": "\0\x01\x08\x0b\x0c\x7f\x85\u2028\u2029\ufeff\ufffe",
    "bidi": "\u202egnp.exe\u202c \u2066x\u2069 \u200f\u061c\U000e0041",
    "surrogates": "\ud800 \udfff \ud83d",
    "wide": "漢字仮名交じり文" * 30 + "👩\u200d👩\u200d👧\u200d👦" * 30,
    "marks": "e" + "\u0301" * 400,
    "tabs and returns": "a\tb\r\nc\rd\n\n\n e",
    "empty": "",
}


def poisoned(report: Report, payload: str) -> Report:
    """The report with the payload in every string that it holds."""

    def poison(value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return value if key in ENUMS else payload
        if isinstance(value, dict):
            return {name: poison(entry, name) for name, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [poison(entry, key) for entry in value]
        return value

    fields = poison(report.model_dump(by_alias=True, mode="json"))
    fields["items"] = [item | {"outcome": "lost"} for item in fields["items"]]
    return Report.model_validate(fields)


class Page(HTMLParser):
    """What a browser would make of it: balanced tags, attributes, the text outside of style and script."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if not {"style", "script", "title"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]


def body(page: str) -> str:
    """The page without style, script and version: what a golden file should hold."""
    bare = re.sub(r"<(style|script)>.*?</\1>", r"<\1></\1>", page, flags=re.DOTALL)
    return bare.replace(__version__, "VERSION")


def plain(report: Report, format: str) -> str:
    """The words of a rendering, without its markup and line breaks."""
    rendered = render(report, format, width=400)
    if format == "html":
        return Page(rendered).text
    if format == "markdown":
        rendered = (
            html.unescape(re.sub(r"\\([^\w\s])", r"\1", rendered)).replace("*", "").replace("\u200b", "")
        )
    return " ".join(rendered.split())


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize(("format", "ending"), [("text", "txt"), ("markdown", "md")])
def test_golden(name: str, format: str, ending: str) -> None:
    compare_golden(f"{name}.{ending}", render(REPORTS[name], format, width=80))


@pytest.mark.parametrize("name", ["mechanical", "smoke_test"])
def test_golden_html(name: str) -> None:
    compare_golden(f"{name}.html", body(render(REPORTS[name], "html")))


@pytest.mark.parametrize("name", ["mechanical", "smoke_test"])
def test_json_fields_are_added_and_never_renamed(name: str) -> None:
    rendered = render(REPORTS[name], "json")
    path = GOLDEN / f"{name}.json"
    if os.environ.get("GRADIAN_WRITE_GOLDEN"):
        path.write_text(rendered, encoding="utf-8", newline="\n")
    golden = json.loads(path.read_bytes())
    fields = json.loads(rendered)
    assert gone(golden, fields) == []
    assert rendered == json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
    assert load_report(path) == REPORTS[name]  # a report of an earlier Gradian can still be shown


def gone(golden: Any, fields: Any, path: str = "") -> list[str]:
    """The paths of the golden file whose value is missing or another."""
    if isinstance(golden, dict) and isinstance(fields, dict):
        missing = [f"{path}.{key}" for key in golden.keys() - fields.keys()]
        shared = golden.keys() & fields.keys()
        return missing + [
            entry for key in shared for entry in gone(golden[key], fields[key], f"{path}.{key}")
        ]
    if isinstance(golden, list) and isinstance(fields, list) and len(golden) == len(fields):
        pairs = enumerate(zip(golden, fields, strict=True))
        return [entry for index, (old, new) in pairs for entry in gone(old, new, f"{path}[{index}]")]
    return [] if golden == fields else [path]


def compare_golden(file: str, rendered: str) -> None:
    path = GOLDEN / file
    if os.environ.get("GRADIAN_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(rendered, encoding="utf-8", newline="\n")
    assert rendered == path.read_bytes().decode("utf-8")


@pytest.mark.parametrize("name", REPORTS)
def test_the_first_paragraph_is_the_verdict_verbatim(name: str) -> None:
    report = REPORTS[name]
    terminal = render(report, "text", width=10_000).split("\n\n")[1]
    assert terminal.split("\n")[0] == report.verdict.text
    assert render(report, "markdown").split("\n\n")[1] == report.verdict.text
    lead = re.search(r'<p class="lead">(.*?)</p>', render(report, "html"), re.DOTALL)
    assert lead is not None
    assert html.unescape(re.sub("</?code>", "`", lead.group(1))) == report.verdict.text


@pytest.mark.parametrize("format", ["text", "markdown", "html"])
@pytest.mark.parametrize("name", REPORTS)
def test_sections_come_in_one_order(name: str, format: str) -> None:
    words = plain(REPORTS[name], format).split("Sections")[-1]
    titles = [
        "What was lost",
        "What the audit found",
        "The lost items",
        "Which groups of rows did it",
        "Which rows did it",
        "What to try",
        "What this does not show",
        "Provenance",
    ]
    found = [words.rfind(title) for title in titles]
    present = [place for place in found if place >= 0]
    assert present == sorted(present)
    report = REPORTS[name]
    has = [
        report.evaluation,
        report.findings,
        report.evaluation,
        report.groups,
        report.rows,
        report.next_steps,
        report.limits,
        report.provenance.versions,
    ]
    assert [place >= 0 for place in found] == [bool(part) for part in has]


def small_report() -> Report:
    """Few enough of everything for every medium to show all of it."""
    rows = row_scores(harmful=9, helpful=3)
    return MECHANICAL.model_copy(
        update={
            "rows": rows,
            "items": MECHANICAL.items[:6],
            "groups": MECHANICAL.groups[:3],
            "rows_total": 402,
        }
    )


def written_forms(value: float | int) -> set[str]:
    """Every form in which a number may appear; independent of the code under test."""
    if isinstance(value, int):
        return {f"{value:,}"}
    forms = {f"{value:,.3f}", f"{abs(value):,.3f}", f"{100 * abs(value):.1f}%", f"{abs(value):.1e}"}
    return forms | ({"p < 0.001"} if 0 <= value < 0.001 else set())


def numbers_of(value: Any, path: str = "") -> list[tuple[str, float | int]]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, (int, float)):
        return [(path, value)]
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return [pair for key, entry in pairs for pair in numbers_of(entry, f"{path}.{key}")]


# A terminal leaves the settings to gradian.yaml, and the numbers and notes of findings to report.json.
LEFT_TO_FILES = re.compile(r"^\.provenance\.config|^\.findings\.\d+\.(values|count|of)")
NOT_PRINTED = re.compile(
    r"^\.schema_version|^\.(groups|findings)\.\d+\.rows\.|^\.timings|^\.items\.\d+\.item$"  # rows as a count
    r"|^\.items\.[03]\."  # these two were kept
)


@pytest.mark.parametrize("format", ["text", "markdown", "html"])
def test_every_number_of_the_model_is_in_every_rendering(format: str) -> None:
    report = small_report()
    words = plain(report, format)
    tokens = set(re.findall(r"p < 0\.001|[\d,]*\d(?:\.\d+)?(?:e[-+]\d+)?%?", words)) | set(
        re.findall(r"-\d[\d,]*\.\d+", words)
    )
    numbers = [pair for pair in numbers_of(report.model_dump()) if not NOT_PRINTED.search(pair[0])]
    if format == "text":
        numbers = [pair for pair in numbers if not LEFT_TO_FILES.search(pair[0])]
    assert len(numbers) > 140
    missing = [(path, value) for path, value in numbers if not written_forms(value) & tokens]
    assert missing == []


@pytest.mark.parametrize("format", ["text", "markdown", "html"])
def test_every_sentence_of_the_model_is_in_every_rendering(format: str) -> None:
    report = small_report()
    words = plain(report, format).replace("`", "")
    sentences = [
        *report.verdict.reasons,
        *report.verdict.fixes,
        *report.limits,
        *report.provenance.rows_left_out,
        *report.evaluation.notes,
        *(f.title for f in report.findings if format != "text" or f.severity.value != "info"),
        CUT,
        *(item.tuned_said for item in report.items if item.outcome == "lost"),
        *report.provenance.versions.values(),
        *report.timings.reused,
    ]
    assert [sentence for sentence in sentences if sentence.replace("`", "") not in words] == []


@pytest.mark.parametrize("format", ["text", "markdown", "html"])
def test_stamps_are_seen(format: str) -> None:
    assert "SMOKE TEST" in plain(REPORTS["smoke_test"], format)
    forced = plain(REPORTS["inconclusive"], format)
    assert "FORCED" in forced
    assert "PARTIAL" in forced
    assert not {"SMOKE", "FORCED:", "PARTIAL:"} & set(plain(MECHANICAL, format).split())


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("format", ["text", "markdown", "json", "html"])
def test_rendering_is_deterministic(name: str, format: str) -> None:
    report = REPORTS[name]
    again = Report.model_validate_json(report.model_dump_json())
    assert render(report, format) == render(again, format)


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_on_a_terminal(payload: str) -> None:
    for report in (poisoned(MECHANICAL, payload), poisoned(REPORTS["inconclusive"], payload)):
        for width in (20, 40, 80, 120):
            page = render(report, "text", width=width)
            assert [line for line in page.split("\n") if cell_len(line) > width] == []
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page)
            page.encode("utf-8")


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_in_markdown(payload: str) -> None:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    harmless = Counter(token.type for token in parser.parse(render(poisoned(MECHANICAL, "word"), "markdown")))
    page = render(poisoned(MECHANICAL, payload), "markdown")
    tokens = parser.parse(page)
    structure = ("heading_open", "table_open", "tr_open", "td_open", "html_block", "hr", "code_block")
    found = Counter(token.type for token in tokens)
    assert {kind: found[kind] for kind in structure} == {kind: harmless[kind] for kind in structure}
    inline = {child.type for token in tokens for child in token.children or ()}
    assert not inline & {"link_open", "image", "html_inline", "s_open"}
    page.encode("utf-8")


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_in_html(payload: str) -> None:
    page = render(poisoned(MECHANICAL, payload), "html")
    parsed = Page(page)
    assert (parsed.tags["script"], parsed.tags["style"], parsed.tags["h1"]) == (1, 1, 1)
    assert not parsed.tags.keys() & {"img", "b", "iframe", "object", "link"}
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    assert all(value.startswith("#") for value in parsed.values("href"))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page)
    if "{{" in payload:
        assert "{{ 7 * 7 }} {% raw %} {# c #} ${7*7}" in parsed.text


def test_a_megabyte_in_every_row_and_item_stays_small() -> None:
    huge = "<&>\"'" * 200_000
    rows = tuple(row.model_copy(update={"prompt": huge, "answer": huge}) for row in row_scores(harmful=400))
    items = tuple(item.model_copy(update={"tuned_said": huge, "prompt": huge}) for item in MECHANICAL.items)
    report = MECHANICAL.model_copy(update={"rows": rows, "items": items})
    for format, most in (("html", 1_300_000), ("markdown", 200_000), ("text", 20_000)):
        page = render(report, format)
        assert len(page.encode("utf-8")) < most
        assert "chars" in page


def test_html_of_400_rows_is_below_half_a_megabyte() -> None:
    rows = tuple(
        row.model_copy(update={"prompt": "word " * 100, "answer": "word " * 100})
        for row in row_scores(harmful=400)
    )
    page = render(MECHANICAL.model_copy(update={"rows": rows}), "html")
    assert len(page.encode("utf-8")) < 500_000
    assert Page(page).text.count("train.jsonl:") > 400


@pytest.mark.parametrize("name", REPORTS)
def test_html_is_one_valid_accessible_file(name: str) -> None:
    page = render(REPORTS[name], "html")
    parsed = Page(page)
    assert page.startswith('<!doctype html>\n<html lang="en">')
    assert parsed.tags["h1"] == 1
    ids = parsed.values("id")
    assert len(ids) == len(set(ids))
    references = [
        *parsed.values("aria-labelledby"),
        *parsed.values("for"),
        *parsed.values("data-filters"),
        *(value[1:] for value in parsed.values("href")),
    ]
    assert set(references) <= set(ids)
    assert {"main", "nav", "header", "footer"} <= parsed.tags.keys()
    assert parsed.tags["caption"] == parsed.tags["table"]
    assert len(parsed.values("scope")) == parsed.tags["th"]
    assert "<noscript>" in page
    assert "default-src 'none'" in parsed.values("content")[0]


def test_html_asks_nothing_of_the_network() -> None:
    page = render(MECHANICAL, "html")
    parsed = Page(page)
    assert not re.search(r"https?://|//[a-z]|@import|url\(", re.sub(r"base-uri|form-action", "", page))
    assert not parsed.values("src") + parsed.values("srcset") + parsed.values("xlink:href")


def test_html_tables_sort_by_number_and_headers_are_buttons() -> None:
    page = render(MECHANICAL, "html")
    table = re.search(r'<table id="table-harmful-rows">.*?</table>', page, re.DOTALL)
    assert table is not None
    assert table.group().count('<button type="button">') == 11
    assert 'data-sort="-0.0931">hurt 0.093' in table.group()


def test_where_the_tuned_model_leaves_the_wanted_answer_is_marked() -> None:
    item = MECHANICAL.items[1].model_copy(
        update={"wanted": "name Anna, age 34", "tuned_said": "name Anne, age <34>"}
    )
    page = render(MECHANICAL.model_copy(update={"items": (item,)}), "html")
    assert "<pre>name <mark>Anne, age &lt;34&gt;</mark></pre>" in page
    cut = item.model_copy(update={"tuned_said": "name An"})
    page = render(MECHANICAL.model_copy(update={"items": (cut,)}), "html")
    assert '<pre>name An<span class="ends">ends here</span></pre>' in page


@pytest.mark.parametrize("format", ["text", "markdown", "json", "html"])
def test_redaction_leaves_the_text_of_rows_and_items_out(format: str) -> None:
    secret = "SECRETWORD"
    items = tuple(
        item.model_copy(update=dict.fromkeys(("prompt", "wanted", "base_said", "tuned_said"), secret))
        for item in MECHANICAL.items
    )
    rows = tuple(row.model_copy(update={"prompt": secret, "answer": secret}) for row in MECHANICAL.rows)
    report = MECHANICAL.model_copy(update={"items": items, "rows": rows})
    assert secret in render(report, format, width=200)
    page = render(report, format, redact=True, width=200)
    assert secret not in page
    assert "redacted: 10 characters" in page


def test_unclustered_rows_and_accused_groups_are_never_left_out() -> None:
    accused, _, unclustered, *_ = MECHANICAL.groups
    fillers = [MECHANICAL.groups[3].model_copy(update={"id": str(index)}) for index in range(100, 200)]
    report = MECHANICAL.model_copy(update={"groups": (*fillers, unclustered, accused)})
    for format in ("text", "markdown", "html"):
        words = plain(report, format)
        assert "(unclustered rows)" in words
        assert "● invoice, total, currency (4)" in words
        assert "more groups are in report.json" in words


def test_color_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" not in render(MECHANICAL, "text")
    colored = render(MECHANICAL, "text", color=True)
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == render(MECHANICAL, "text")
    monkeypatch.setenv("NO_COLOR", "1")
    assert render(MECHANICAL, "text", color=True) == render(MECHANICAL, "text")


def test_a_terminal_without_unicode_gets_ascii() -> None:
    class Ascii(StringIO):
        encoding = "ascii"  # type: ignore[assignment]

    page = Ascii()
    render_terminal(MECHANICAL, Console(file=page, width=100, color_system=None))
    assert page.getvalue().isascii()
    assert "0.958 -> 0.283" in page.getvalue()


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ConfigError, match="choose one of text, markdown, json, html"):
        render(MECHANICAL, "pdf")
