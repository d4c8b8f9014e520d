"""Chat templates for which TRL brings a variant with generation markers of its own, known by their digest."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files

from gradian.rows.profile import TrainerProfile

SINCE = (1, 1)


@cache
def _digests() -> frozenset[str]:
    text = files("gradian.audit").joinpath("data/trl_training_templates.json").read_text("utf-8")
    return frozenset(json.loads(text)["sha256"].values())


def swaps_template(profile: TrainerProfile, source: str) -> bool:
    """TRL 1.1 and later replaces this template by its own training variant when only answers are learnt."""
    if profile.trainer != "trl" or _version(profile.version) < SINCE:
        return False
    return hashlib.sha256(source.strip().encode()).hexdigest() in _digests()


def _version(text: str | None) -> tuple[int, ...]:
    numbers = []
    for part in (text or "").split(".")[:2]:
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
