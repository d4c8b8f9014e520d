"""The sentences that belong beside an evaluation's numbers, the most important first."""

from __future__ import annotations

import numpy as np

from gradian.evaluation.comparison import LEVEL
from gradian.evaluation.intervals import student
from gradian.evaluation.result import EvaluationResult

# Fewer more cut, empty or unreadable answers than this share of the items are no headline.
_NOTABLE_SHARE, _NOTABLE_ITEMS = 0.02, 2
# In nats: e times as probable. A base that holds the wanted answer by less loses it to almost any training.
THIN_MARGIN = 1.0
WEAK_BASE = 0.5


def notes_of(result: EvaluationResult) -> tuple[str, ...]:
    """What a reader has to know to read the numbers rightly."""
    notes = []
    if result.partial:
        notes.append(
            f"Partial: only the first {len(result.items)} of {result.items_in_file} items were used."
        )
    notes += _on_format(result)
    notes += result.comparison.notes
    notes += _on_loss(result)
    notes += _on_base(result)
    notes += _on_generation(result)
    return tuple(notes)


def _on_format(result: EvaluationResult) -> list[str]:
    """Answers that are cut off, empty or hold nothing to compare: lost format, which is no lost knowledge."""
    base, tuned, items = result.base_counts, result.tuned_counts, len(result.items)
    if base.answered < items or tuned.answered < items:
        return []
    notes = []
    for before, after, what in (
        (base.hit_token_limit, tuned.hit_token_limit, "reach the token limit without stopping"),
        (base.empty, tuned.empty, "are empty"),
        (base.not_extracted, tuned.not_extracted, f"hold nothing that the metric {result.metric} can read"),
    ):
        if after - before >= max(_NOTABLE_ITEMS, _NOTABLE_SHARE * items):
            notes.append(
                f"{after} of {items} answers of the tuned model {what}, {before} of the base model. Look"
                " there first: it is the form of the answers that broke."
            )
    return notes


def _on_loss(result: EvaluationResult) -> list[str]:
    """Whether the metric and the loss of the wanted answers tell the same story."""
    if result.metric == "nll" or len(result.items) < 2:
        return []
    rise = np.array([item.tuned_wanted_nll - item.base_wanted_nll for item in result.items])
    low, high = student(rise, np.ones(len(rise)), LEVEL)
    mean = f"{result.base_nll:.2f} to {result.tuned_nll:.2f} nats per item"
    if result.comparison.outcome == "regression" and high <= 0:
        return [
            f"The score fell although the wanted answers became more probable ({mean}). Attribution explains"
            " the loss, not the metric."
        ]
    if result.comparison.outcome != "regression" and low > 0:
        return [
            f"The wanted answers became less probable ({mean}). The metric {result.metric} does not show it."
        ]
    return []


def _on_base(result: EvaluationResult) -> list[str]:
    """Whether the base model had the capability in the first place."""
    notes = []
    if result.base_fails is not None and result.comparison.base < WEAK_BASE:
        notes.append(
            f"The base model itself scores {result.comparison.base:.3f}: it has {result.base_fails} of"
            f" {len(result.items)} items not fully right."
        )
    if result.base_margin_median is not None and result.base_margin_median < THIN_MARGIN:
        notes.append(
            "On the lost items the base model preferred the wanted answer to what the tuned model now says by"
            f" a median of only {result.base_margin_median:.2f} nats: it hardly held them."
        )
    return notes


def _on_generation(result: EvaluationResult) -> list[str]:
    notes = []
    if result.noise is not None:
        notes.append(
            f"Noise floor: answered again one item at a time, the base model changed its text on"
            f" {result.noise.text_changed} of {result.noise.items} items, and its score on"
            f" {result.noise.score_changed}."
        )
    longer = sum(len(item.wanted_ids) > result.max_new_tokens for item in result.items)
    if longer and result.base_counts.answered:
        notes.append(
            f"{longer} wanted answers are longer than the limit of {result.max_new_tokens} tokens:"
            " neither arm can give them."
        )
    if not result.stop_ids and result.base_counts.answered:
        notes.append("The tokenizer names no stop token, so every answer runs to the token limit.")
    return notes
