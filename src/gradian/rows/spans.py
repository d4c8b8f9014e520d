"""Which characters of a rendered conversation the assistant wrote.

Two ways, as trainers have two: the template's own `{% generation %}` blocks, or the difference between the
renderings of successive prefixes of the conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gradian.rows.row import Turn
from gradian.rows.template import TemplateRenderError

#: Private-use characters: no content begins or ends with them, no template trims or escapes them.
_STAND_IN = "\ue000answer\ue001"

Renderer = Callable[[Sequence[Turn], bool], str]
"""Turns and whether to add the generation prompt -> text."""


@dataclass(frozen=True)
class AssistantSpans:
    """The `[start, end)` characters of the assistant's turns, ascending.

    `prompt_differs`: for some turn, the prompt rendered alone (with the generation prompt) is no prefix of
    the whole text, so that the model is asked otherwise than it was trained.
    """

    spans: list[tuple[int, int]]
    prompt_differs: bool = False


def spans_by_prefix(
    whole: str,
    turns: Sequence[Turn],
    render: Renderer,
    stop_tokens: Sequence[str],
    special_tokens: Sequence[str] = (),
) -> AssistantSpans:
    """Spans by rendering the conversation up to and including each assistant turn.

    A span begins after the generation prompt and ends after what closes the turn. Where a template renders a
    turn otherwise once another follows (Qwen3 drops the reasoning of earlier turns), the turn is found by
    rendering the conversation with a stand-in for its content and comparing (as axolotl's `find_turn` does).

    Args:
        stop_tokens: tokens that close a turn, also after white space.
        special_tokens: tokens that close a turn when they follow its text at once (gpt-oss ends the last turn
            with one token and the others with another).
    """
    spans: list[tuple[int, int]] = []
    prompt_differs = False
    for index, turn in enumerate(turns):
        if turn.role != "assistant":
            continue
        before = _rendered_or_none(render, turns[:index], True)
        after = whole if index == len(turns) - 1 else _rendered_or_none(render, turns[: index + 1], False)
        begins = before if before is not None and whole.startswith(before) else None
        ends = after if after is not None and whole.startswith(after) else None
        prompt_differs = prompt_differs or begins is None
        if ends is not None and before is not None:
            span: tuple[int, int] | None = (common_prefix(before, ends), len(ends))
        else:
            span = _span_by_stand_in(whole, turns, index, render, stop_tokens, special_tokens)
            if span is not None and begins is not None:
                span = (min(len(begins), span[0]), span[1])
        if span is not None and span[0] < span[1] and (not spans or span[0] >= spans[-1][1]):
            spans.append(span)
    return AssistantSpans(spans, prompt_differs)


def _span_by_stand_in(
    whole: str,
    turns: Sequence[Turn],
    index: int,
    render: Renderer,
    stop_tokens: Sequence[str],
    special_tokens: Sequence[str],
) -> tuple[int, int] | None:
    """Where turn `index` lies in the text; None when the template does not render its content."""
    stand_in = replace(turns[index], content=_STAND_IN, extra={}, has_content=True)
    other = _rendered_or_none(render, (*turns[:index], stand_in, *turns[index + 1 :]), False)
    if other is None or _STAND_IN not in other:
        return None
    start = common_prefix(whole, other)
    tail = min(common_prefix(whole[::-1], other[::-1]), len(whole) - start)
    end = len(whole) - tail
    rest = whole[end:]
    closing = len(rest) - len(rest.lstrip())
    for token in stop_tokens:
        if rest.startswith(token, closing):
            return start, end + closing + len(token)
    closed_by = max((token for token in special_tokens if rest.startswith(token)), key=len, default="")
    return start, end + len(closed_by)


def _rendered_or_none(render: Renderer, turns: Sequence[Turn], generation_prompt: bool) -> str | None:
    """A template may refuse a part of a conversation that it accepts as a whole."""
    if not turns:
        return None
    try:
        return render(turns, generation_prompt)
    except TemplateRenderError:
        return None


def common_prefix(one: str, other: str) -> int:
    """Number of leading characters that two texts share, by bisection (texts are long, comparing is fast)."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
