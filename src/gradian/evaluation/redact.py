"""An evaluation without the text of its items, for sharing: every text and its tokens are replaced by their lengths."""

from __future__ import annotations

from collections.abc import Sequence

from gradian.evaluation.result import Answer, EvaluationResult, ItemEvaluation


def redacted_result(result: EvaluationResult) -> EvaluationResult:
    """The same evaluation, still readable by `EvaluationResult.load`: scores, losses, outcomes and places stay."""
    return result.model_copy(update={"items": tuple(_item(item) for item in result.items)})


def length_of(text: str, ids: Sequence[int] | None = None) -> str:
    """`[redacted: 812 characters, 201 tokens]`."""
    tokens = "" if ids is None else f", {len(ids):,} {'token' if len(ids) == 1 else 'tokens'}"
    return f"[redacted: {len(text):,} {'character' if len(text) == 1 else 'characters'}{tokens}]"


def _item(item: ItemEvaluation) -> ItemEvaluation:
    return item.model_copy(
        update={
            "prompt": length_of(item.prompt, item.prompt_ids),
            "prompt_ids": (),
            "wanted": length_of(item.wanted, item.wanted_ids),
            "wanted_ids": (),
            "base": _answer(item.base),
            "tuned": _answer(item.tuned),
        }
    )


def _answer(answer: Answer | None) -> Answer | None:
    """The metric's reason goes too: it quotes what it compared."""
    if answer is None:
        return None
    return answer.model_copy(
        update={
            "text": length_of(answer.text, answer.ids),
            "ids": (),
            "extracted": None if answer.extracted is None else length_of(answer.extracted),
            "reason": length_of(answer.reason),
        }
    )
