"""One generated answer, as token ids. Apart from what generates it: a result is read without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Called with the number of items done and of all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Generation:
    """What a model said after one prompt.

    Attributes:
        ids: the tokens before the stop token.
        stop_id: the stop token that ended the answer; None when the token limit did.
    """

    ids: tuple[int, ...]
    stop_id: int | None

    @property
    def stopped(self) -> bool:
        """The model ended the answer by itself."""
        return self.stop_id is not None

    @property
    def ids_with_stop(self) -> tuple[int, ...]:
        """The tokens with the stop token, where there is one: what the model was asked to predict."""
        return self.ids if self.stop_id is None else (*self.ids, self.stop_id)
