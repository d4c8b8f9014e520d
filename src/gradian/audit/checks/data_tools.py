"""Tool calls: can they be carried out, and do results follow them?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gradian.audit.facts import Hit, Hits, RowView
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import listed, plural, some

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


def _function(call: Any) -> Mapping[str, Any] | None:
    if not isinstance(call, Mapping):
        return None
    inner = call.get("function", call)
    return inner if isinstance(inner, Mapping) else None


def _known_tools(tools: tuple[Any, ...] | None) -> set[str] | None:
    if not tools:
        return None
    functions = [_function(tool) for tool in tools]
    return {str(function["name"]) for function in functions if function and function.get("name")}


def _call_fault(call: Any, known: set[str] | None) -> Hit | None:
    function = _function(call)
    if function is None or not function.get("name"):
        return Hit("call without a name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return Hit("arguments that are not JSON", str(function["name"]))
    if arguments is not None and not isinstance(arguments, Mapping):
        return Hit("arguments that are no object", str(function["name"]))
    if known is not None and function["name"] not in known:
        return Hit("call to a function that is not in `tools`", str(function["name"]))
    return None


def find_tool_fault(view: RowView) -> Hit | None:
    """The first fault in a row's tool calls."""
    known = _known_tools(view.conversation.tools)
    seen: set[str] = set()
    waiting = False
    for turn in view.conversation.turns:
        calls = turn.extra.get("tool_calls") or []
        if turn.extra.get("function_call"):
            calls = [turn.extra["function_call"]]
        if not isinstance(calls, list | tuple):
            return Hit("`tool_calls` is not a list")
        for call in calls:
            fault = _call_fault(call, known)
            if fault is not None:
                return fault
            id = call.get("id") if isinstance(call, Mapping) else None
            if isinstance(id, str) and id:
                if id in seen:
                    return Hit("call id used twice", id)
                seen.add(id)
        if turn.role in ("tool", "function", "ipython") and not waiting:
            return Hit("result without a call before it")
        # ShareGPT writes the call as text, so that any assistant turn may be one.
        waiting = turn.role == "assistant" or (waiting and turn.role in ("tool", "function", "ipython"))
    return None


@check(
    "data.tool_calls_invalid",
    title="Tool calls that cannot be carried out",
    severity=Severity.ERROR,
    needs=(Need.ROWS,),
    scan=find_tool_fault,
    row_level=True,
    explain="""
A tool call has arguments that are not a JSON object, calls a function that the row's `tools` do not define,
has no name or an id that is used twice, or a result stands there without a call. The model learns calls that
fail.

**Fix.** Mend or remove the rows named.
""",
)
def tool_calls_invalid(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    assert context.dataset is not None
    rows = hits.rows
    if rows:
        kinds = listed(f"{count:,} {kind}" for kind, count in hits.counts().items())
        details = [f"row {row}: {hit.detail}" for row, hit in hits.samples[:3] if hit.detail]
        yield Observation(
            title=f"{plural(len(rows), 'row')} of {context.dataset.rows:,} have invalid tool calls "
            f"({some(rows)})",
            message=f"{kinds}." + (f" {'; '.join(details)}." if details else ""),
            rows=rows,
            values=hits.counts(),
            fix=Fix(text=f"mend or remove {some(rows)}", safe=False, remove_rows=tuple(rows)),
        )
