"""The report as one HTML file that asks for nothing: style, script and charts are inside.

Jinja's autoescape is on, and every string goes through `text.visible` on its way out (`finalize`), so that no
template can forget it. The file works without its script, which only sorts and filters.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gradian.report import charts
from gradian.report.content import HTML, Block
from gradian.report.model import Report
from gradian.report.sections import sections
from gradian.report.text import code_spans, excerpt, one_line, visible
from gradian.version import __version__

SORTABLE_FROM = 3  # rows; sorting two is no help


def render_html(report: Report) -> str:
    """A whole HTML document; equal reports give equal text."""
    return _environment().get_template("report.html.j2").render(
        report=report,
        sections=sections(report, HTML),
        tiles=charts.tiles(report),
        forest=charts.forest(report.evaluation),
        outcomes=charts.outcomes(report.evaluation),
        group_bars=charts.group_bars(report.groups),
        histogram=charts.histogram([row.score for row in report.rows]),
        version=__version__,
        sortable_from=SORTABLE_FROM,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gradian.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_seen,
    )
    environment.filters.update(prose=_prose, one_line=one_line, excerpt=excerpt, divergence=_divergence)
    environment.tests["kind"] = _is_kind
    return environment


def _seen(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _is_kind(block: Block, name: str) -> bool:
    return type(block).__name__ == name


def _prose(text: str) -> Markup:
    """Text in which back-ticked pieces are code."""
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if code else piece
        for code, piece in code_spans(visible(text))
    )


def _divergence(said: str, wanted: str) -> Markup:
    """What was said, marked from where it differs from what was wanted.

    The mark starts at a word, so that `Anna` against `Anne` marks the whole name. An answer that is only
    the beginning of the wanted one is said to end there.
    """
    same = 0
    while same < min(len(said), len(wanted)) and said[same] == wanted[same]:
        same += 1
    if same == len(said):
        ending = Markup('<span class="ends">ends here</span>') if same < len(wanted) else Markup("")
        return Markup("{}{}").format(said, ending)
    while same > 0 and said[same - 1].isalnum():
        same -= 1
    return Markup("{}<mark>{}</mark>").format(said[:same], said[same:])
