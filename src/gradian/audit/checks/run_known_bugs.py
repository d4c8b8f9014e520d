"""Faults of particular releases that change what was trained. The table is data (`data/known_bugs.json`).

Each entry is a check of its own, `run.known_bug_<id>`, that holds for releases `from <= version < until` of
a package when all its conditions do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.run.trl_profile import parse_version

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext

EVEN_ROWS = 0.25  # below it the weights of tokens differ by less than that between accumulated batches


def known_bugs() -> list[dict[str, Any]]:
    """The table."""
    text = resources.files("gradian.audit").joinpath("data/known_bugs.json").read_text("utf-8")
    bugs: list[dict[str, Any]] = json.loads(text)
    return bugs


def applies(bug: Mapping[str, Any], context: AuditContext) -> bool:
    """True when the run used an affected release in an affected way. Needs a run."""
    run = context.run
    assert run is not None
    found = run.versions.get(bug["package"])
    version = parse_version(found.version) if found is not None else None
    first, fixed = parse_version(bug["from"]), parse_version(bug["until"])
    assert first is not None
    assert fixed is not None
    if version is None or not first <= version < fixed or context.profile.trainer not in bug["trainers"]:
        return False
    if bug.get("needs_chat_rows") and (context.dataset is None or not bool(context.dataset.templated.any())):
        return False
    return all(_holds(condition, context) for condition in bug["when"])


def _holds(condition: Mapping[str, Any], context: AuditContext) -> bool:
    assert context.run is not None
    if "base" in condition:
        value: Any = (context.base_config or {}).get(condition["base"])
    else:
        value = context.run.settings.get(condition["setting"])
    if "above" in condition:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value > condition["above"]
    if "starts_with" in condition:
        return isinstance(value, str) and value.startswith(condition["starts_with"])
    return bool(value == condition["is"])


def rows_are_even(context: AuditContext) -> bool:
    """True when the rows have about the same number of learnt tokens: a coefficient of variation below a quarter."""
    facts = context.dataset
    if facts is None or facts.tokens is None:
        return False
    learnt = facts.tokens.kept_loss[facts.tokens.known].astype(np.float64)
    return len(learnt) > 0 and float(learnt.mean()) > 0 and float(learnt.std() / learnt.mean()) < EVEN_ROWS


def _enter(bug: dict[str, Any]) -> None:
    """Makes the check of one entry."""
    package, first, fixed = bug["package"], bug["from"], bug["until"]
    usual = Severity(bug.get("severity", "warning"))
    span = f"before {fixed}" if first == "0.0.0" else f"{first} to before {fixed}"

    @check(
        f"run.known_bug_{bug['id']}",
        title=bug["title"][0].upper() + bug["title"][1:],
        severity=usual,
        needs=(Need.RUN,),
        explain=(
            f"A known fault of {package} {span}.\n\n{bug['effect']}\n\n**Fix.** {bug['fix']}.\n\n"
            f"Sources: {', '.join(bug['sources'])}."
        ),
    )
    def known_bug(context: AuditContext) -> Iterator[Observation]:
        assert context.run is not None
        found = context.run.versions.get(package)
        if found is None:
            raise NotApplicableError(f"no file states the version of {package}")
        if not applies(bug, context):
            return
        yield Observation(
            title=f"{package} {found.version}: {bug['title']}",
            severity=Severity.INFO if bug.get("info_for_even_rows") and rows_are_even(context) else usual,
            message=bug["effect"],
            values={
                "package": package,
                "version": found.version,
                "fixed_in": fixed,
                "sources": bug["sources"],
            },
            locations=(found.file,),
            fix=Fix.change(package, found.version, fixed, text=bug["fix"]),
        )


for _bug in known_bugs():
    _enter(_bug)
