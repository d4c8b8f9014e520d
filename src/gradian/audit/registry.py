"""The table of checks: one entry per id, declared beside the function that carries it out.

It knows what a check is called, how bad it is, what it needs, which thresholds it has and how to explain
itself. It knows nothing of rows, runs or files.

    @check(
        "adapter.zero_b",
        title="LoRA B matrices are all zero",
        severity=Severity.ERROR,
        needs=(Need.ADAPTER,),
        explain="...",
    )
    def zero_b(context: AuditContext) -> Iterator[Observation]:
        if zero == total:
            yield Observation(title=f"{zero} of {total} lora_B tensors are exactly zero", count=zero,
            of=total)

A check that looks at each row by itself passes `scan=`: a function of one row that returns a short piece of
evidence or None. The runner calls it once for every row in the streaming pass and hands the hits to the
check.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

from gradian.audit.finding import Fix, Severity
from gradian.errors import ConfigError

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.audit.facts import Hit, Hits, RowView

FAMILIES = ("data", "template", "token", "config", "adapter", "logs", "eval", "run")


class Need(str, Enum):
    """What a check cannot do without. A check whose need is missing is skipped, with the reason."""

    ROWS = "rows"  # a training set
    TOKENS = "tokens"  # the training set, tokenised as the trainer did
    EVAL_ROWS = "eval_rows"
    EVAL_TOKENS = "eval_tokens"
    TOKENIZER = "tokenizer"  # the run's own, else the base model's
    RUN_TOKENIZER = "run_tokenizer"  # one that is saved in the run folder
    BASE_TOKENIZER = "base_tokenizer"
    BASE_CONFIG = "base_config"  # config.json of the base model
    RUN = "run"
    SETTINGS = "settings"  # any training argument or LoRA setting
    LOGS = "logs"
    ADAPTER = "adapter"  # an adapter file or an adapter_config.json
    CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True)
class Observation:
    """What a check saw; the runner turns it into a `Finding` with the registry's id and severity.

    Attributes:
        title: one line, with the numbers (`12 of 96 rows lose their ending`).
        severity: overrides the check's default.
        message: further evidence, complete sentences.
        rows: 0-based row numbers, any order.
        of_eval: the rows are those of the eval set.
        count, of: how many things are affected, of how many; by default the rows and the rows of the data
            set.
        values: the numbers that fired and their thresholds; JSON values only.
        assumes: trainer behaviour that was taken for granted.
        fix: what to change, with the computed value.
        locations: files (`run/adapter_config.json`, `train.yaml:12`) for a finding that is about no row.
        row_level: overrides the check's own value.
    """

    title: str
    severity: Severity | None = None
    message: str = ""
    rows: Iterable[int] = ()
    of_eval: bool = False
    count: int | None = None
    of: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    assumes: str | None = None
    fix: Fix | None = None
    locations: Sequence[str] = ()
    row_level: bool | None = None


class NotApplicableError(Exception):
    """A check cannot say anything here; its message is the reason that is printed (`an RL run`)."""


RowScan = Callable[["RowView"], "Hit | None"]
CheckFunction = Callable[..., Iterable[Observation]]


@dataclass(frozen=True, slots=True)
class Check:
    """One entry of the table.

    Attributes:
        id: `family.name`.
        title: what is wrong, in general.
        severity: the usual severity; an observation may override it.
        needs: inputs without which the check is skipped.
        explain: Markdown: what it means, why it hurts, how to fix it, where this is known from.
        function: `(context)`, or `(context, hits)` where there is a scan.
        scan: evidence in one row, or None.
        thresholds: name -> default; `<id>.<name>` in the configuration.
        aliases: other ids that select and explain this check.
        row_level: its rows are the faulty ones, so that `attribute` may join them to groups.
    """

    id: str
    title: str
    severity: Severity
    needs: tuple[Need, ...]
    explain: str
    function: CheckFunction
    scan: RowScan | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    row_level: bool = False

    @property
    def family(self) -> str:
        return self.id.partition(".")[0]

    def run(self, context: AuditContext, hits: Hits | None) -> Iterable[Observation]:
        """What the check sees in this context."""
        return self.function(context) if self.scan is None else self.function(context, hits)


_CHECKS: dict[str, Check] = {}


def check(
    id: str,
    *,
    title: str,
    severity: Severity,
    needs: tuple[Need, ...] = (),
    explain: str,
    scan: RowScan | None = None,
    thresholds: Mapping[str, float] | None = None,
    aliases: tuple[str, ...] = (),
    row_level: bool = False,
) -> Callable[[CheckFunction], CheckFunction]:
    """Enter a check into the table. See `Check` for the arguments."""
    assert id.partition(".")[0] in FAMILIES, f"{id} is in no known family"

    def enter(function: CheckFunction) -> CheckFunction:
        taken = {name for entry in _CHECKS.values() for name in (entry.id, *entry.aliases)}
        assert not taken & {id, *aliases}, f"{id} is registered twice"
        _CHECKS[id] = Check(
            id=id,
            title=title,
            severity=severity,
            needs=needs,
            explain=explain.strip(),
            function=function,
            scan=scan,
            thresholds=dict(thresholds or {}),
            aliases=aliases,
            row_level=row_level,
        )
        return function

    return enter


@cache
def all_checks() -> tuple[Check, ...]:
    """Every check, sorted by id. Imports the modules of `gradian.audit.checks`, which register theirs."""
    package = importlib.import_module("gradian.audit.checks")
    for module in sorted(found.name for found in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"gradian.audit.checks.{module}")
    return tuple(_CHECKS[id] for id in sorted(_CHECKS))


def find_check(id: str) -> Check:
    """The check of this id or alias.

    Raises:
        ConfigError: there is none; the message names the nearest.
    """
    for entry in all_checks():
        if id == entry.id or id in entry.aliases:
            return entry
    raise unknown_id(id, "no check has this id")


def unknown_id(id: str, what: str, *, where: str | None = None) -> ConfigError:
    """The error for an id that matches no check, with the nearest names."""
    names = [name for entry in all_checks() for name in (entry.id, *entry.aliases)]
    # Only the part after the family is often remembered, so that `zero_b` finds `adapter.zero_b`.
    tails = {name.partition(".")[2]: name for name in names}
    near = difflib.get_close_matches(id, names, n=3, cutoff=0.5)
    near += [tails[tail] for tail in difflib.get_close_matches(id, sorted(tails), n=2, cutoff=0.6)]
    near = list(dict.fromkeys(near))
    fix = f"did you mean {' or '.join(near)}?" if near else "`gradian diagnose --list-checks` names them all"
    return ConfigError(f"{what}: {id!r}", where=where, fix=fix)


def selected_checks(select: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Check, ...]:
    """The checks that match a prefix of `select` (all, when it is empty) and none of `ignore`.

    A prefix is a whole id, a family (`data.` or `data`) or a beginning (`config.lr`); aliases count.

    Raises:
        ConfigError: a prefix matches nothing.
    """
    chosen = _matching(select, "--select") if select else {entry.id for entry in all_checks()}
    chosen -= _matching(ignore, "--ignore")
    return tuple(entry for entry in all_checks() if entry.id in chosen)


def _matching(prefixes: Sequence[str], option: str) -> set[str]:
    matched: set[str] = set()
    for prefix in prefixes:
        wanted = prefix.strip()
        hits = {
            entry.id
            for entry in all_checks()
            if wanted and any(name.startswith(wanted) for name in (entry.id, *entry.aliases))
        }
        if not hits:
            raise unknown_id(wanted, "no check matches", where=option)
        matched |= hits
    return matched


def checked_thresholds(overrides: Mapping[str, float]) -> dict[str, float]:
    """Thresholds from the configuration, `<check id>.<name>` -> number, verified against the table.

    Raises:
        ConfigError: a name is unknown or a value is no number.
    """
    known = {
        f"{entry.id}.{name}": value for entry in all_checks() for name, value in entry.thresholds.items()
    }
    for name, value in overrides.items():
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
            fix = f"did you mean {' or '.join(near)}?" if near else "see docs/checks.md for the thresholds"
            raise ConfigError(f"no check has the threshold {name!r}", where="thresholds", fix=fix)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise ConfigError(f"the threshold {name} must be a number, not {value!r}", where="thresholds")
    return {**known, **overrides}


__all__ = [
    "FAMILIES",
    "Check",
    "Fix",
    "Need",
    "NotApplicableError",
    "Observation",
    "Severity",
    "all_checks",
    "check",
    "checked_thresholds",
    "find_check",
    "selected_checks",
    "unknown_id",
]
