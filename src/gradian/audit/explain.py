"""What a check means, for `gradian explain ID`, `--list-checks` and the reference page."""

from __future__ import annotations

from gradian.audit.registry import Check, all_checks, find_check
from gradian.audit.wording import listed

_NEEDS = {
    "rows": "training rows",
    "tokens": "training rows and a tokenizer",
    "eval_rows": "an eval set",
    "eval_tokens": "an eval set and a tokenizer",
    "tokenizer": "a tokenizer",
    "run_tokenizer": "the run's own tokenizer",
    "base_tokenizer": "the base model's tokenizer",
    "base_config": "the base model's config.json",
    "run": "a run folder",
    "settings": "a run folder",
    "logs": "a training log",
    "adapter": "an adapter",
    "checkpoints": "saved checkpoints",
}


def needs_text(check: Check) -> str:
    """What the check cannot do without, in words."""
    return listed(dict.fromkeys(_NEEDS[need.value] for need in check.needs)) or "nothing"


def explain_check(id: str) -> str:
    """A check as Markdown: id, title, severity, needs, thresholds, and its explanation.

    Raises:
        ConfigError: no check has this id or alias; the message names the nearest.
    """
    check = find_check(id)
    lines = [f"# {check.id}", "", f"{check.title}.", "", f"- severity: {check.severity.value} (usual)"]
    lines.append(f"- needs: {needs_text(check)}")
    if check.aliases:
        lines.append(f"- also called: {listed(check.aliases)}")
    if check.thresholds:
        lines.append("- thresholds (gradian.yaml, `thresholds:`):")
        lines += [f"  - `{check.id}.{name}`: {value:g}" for name, value in sorted(check.thresholds.items())]
    return "\n".join([*lines, "", check.explain, ""])


def list_checks() -> str:
    """All checks, one a line: severity letter, id, title."""
    width = max(len(check.id) for check in all_checks())
    lines = [
        f"{check.severity.value[0].upper()} {check.id:<{width}}  {check.title}" for check in all_checks()
    ]
    return "\n".join(lines) + "\n"
