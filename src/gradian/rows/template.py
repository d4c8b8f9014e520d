"""A chat template: messages in, text out, exactly as `apply_chat_template` of transformers renders it.

Templates come with models and are not trusted: they run in jinja2's immutable sandbox, see plain data only,
and cannot reach files or attributes of Python objects. What the sandbox does not bound is time and memory:
loops inside loops run as long as they like (`range` alone is capped at 100,000 by jinja2).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gradian.errors import GradianError

GENERATION_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


class TemplateRenderError(GradianError):
    """The chat template refuses a conversation, or is broken itself."""


@dataclass(slots=True)
class _Tracker:
    """How many characters the template has written so far, and where its generation blocks lie."""

    written: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)


_TRACKER: ContextVar[_Tracker | None] = ContextVar("gradian_generation_tracker", default=None)


class GenerationExtension(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`: what the assistant wrote."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_record"), [], [], body).set_lineno(line)

    def _record(self, caller: Callable[[], str]) -> str:
        text = caller()
        tracker = _TRACKER.get()
        if tracker is not None:
            tracker.spans.append((tracker.written, tracker.written + len(text)))
        return text


class _Namespace(jinja2.utils.Namespace):
    """`namespace(...)` that takes no name with a leading underscore, as transformers has it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace cannot hold the underscore-prefixed name {name!r}"
        )


class _DictOnly:
    """`dict(...)` for templates, without the class's other attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja2's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(format: str) -> str:
    """The current time, or that of SOURCE_DATE_EPOCH, so that a template with a date can render the same."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch.isdigit():
        return datetime.fromtimestamp(int(epoch), timezone.utc).strftime(format)
    return datetime.now().strftime(format)


@lru_cache(maxsize=64)
def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationExtension, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _DictOnly()
    environment.globals["namespace"] = _Namespace
    return environment.from_string(source)


@dataclass(frozen=True)
class ChatTemplate:
    """A model's chat template.

    Args:
        source: the jinja2 text.
        special_tokens: `bos_token`, `eos_token`, ... as the template's variables.
    """

    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_generation_markers(self) -> bool:
        """True when the template marks what the assistant wrote with `{% generation %}`."""
        return GENERATION_MARKER.search(self.source) is not None

    @property
    def reads_clock(self) -> bool:
        """True when the rendering may depend on today's date; SOURCE_DATE_EPOCH pins it."""
        return "strftime_now" in self.source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """The text of a conversation.

        Raises:
            TemplateRenderError: the template is broken, or refuses these messages.
        """
        with _errors_named():
            context = self._context(messages, tools, add_generation_prompt, variables)
            return _compile(self.source).render(context)

    def render_with_spans(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> tuple[str, list[tuple[int, int]]]:
        """The text, and the `[start, end)` characters of every generation block, in order.

        Raises:
            TemplateRenderError: the template is broken, or refuses these messages.
        """
        tracker = _Tracker()
        pieces: list[str] = []
        token = _TRACKER.set(tracker)
        try:
            with _errors_named():
                context = self._context(messages, tools, add_generation_prompt, variables)
                for piece in _compile(self.source).generate(context):
                    pieces.append(piece)
                    tracker.written += len(piece)
        finally:
            _TRACKER.reset(token)
        return "".join(pieces), tracker.spans

    def _context(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> dict[str, Any]:
        context = {**self.special_tokens, "documents": None, **variables}
        context["messages"] = messages
        context["tools"] = tools
        context["add_generation_prompt"] = add_generation_prompt
        return {key: _plain(value) for key, value in context.items()}


def _plain(value: Any) -> Any:
    """A copy out of plain JSON types: a template sees no object whose methods it could call."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return f"<{type(value).__name__}>"


@contextmanager
def _errors_named() -> Iterator[None]:
    """Whatever a template does wrong becomes one error: it is somebody else's program."""
    try:
        yield
    except jinja2.TemplateSyntaxError as error:
        raise TemplateRenderError(
            "the chat template is not valid jinja2",
            where=f"chat template, line {error.lineno}",
            why=str(error.message),
            fix="take the template of the base model again",
        ) from None
    except RecursionError:
        raise TemplateRenderError(
            "the chat template cannot render the conversation", why="it recurses without end"
        ) from None
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise TemplateRenderError(
            "the chat template cannot render the conversation",
            why=reason,
            fix="change the messages as the reason says, or use a template that accepts them",
        ) from None
