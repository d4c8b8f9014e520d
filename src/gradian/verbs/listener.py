"""How a verb tells whoever started it what it is doing."""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    """Told of long work as it goes on, and of choices that were made. Never needed for the result."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` units (items, tokens) of a stage."""

    def say(self, sentence: str) -> None:
        """One line that a user would want to see while waiting."""


class Silent:
    """The listener of a caller who does not want to know."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Nothing."""

    def say(self, sentence: str) -> None:
        """Nothing."""
