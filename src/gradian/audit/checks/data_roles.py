"""Who speaks, in which order, and who tells the model what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.facts import Hit, Hits, RowView
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, Observation, check
from gradian.audit.wording import excerpt, listed, percent, plural, some
from gradian.rows.row import Turn
from gradian.rows.shapes import KNOWN_ROLES

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext

_SYSTEM = frozenset({"system", "developer"})
_TOOL = frozenset({"tool", "function", "observation", "ipython"})


_SPEAKER = {**dict.fromkeys(_SYSTEM, "system"), **dict.fromkeys(_TOOL, "tool")}


def find_role_order(view: RowView) -> Hit | None:
    """The first thing that is wrong with the order of the turns."""
    turns = view.conversation.turns
    calls = tuple(bool(turn.extra and _calls(turn)) for turn in turns)
    return role_fault(tuple(turn.role for turn in turns), calls, view.conversation.prompt_turns is not None)


def _calls(turn: Turn) -> bool:
    return bool(turn.extra.get("tool_calls") or turn.extra.get("function_call"))


@lru_cache(maxsize=4096)
def role_fault(roles: tuple[str, ...], calls: tuple[bool, ...], split: bool) -> Hit | None:
    """What is wrong with an order of roles; None when nothing is.

    Args:
        calls: whether each turn calls a tool.
        split: the row itself parts prompt from answer, so that it may begin with any turn.
    """
    speakers = [_SPEAKER.get(role, role) for role in roles]
    if "system" in speakers[1:]:
        return Hit("has a system turn that is not the first")
    offset = int(speakers[:1] == ["system"])
    if speakers[offset : offset + 1] == ["assistant"] and not split:
        return Hit("starts with an assistant turn")
    for index in range(offset + 1, len(speakers)):
        if speakers[index] == speakers[index - 1] == "user":
            return Hit("has consecutive user turns")
        # An assistant may speak again right after a call that the data leaves unanswered.
        if speakers[index] == speakers[index - 1] == "assistant" and not calls[index - 1]:
            return Hit("has consecutive assistant turns")
    return None


@check(
    "data.role_order",
    title="Roles that do not alternate",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    scan=find_role_order,
    row_level=True,
    explain="""
A conversation starts with the assistant, has two turns of one speaker in a row, or a system turn that is not
the first. LLaMA-Factory **skips** such rows (one log line), torchtune stops, and a chat template may raise or
write something that the model has never seen. Chains of tool calls and their results are fine.

**Severity.** Error where the trainer skips or refuses these rows, else warning.

**Fix.** Merge consecutive turns of one speaker, move the system text to the front, drop the leading assistant
turn.

Sources: LLaMA-Factory's converters and hiyouga/LLaMA-Factory#5271, torchtune's `validate_messages`.
""",
)
def role_order(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    rows = hits.rows
    if not rows:
        return
    profile = context.profile
    effect = {
        "skip": f"{profile.trainer} skips these rows",
        "raise": f"{profile.trainer} stops at such a row",
    }
    kinds = [
        f"{len(found):,} {_plural_kind(kind, len(found))} ({some(found)})"
        for kind, found in sorted(hits.kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    kept = facts.rows - len(rows)
    yield Observation(
        title=f"{len(rows):,} of {plural(facts.rows, 'row')} have a wrong order of roles: {listed(kinds)}",
        severity=Severity.WARNING if profile.role_order == "accept" else Severity.ERROR,
        message=f"{effect[profile.role_order]}: {kept:,} of {facts.rows:,} are left."
        if profile.role_order in effect
        else "",
        rows=rows,
        values=hits.counts(),
        assumes=effect.get(profile.role_order),
        fix=Fix(
            text="merge consecutive turns of one speaker and drop a leading assistant turn "
            f"({plural(len(rows), 'row')})",
            safe=False,
        ),
    )


def _plural_kind(kind: str, count: int) -> str:
    if count == 1:
        return kind
    return re.sub(r"^(starts|has)\b", lambda word: {"starts": "start", "has": "have"}[word.group()], kind)


def find_unknown_role(view: RowView) -> Hit | None:
    """A role that is in no chat template."""
    unknown = [turn.role for turn in view.conversation.turns if turn.role not in KNOWN_ROLES]
    return Hit(unknown[0]) if unknown else None


@check(
    "data.unknown_role",
    title="Roles that no template knows",
    severity=Severity.ERROR,
    needs=(Need.ROWS,),
    scan=find_unknown_role,
    row_level=True,
    explain="""
A turn has a role outside system, developer, user, assistant and tool (and their usual other names: `human`,
`gpt`, `bot`, `model`, `observation`, ...). Templates either raise, leave the turn out, or write the role's
name into the text as if the model knew it.

