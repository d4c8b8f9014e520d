"""Both arms on every item: answer, score, compare. The one place where models, items and metrics meet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradian.errors import ConfigError
from gradian.evaluation.answer_cache import AnswerCache, header_of
from gradian.evaluation.compare import compare
from gradian.evaluation.comparison import Comparison
from gradian.evaluation.generation import Generation
from gradian.evaluation.intervals import Method
from gradian.evaluation.items import EvalItem, EvalSet, check_wanted
from gradian.evaluation.notes import notes_of
from gradian.evaluation.plan import Arm, Arms, Plan, StageProgress, make_plan
from gradian.evaluation.result import (
    Answer,
    EvaluationResult,
    ItemEvaluation,
    NoiseFloor,
    counts_of,
    margins_of,
)
from gradian.evaluation.score import Metric, Score

DEFAULT_MARGIN = 0.05
# The loss of one text differs by up to about this much between batches in float32, in nats per token.
NLL_CHANGE = 1e-3


@dataclass(frozen=True)
class _ArmRun:
    """One arm by item: what it said (None for `nll`), its losses of the wanted answers, its scores."""

    said: list[Generation] | None
    wanted_nll: list[float]
    answers: list[Answer | None]
    scores: list[float]


def evaluate_arms(
    loaded: Arms,
    evalset: EvalSet,
    metric: Metric,
    *,
    max_new_tokens: int | None = None,
    batch_size: int = 20,
    limit: int | None = None,
    seed: int = 0,
    resamples: int = 10_000,
    ci_method: Method = "percentile",
    margin: float | None = None,
    by_cluster: bool = False,
    noise_items: int = 0,
    cache_path: str | Path | None = None,
    arms_id: str = "",
    progress: StageProgress | None = None,
) -> EvaluationResult:
    """Base against tuned on every item.

    Args:
        loaded: base and adapter.
        evalset: from `read_items`.
        metric: from `get_metric`. Scores of a user's own function that are all 0 or 1 are compared as 0/1
            scores.
        max_new_tokens: limit of an answer; None for 1.5 times the longest wanted answer, rounded up to a
            multiple of 16, at least 32.
        batch_size: prompts at once, the same in both arms.
        limit: evaluate only the first items; the result is then marked partial.
        seed: of the bootstrap.
        resamples, ci_method: of the interval.
        margin: the largest change of the score that does not matter; None for 0.05 (no margin for `nll`).
        by_cluster: resample whole clusters, the items' own `cluster`; an item without one is its own.
        noise_items: so many items are answered by the base arm once more, one at a time, and compared.
        cache_path: a file that keeps answers, so that a killed run goes on. Needs `arms_id`.
        arms_id: identifies base and adapter (their hashes); an answer of other arms is never reused.
        progress: called with the stage, the items done and all of them.

    Raises:
        InputError: an item's wanted answer cannot be scored with this metric, or does not fit the context.
        ConfigError: a number that cannot be used, or the user's own metric fails.
        ModelError: out of memory, or the model returns NaN.
    """
    assert cache_path is None or arms_id, "a cache without the identity of the arms could mix two adapters"
    _check_numbers(max_new_tokens, batch_size, limit, noise_items)
    items = evalset.items[:limit]
    check_wanted(items, metric.refuses, metric.name)
    plan = make_plan(loaded, items, max_new_tokens=max_new_tokens, batch_size=batch_size, progress=progress)
    cache = _cache(cache_path, plan, arms_id) if metric.needs_generation else None

    with loaded.arm("base") as model:
        base = _run(model, "base", plan, metric, cache)
        noise = _noise_floor(model, plan, metric, base, noise_items)
    with loaded.arm("tuned") as model:
        tuned = _run(model, "tuned", plan, metric, cache)
    margin = DEFAULT_MARGIN if margin is None and metric.needs_generation else margin
    comparison = _compare(plan, metric, base, tuned, margin, resamples, ci_method, seed, by_cluster)
    evaluated = _evaluate_items(loaded, plan, base, tuned, comparison)
    result = _result(
        plan, evalset, metric, base, tuned, comparison, evaluated, seed=seed, arms_id=arms_id, noise=noise
    )
    return result.model_copy(update={"notes": (*notes_of(result), *evalset.notes)})


def _check_numbers(max_new_tokens: int | None, batch_size: int, limit: int | None, noise_items: int) -> None:
    for name, value, least in (
        ("max_new_tokens", max_new_tokens, 1),
        ("batch_size", batch_size, 1),
        ("limit", limit, 1),
        ("noise_items", noise_items, 0),
    ):
        if value is not None and value < least:
            raise ConfigError(f"{name} is {value}", where=name, fix=f"a whole number of at least {least}")


def _cache(path: str | Path | None, plan: Plan, arms_id: str) -> AnswerCache | None:
    if path is None:
        return None
    header = header_of(
        plan.prompts,
        arms=arms_id,
        max_new_tokens=plan.max_new_tokens,
        batch_size=plan.batch_size,
        stop_ids=plan.stop_ids,
        pad_id=plan.pad_id,
    )
    return AnswerCache(path, header)


def _run(model: Any, arm: Arm, plan: Plan, metric: Metric, cache: AnswerCache | None) -> _ArmRun:
    said = plan.answers(model, arm, cache) if metric.needs_generation else None
    everything = range(len(plan.items))
    wanted_nll = plan.losses(model, f"{arm}: loss of the wanted answers", everything, plan.wanted)
    if said is None:
        scores = [-loss / len(ids) for loss, ids in zip(wanted_nll, plan.wanted, strict=True)]
        return _ArmRun(None, wanted_nll, [None] * len(plan.items), scores)
    answers: list[Answer | None] = []
    scores = []
    for item, generation in zip(plan.items, said, strict=True):
        text = plan.text(generation)
        score = _score(metric, text, item)
        answers.append(_answer(generation, text, score.extracted, score.reason))
        scores.append(score.value)
    return _ArmRun(said, wanted_nll, answers, scores)


def _score(metric: Metric, text: str, item: EvalItem) -> Score:
    try:
        return metric(text, item.wanted, item.row.fields)
    except ConfigError as error:  # the user's own metric: say on which item
        raise ConfigError(
            error.what, where=error.where or item.where, why=error.why, fix=error.fix
        ) from error.__cause__


def _answer(generation: Generation, text: str, extracted: str | None, reason: str) -> Answer:
    return Answer(
        ids=generation.ids, stop_id=generation.stop_id, text=text, extracted=extracted, reason=reason
    )


def _compare(
    plan: Plan,
    metric: Metric,
    base: _ArmRun,
    tuned: _ArmRun,
    margin: float | None,
    resamples: int,
    ci_method: Method,
    seed: int,
    by_cluster: bool,
) -> Comparison:
    custom = ":" in metric.name
    zero_or_one = all(score in (0, 1) for score in (*base.scores, *tuned.scores))
    clusters = None
    if by_cluster:
        clusters = [(item.row.group, -1) if item.row.group else ("", item.item) for item in plan.items]
    return compare(
        base.scores,
        tuned.scores,
        graded=metric.graded and not (custom and zero_or_one),
        rng=np.random.default_rng(seed),
        resamples=resamples,
        method=ci_method,
        margin=margin,
        clusters=clusters,
        change=0.0 if metric.needs_generation else NLL_CHANGE,
        scale="unit" if metric.needs_generation else "nats",
    )


def _evaluate_items(
    loaded: Arms, plan: Plan, base: _ArmRun, tuned: _ArmRun, comparison: Comparison
) -> tuple[ItemEvaluation, ...]:
    """The items with, for the lost ones, how probable both arms hold what tuned said."""
    lost = [index for index, outcome in enumerate(comparison.outcomes) if outcome == "lost"]
    tuned_answers = list(tuned.answers)
    said_nll: dict[Arm, dict[int, float]] = {"base": {}, "tuned": {}}
    if lost:
        with loaded.arm("tuned") as model:
            if (
                tuned.said is None
            ):  # `nll` scores without answers; the lost items still need one to contrast with
                said = plan.answers_to(model, "tuned", lost)
                for index, generation in zip(lost, said, strict=True):
                    text = plan.text(generation)
                    tuned_answers[index] = _answer(generation, text, text or None, "not scored")
            else:
                said = [tuned.said[index] for index in lost]
            ids = [generation.ids_with_stop for generation in said]
            losses = plan.losses(model, "tuned: loss of what it said", lost, ids)
            said_nll["tuned"] = dict(zip(lost, losses, strict=True))
        with loaded.arm("base") as model:
            losses = plan.losses(model, "base: loss of what tuned said", lost, ids)
            said_nll["base"] = dict(zip(lost, losses, strict=True))
    return tuple(
        ItemEvaluation(
            item=item.item,
            file=item.row.file,
            line=item.row.line,
            group=item.row.group,
            outcome=comparison.outcomes[index],
            prompt=item.prompt,
            prompt_ids=tuple(plan.prompts[index]),
            wanted=item.wanted,
            wanted_ids=tuple(plan.wanted[index]),
            base=base.answers[index],
            tuned=tuned_answers[index],
            base_score=base.scores[index],
            tuned_score=tuned.scores[index],
            base_wanted_nll=base.wanted_nll[index],
            tuned_wanted_nll=tuned.wanted_nll[index],
            base_said_nll=said_nll["base"].get(index),
            tuned_said_nll=said_nll["tuned"].get(index),
        )
        for index, item in enumerate(plan.items)
    )


def _noise_floor(model: Any, plan: Plan, metric: Metric, base: _ArmRun, count: int) -> NoiseFloor | None:
    """The base arm against itself on items spread evenly over the file, one prompt at a time."""
    if not count or base.said is None:
        return None
    count = min(count, len(plan.items))
    chosen = [index * len(plan.items) // count for index in range(count)]
    again = plan.answers_to(model, "base", chosen, batch_size=1)
    text_changed = score_changed = 0
    for index, generation in zip(chosen, again, strict=True):
        if generation == base.said[index]:
            continue
        text_changed += 1
        score_changed += _score(metric, plan.text(generation), plan.items[index]).value != base.scores[index]
    return NoiseFloor(items=count, text_changed=text_changed, score_changed=score_changed)


def _result(
    plan: Plan,
    evalset: EvalSet,
    metric: Metric,
    base: _ArmRun,
    tuned: _ArmRun,
    comparison: Comparison,
    evaluated: tuple[ItemEvaluation, ...],
    *,
    seed: int,
    arms_id: str,
    noise: NoiseFloor | None,
) -> EvaluationResult:
    base_margin, tuned_margin, base_margin_median = margins_of(evaluated)
    return EvaluationResult(
        metric=metric.name,
        metric_options=json.loads(json.dumps(dict(metric.options), default=str)),
        graded=comparison.graded,
        eval_dataset=evalset.path,
        eval_sha256=evalset.sha256,
        items_in_file=len(evalset.items),
        partial=len(evaluated) < len(evalset.items),
        max_new_tokens=plan.max_new_tokens,
        token_limit_from=plan.token_limit_from,
        batch_size=plan.batch_size,
        seed=seed,
        stop_ids=plan.stop_ids,
        pad_id=plan.pad_id,
        arms=arms_id,
        items=evaluated,
        comparison=comparison,
        base_counts=counts_of(base.answers),
        tuned_counts=counts_of(tuned.answers),
        base_nll=float(np.mean(base.wanted_nll)),
        tuned_nll=float(np.mean(tuned.wanted_nll)),
        base_margin=base_margin,
        tuned_margin=tuned_margin,
        base_margin_median=base_margin_median,
        base_fails=sum(score < 1 for score in base.scores) if metric.needs_generation else None,
        noise=noise,
    )
