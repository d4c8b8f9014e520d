"""`evaluate`: did the capability get worse, on which items, beyond noise? Asked twice, answered from disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradian.config import Config, EvaluateSettings, require
from gradian.errors import GradianError
from gradian.evaluation.items import read_items
from gradian.evaluation.metrics import get_metric
from gradian.evaluation.result import EvaluationResult
from gradian.verbs.fine_tune import FineTune
from gradian.verbs.listener import Listener, Silent
from gradian.version import __version__

if TYPE_CHECKING:
    from gradian.report.model import Report


#: Raise it when the same answers would be scored differently.
FORMAT = 1


@dataclass(frozen=True)
class Evaluated:
    """An evaluation, its id, and whether it was found on disk."""

    result: EvaluationResult
    evaluation_id: str
    reused: bool


def evaluate(
    settings: EvaluateSettings | Config, listener: Listener | None = None, fine_tune: FineTune | None = None
) -> Evaluated:
    """Measure base against tuned.

    Raises:
        GradianError: a setting is missing or wrong, an input cannot be used.
    """
    listener = listener or Silent()
    require(settings, "eval_dataset")
    assert settings.eval_dataset is not None, "checked by require"
    metric = get_metric(settings.metric, **settings.metric_options)
    evalset = read_items(settings.eval_dataset)
    fine_tune = fine_tune or FineTune(settings, listener)
    identity = {
        "format": FORMAT,
        "gradian": __version__,
        "arms": fine_tune.arms_id,
        "eval": evalset.sha256,
        "metric": settings.metric,
        "options": settings.metric_options,
        **{
            key: getattr(settings, key)
            for key in (
                "max_new_tokens",
                "eval_batch_size",
                "limit",
                "equivalence_margin",
                "resamples",
                "seed",
            )
        },
    }
    evaluation_id = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = fine_tune.state / "evaluations"
    kept = folder / f"{evaluation_id}.json"
    # A user's own metric, and a schema, are files that may have changed since: asked again, on the kept answers.
    on_files = ":" in settings.metric or settings.metric == "json_schema"
    found = None if on_files else _kept(kept)
    if found is not None:
        return Evaluated(found.model_copy(update={"eval_dataset": evalset.path}), evaluation_id, True)
    from gradian.evaluation.run import evaluate_arms

    result = evaluate_arms(
        fine_tune.loaded,
        evalset,
        metric,
        max_new_tokens=settings.max_new_tokens,
        batch_size=settings.eval_batch_size,
        limit=settings.limit,
        seed=settings.seed,
        resamples=settings.resamples,
        margin=settings.equivalence_margin,
        cache_path=_answers(folder, fine_tune, evalset.sha256, settings),
        arms_id=fine_tune.arms_id,
        progress=listener.progress,
    )
    result.save(kept)
    return Evaluated(result, evaluation_id, False)


def report_of(settings: EvaluateSettings, evaluated: Evaluated) -> Report:
    """The evaluation as a report, without any attribution."""
    from gradian.attribution.verdict import Evidence, judge_outcome
    from gradian.report.build import ReportParts, build_report
    from gradian.report.model import Provenance
    from gradian.verbs.provenance import versions

    result = evaluated.result
    return build_report(
        ReportParts(
            title=f"{settings.capability}: evaluation",
            judgement=judge_outcome(Evidence(settings.capability, result.comparison)),
            capability=settings.capability,
            evaluation=result,
            limits=(
                f"PARTIAL: only the first {result.comparison.items} of {result.items_in_file} items (--limit)",
            )
            if result.partial
            else (),
            provenance=Provenance(
                evaluation_id=evaluated.evaluation_id,
                base_model=settings.base_model,
                revision=settings.revision,
                adapter=settings.adapter or settings.run,
                eval_dataset_sha256=result.eval_sha256,
                config=settings.model_dump(mode="json"),
                versions=versions(),
                seeds={"seed": settings.seed},
            ),
            reused=("both arms were generated and scored before",) if evaluated.reused else (),
        )
    )


def _answers(folder: Path, fine_tune: FineTune, eval_sha256: str, settings: Any) -> Path:
    name = json.dumps(
        [fine_tune.arms_id, eval_sha256, settings.max_new_tokens, settings.eval_batch_size, settings.limit]
    )
    return folder / f"answers-{hashlib.sha256(name.encode()).hexdigest()[:16]}.jsonl"


def _kept(path: Path) -> EvaluationResult | None:
    if not path.is_file():
        return None
    try:
        return EvaluationResult.load(path)
    except GradianError:
        return None  # damaged or of another version: made anew
