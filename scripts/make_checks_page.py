"""Write `docs/checks.md` from the registry of checks. A test fails when the page is not current.

python scripts/make_checks_page.py
"""

from __future__ import annotations

from pathlib import Path

from gradian.audit.explain import needs_text
from gradian.audit.registry import FAMILIES, Check, all_checks

PAGE = Path(__file__).parents[1] / "docs" / "checks.md"

TITLES = {
    "data": "The rows",
    "template": "The chat template",
    "token": "Special tokens",
    "config": "The configuration",
    "adapter": "The adapter file",
    "logs": "The training log",
    "eval": "The eval set",
    "run": "The run folder",
}


def page() -> str:
    """The whole page as Markdown."""
    checks = all_checks()
    lines = [
        "# The checks of `gradian diagnose`",
        "",
        "<!-- Written by scripts/make_checks_page.py from the registry of checks; edit the checks, not this "
        "page. -->",
        "",
        f"{len(checks)} checks in {len(FAMILIES)} families. The severity is the usual one; a check may "
        "report more or less, as its text says. `gradian explain ID` prints one of these sections.",
        "",
    ]
    for family in FAMILIES:
        members = [check for check in checks if check.family == family]
        lines += [f"## {TITLES[family]} (`{family}.`)", "", "| check | usually | what |", "|---|---|---|"]
        lines += [
            f"| [`{check.id}`](#{anchor(check)}) | {check.severity.value} | {check.title} |"
            for check in members
        ]
        lines.append("")
        for check in members:
            lines += section(check)
    return "\n".join(lines).rstrip() + "\n"


def anchor(check: Check) -> str:
    """The anchor that Markdown renderers give the check's heading."""
    return check.id.replace(".", "").lower()


def section(check: Check) -> list[str]:
    """One check as lines of Markdown."""
    lines = [
        f"### {check.id}",
        "",
        f"**{check.title}.** Usually {check.severity.value}; needs {needs_text(check)}.",
    ]
    if check.aliases:
        lines[-1] += f" Also called {', '.join(f'`{alias}`' for alias in check.aliases)}."
    if check.thresholds:
        named = ", ".join(f"`{name}` {value:g}" for name, value in sorted(check.thresholds.items()))
        lines[-1] += f" Thresholds: {named}."
    return [*lines, "", check.explain, ""]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(all_checks())} checks")
