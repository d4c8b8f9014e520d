"""The tokens of the run's tokenizer against those of the base model: extended, different, or the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.rows.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The lowest id at which two vocabularies differ, and the token that each has there (None: it has
    none).
    """

    token_id: int
    run_token: str | None
    base_token: str | None


def vocabulary(tokenizer: Tokenizer) -> dict[int, str]:
    """id -> token, added tokens included."""
    return {
        token_id: token for token, token_id in tokenizer.backend.get_vocab(with_added_tokens=True).items()
    }


def new_tokens(context: AuditContext) -> dict[int, str] | None:
    """Tokens that the run's tokenizer has beyond the base model's, by id; empty when it has none.

    None when the base model's tokens are not all in it under the same ids: then it is another vocabulary,
    not an extended one. Needs both tokenizers.
    """
    run, base = context.run_tokenizer, context.base_tokenizer
    assert run is not None
    assert base is not None
    own, before = vocabulary(run), vocabulary(base)
    if any(own.get(token_id) != token for token_id, token in before.items()):
        return None
    return {token_id: own[token_id] for token_id in sorted(own.keys() - before.keys())}


def first_difference(run: Tokenizer, base: Tokenizer) -> FirstDifference | None:
    """The lowest id whose token differs; None for equal vocabularies."""
    own, before = vocabulary(run), vocabulary(base)
    different = [
        token_id for token_id in own.keys() | before.keys() if own.get(token_id) != before.get(token_id)
    ]
    if not different:
        return None
    lowest = min(different)
    return FirstDifference(lowest, own.get(lowest), before.get(lowest))
