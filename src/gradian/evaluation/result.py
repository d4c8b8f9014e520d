"""What an evaluation found, item by item, as a file: what comes after it needs no model."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from gradian.errors import InputError
from gradian.evaluation.comparison import Comparison, ItemOutcome

SCHEMA_VERSION: Literal[1] = 1


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(_Frozen):
    """What one arm said to one item.

    Attributes:
        ids: its tokens, without the stop token. stop_id: the token that ended it, None at the token limit.
        text: the tokens as text, special tokens left out.
        extracted: the part that the metric compared, None when it found nothing to compare.
        reason: why the metric gave its score, one clause.
    """

    ids: tuple[int, ...]
    stop_id: int | None
    text: str
    extracted: str | None
    reason: str

    @property
    def ids_with_stop(self) -> tuple[int, ...]:
        """The tokens with the stop token, where there is one."""
        return self.ids if self.stop_id is None else (*self.ids, self.stop_id)


class ItemEvaluation(_Frozen):
    """One item in both arms.

    Attributes:
        item: 0-based number in the eval file; file, line: where it stands; group: the item's own `cluster`.
        prompt, wanted: as text. prompt_ids: with the generation prompt. wanted_ids: with the stop token.
        base, tuned: what the arms said; None for an arm that was not asked to (metric `nll`).
        base_score, tuned_score: in [0, 1], or nats per token for `nll`.
        base_wanted_nll, tuned_wanted_nll: loss of the wanted answer, summed over its tokens, nats.
        base_said_nll, tuned_said_nll: loss of what *tuned* said, summed, with its stop token; lost items
            only.
    """

    item: int
    file: str
    line: int | None
    group: str | None
    outcome: ItemOutcome
    prompt: str
    prompt_ids: tuple[int, ...]
    wanted: str
    wanted_ids: tuple[int, ...]
    base: Answer | None
    tuned: Answer | None
    base_score: float
    tuned_score: float
    base_wanted_nll: float
    tuned_wanted_nll: float
    base_said_nll: float | None = None
    tuned_said_nll: float | None = None

    @property
    def base_margin(self) -> float | None:
        """log p(wanted) - log p(said by tuned) at the base model, nats; None where said was not measured."""
        return None if self.base_said_nll is None else self.base_said_nll - self.base_wanted_nll

    @property
    def tuned_margin(self) -> float | None:
        """The same at the tuned model; below 0 the model holds what it said more probable."""
        return None if self.tuned_said_nll is None else self.tuned_said_nll - self.tuned_wanted_nll


class Counts(_Frozen):
    """How one arm's answers ended: counts of items.

    Attributes:
        answered: items that the arm was asked to answer.
        empty: no text at all. hit_token_limit: never stopped. not_extracted: the metric found nothing to
            compare.
    """

    answered: int = 0
    empty: int = 0
    hit_token_limit: int = 0
    not_extracted: int = 0


class NoiseFloor(_Frozen):
    """The base arm against itself, answered again one item at a time: what rounding alone changes.

    Attributes:
        items: how many were answered again.
        text_changed: other tokens were said. score_changed: the score was another one.
    """

    items: int
    text_changed: int
    score_changed: int


class EvaluationResult(_Frozen):
    """A whole evaluation.

    Attributes:
        metric, metric_options: what was measured. graded: see `Comparison.graded`.
        eval_dataset, eval_sha256: the file and its digest. items_in_file: how many items it holds.
        partial: only the first items were evaluated.
        max_new_tokens: limit of an answer. token_limit_from: where that limit comes from, in words.
        batch_size, seed: as run. stop_ids, pad_id: of the generation.
        arms: what identifies base and adapter, as the caller gave it.
        items: ascending.
        base_nll, tuned_nll: loss of the wanted answers, nats per item.
        base_margin, tuned_margin: mean margin over the lost items, nats; None when nothing was lost or
            nothing said.
        base_margin_median: median of the base margins. Below about 1 nat the base model hardly held the
            capability.
        base_fails: items that the base model has not fully right either (score below 1); None for `nll`.
        noise: the A/A control, when it was asked for.
        notes: sentences that belong beside the numbers, the most important first.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    metric: str
    metric_options: dict[str, Any] = {}
    graded: bool
    eval_dataset: str
    eval_sha256: str
    items_in_file: int
    partial: bool
    max_new_tokens: int
    token_limit_from: str
    batch_size: int
    seed: int
    stop_ids: tuple[int, ...]
    pad_id: int
    arms: str
    items: tuple[ItemEvaluation, ...]
    comparison: Comparison
    base_counts: Counts
    tuned_counts: Counts
    base_nll: float
    tuned_nll: float
    base_margin: float | None
    tuned_margin: float | None
    base_margin_median: float | None
    base_fails: int | None
    noise: NoiseFloor | None = None
    notes: tuple[str, ...] = ()

    @property
    def lost(self) -> tuple[ItemEvaluation, ...]:
        """The items whose score fell, ascending."""
        return tuple(item for item in self.items if item.outcome == "lost")

    def save(self, path: str | Path) -> None:
        """Write the result as JSON; a reader never sees half a file.

        Raises:
            InputError: the place cannot be written.
        """
        target = Path(path)
        # ASCII: a custom metric may have put half a surrogate pair into a text, which is no UTF-8.
        text = json.dumps(self.model_dump(mode="python"), allow_nan=False, indent=1)
        draft = target.with_name(f"{target.name}.{os.getpid()}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(text + "\n", encoding="ascii")
            os.replace(draft, target)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise InputError(
                "the evaluation cannot be written", where=str(path), why=error.strerror or str(error)
            ) from None

    @classmethod
    def load(cls, path: str | Path) -> EvaluationResult:
        """Read what `save` wrote.

        Raises:
            InputError: no such file, not JSON, or not an evaluation of this version.
        """
        try:
            document = json.loads(Path(path).read_bytes())
        except OSError as error:
            raise InputError(
                "the evaluation cannot be read", where=str(path), why=error.strerror or str(error)
            ) from None
        except (ValueError, RecursionError) as error:
            raise InputError("the evaluation is not JSON", where=str(path), why=str(error)) from None
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            at = ".".join(str(part) for part in first["loc"])
            raise InputError(
                "this is not an evaluation of this version of Gradian",
                where=str(path),
                why=f"{at or 'the file'}: {first['msg']}",
                fix="run the evaluation again",
            ) from None


def counts_of(answers: Sequence[Answer | None]) -> Counts:
    """How the answers of one arm ended."""
    given = [answer for answer in answers if answer is not None]
    return Counts(
        answered=len(given),
        empty=sum(not answer.text.strip() for answer in given),
        hit_token_limit=sum(answer.stop_id is None for answer in given),
        not_extracted=sum(answer.extracted is None for answer in given),
    )


def margins_of(items: Sequence[ItemEvaluation]) -> tuple[float | None, float | None, float | None]:
    """Mean base margin, mean tuned margin, median base margin, nats, over the items where they are known."""
    base = [item.base_margin for item in items if item.base_margin is not None]
    tuned = [item.tuned_margin for item in items if item.tuned_margin is not None]
    if not base:
        return None, None, None
    return statistics.fmean(base), statistics.fmean(tuned), statistics.median(base)