**Fix.** Rename the role as the evidence proposes.
""",
)
def unknown_role(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    assert context.dataset is not None
    rows = hits.rows
    if rows:
        roles = [f"{kind!r} in {plural(count, 'row')}" for kind, count in hits.counts().items()]
        more = f" and {len(roles) - 5} other roles" if len(roles) > 5 else ""
        first = next(iter(hits.counts()))
        yield Observation(
            title=f"{plural(len(rows), 'row')} of {context.dataset.rows:,} use an unknown role: "
            f"{listed(roles[:5])}{more}",
            rows=rows,
            values={"roles": dict(list(hits.counts().items())[:20])},
            fix=Fix(text=f"rename the role {first!r} -> 'assistant' or 'user'", safe=False),
        )


def find_open_end(view: RowView) -> Hit | None:
    """A conversation in which the assistant does not have the last word."""
    turns = view.conversation.turns
    return Hit(turns[-1].role) if turns and turns[-1].role != "assistant" else None


@check(
    "data.last_turn_not_assistant",
    title="Conversations that do not end with the assistant",
    severity=Severity.WARNING,
    needs=(Need.ROWS,),
    scan=find_open_end,
    row_level=True,
    explain="""
The last turn is the user's or a tool's. With a loss on the assistant's turns it teaches nothing; with a loss
on everything the model learns to write the user's part. A row that has no assistant turn at all is not used.

**Fix.** Drop the last turn, or add the answer.
""",
)
def last_turn_not_assistant(context: AuditContext, hits: Hits) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    rows = hits.rows
    if rows:
        kinds = listed(f"{count:,} with {kind}" for kind, count in hits.counts().items())
        yield Observation(
            title=f"{len(rows):,} of {plural(facts.rows, 'conversation')} do not end with the assistant "
            f"({some(rows)})",
            message=f"They end: {kinds}.",
            rows=rows,
            values=hits.counts(),
            fix=Fix(text=f"drop the last turn of {plural(len(rows), 'row')}", safe=False),
        )


#: A variant of the system text counts as a typing error up to this many edits.
TYPO_EDITS = 10
PERSONAS = 50


@check(
    "data.system_prompt_inconsistent",
    title="System texts that differ between rows",
    severity=Severity.INFO,
    needs=(Need.ROWS,),
    thresholds={"low_share": 0.05, "high_share": 0.95},
    explain="""
Some rows have a system text and others have none, or one text is a slight variant of the usual one. What the
model learns then hangs on the system text that is used later; many templates also write a default one where
the row has none.

**Severity.** Warning when 5 to 95 % of the conversations have a system text, or when a variant differs from
the usual text by 10 edits or fewer. Data with more than 50 different texts (personas) is not reported.

**Fix.** Use the most common text everywhere, or none.
""",
)
def system_prompt_inconsistent(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    chats = facts.readable & (facts.turns > 0)
    total, with_system = int(chats.sum()), int((chats & facts.system).sum())
    if not with_system:
        return
    texts = sorted(facts.systems.counts.items(), key=lambda item: (-item[1], facts.systems.first[item[0]]))
    if len(texts) > PERSONAS or facts.systems.overflow:
        return
    common, times = texts[0]
    share = with_system / total
    low = context.threshold("data.system_prompt_inconsistent.low_share")
    high = context.threshold("data.system_prompt_inconsistent.high_share")
    values = {"share": share, "texts": len(texts), "most_common": excerpt(common, 200), "rows_with_it": times}
    if low <= share <= high:
        without = np.flatnonzero(chats & ~facts.system).tolist()
        yield Observation(
            title=f"{percent(share)} of the conversations have a system text and the others have none",
            severity=Severity.WARNING,
            message=f"The most common one ({plural(times, 'row')}) is: {excerpt(common)}",
            rows=without,
            values=values,
            fix=Fix(
                text=f"give all rows the same system text (-> {excerpt(common, 60)!r}), or none", safe=False
            ),
        )
    variants = [text for text, _ in texts[1:] if _is_typo(common, text)]
    if variants:
        counts = sum(facts.systems.counts[text] for text in variants)
        yield Observation(
            title=f"{plural(len(variants), 'variant')} of the usual system text in {plural(counts, 'row')}",
            severity=Severity.WARNING,
            message=f"Usual: {excerpt(common)} Variant: {excerpt(variants[0])}",
            rows=[facts.systems.first[text] for text in variants],
            count=counts,
            values=values,
            fix=Fix(text=f"-> {excerpt(common, 60)!r}", safe=False),
        )


def _is_typo(common: str, text: str) -> bool:
    """A few edits apart, and not merely another date or number."""
    if len(common) < 20 or re.sub(r"\d+", "0", common) == re.sub(r"\d+", "0", text):
        return False
    return 0 < edit_distance(common, text, TYPO_EDITS) <= min(TYPO_EDITS, len(common) // 5)


def edit_distance(left: str, right: str, limit: int) -> int:
    """Levenshtein distance, or `limit + 1` when it is larger. Only the band that can stay within is
    computed."""
    if abs(len(left) - len(right)) > limit:
        return limit + 1
    previous = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        start, stop = max(1, i - limit), min(len(right), i + limit)
        current = [limit + 1] * (len(right) + 1)
        current[0] = i
        for j in range(start, stop + 1):
            current[j] = min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (a != right[j - 1]))
        if min(current[max(0, start - 1) : stop + 1]) > limit:
            return limit + 1
        previous = current
    return min(previous[-1], limit + 1)
