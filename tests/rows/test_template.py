"""The sandbox, its additions, and what a broken or hostile template ends in."""

from __future__ import annotations

from typing import Any

import pytest

from gradian.errors import GradianError
from gradian.rows.template import ChatTemplate, TemplateRenderError

MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source, {"eos_token": "</s>"}).render(MESSAGES, **variables)


def test_variables_and_helpers() -> None:
    assert render("{{ messages[1].content }}{{ eos_token }}") == "bc</s>"
    assert render("{{ eos_token }}", eos_token="X") == "X"
    assert render("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}") == "TrueTrueFalse"
    assert render("{{ x | tojson }}", x={"é": "<b>", "n": None}) == '{"é": "<b>", "n": null}'
    assert (
        render("{{ x | tojson(indent=1, sort_keys=true) }}", x={"b": 1, "a": 2}) == '{\n "a": 2,\n "b": 1\n}'
    )
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{{ dict(a=1).a }}{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}") == "12"
    assert render("  {% if true %}\na\n  {% endif %}\n") == "a\n"


def test_the_clock_can_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}")
    assert template.reads_clock
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert template.render([]) == "1970-01-02"
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert template.render([]) > "2024"
    assert not ChatTemplate("x").reads_clock


def test_spans_of_generation_blocks() -> None:
    source = (
        "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}!{% endgeneration %}{% endif %}\n{% endfor %}"
    )
    template = ChatTemplate(source)
    assert template.has_generation_markers
    text, spans = template.render_with_spans([*MESSAGES, *MESSAGES])
    assert text == template.render([*MESSAGES, *MESSAGES])
    assert [text[start:end] for start, end in spans] == ["bc!", "bc!"]
    assert spans == [(17, 20), (37, 40)]
    assert ChatTemplate("{{ messages }}").render_with_spans([])[1] == []
    assert not ChatTemplate("{# generation #}").has_generation_markers
    assert ChatTemplate("{%- generation -%}x{% endgeneration %}").has_generation_markers


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "chat template, line 1"),
        ("a\n{{ x", "line 2"),
        ("{{ messages.missing.deeper }}", "deeper|missing"),
        ("{{ 'a' + none }}", "NoneType"),
        ("{{ 1 / 0 }}", "zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recurses|recursion"),
        ("{{ range(10**9) | list }}", "[Rr]ange"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe|access|mro|undefined"),
        ("{{ messages.append(1) }}", "unsafe|not safely|append"),
        ("{% set ns = namespace(_x=1) %}", "underscore"),
        ("{% include '/etc/passwd' %}", "loader|environment"),
    ],
)
def test_what_a_template_may_not_do(source: str, why: str) -> None:
    with pytest.raises(TemplateRenderError, match=why) as error:
        render(source)
    assert isinstance(error.value, GradianError)
    with pytest.raises(TemplateRenderError):
        ChatTemplate(source).render_with_spans(MESSAGES)
    assert render("ok") == "ok", "an error leaves nothing behind"


@pytest.mark.parametrize(
    "expression",
    ["raise_exception.__globals__", "''.__class__", "'{0.__class__}'.format(1)", "dict.__init__.__globals__"],
)
def test_internals_are_out_of_reach(expression: str) -> None:
    try:
        text = render("[{{ " + expression + " }}]")
    except TemplateRenderError:
        text = "[]"
    assert text == "[]"


def test_messages_are_copied_to_plain_data() -> None:
    class Sneaky(str):
        def escape(self) -> str:
            raise AssertionError("a template must not reach this")

    class Other:
        def write(self) -> None:
            raise AssertionError("a template must not reach this")

    messages = [{"role": Sneaky("user"), "content": Other(), "tags": ("a", True, 1.5)}]
    template = ChatTemplate("{{ messages[0].role }}{{ messages[0].content }}{{ messages[0].tags[0] }}")
    assert template.render(messages) == "user<Other>a"
    with pytest.raises(TemplateRenderError):
        ChatTemplate("{{ messages[0].role.escape() }}").render(messages)
    with pytest.raises(TemplateRenderError):
        ChatTemplate("{{ messages[0].content.write() }}").render(messages)


def test_hostile_content_is_only_text() -> None:
    content = "{{ 1 + 1 }}{% for %}</script>\x00"
    assert ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": content}]) == content
