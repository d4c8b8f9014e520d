"""What to do next, as commands, and what a report does not show."""

from __future__ import annotations

import shlex

from gradian.attribution.cause import Cause
from gradian.attribution.verdict import Judgement
from gradian.config import Config
from gradian.evaluation.result import EvaluationResult
from gradian.report.build import Attributed
from gradian.rows.training_set import TrainingSet
from gradian.verbs.fine_tune import FineTune


def next_steps(settings: Config, judgement: Judgement, result: EvaluationResult | None) -> list[str]:
    """The verdict's fixes in order, then the commands that carry them out and check them."""
    steps = [_capitalised(fix) for fix in judgement.fixes]
    dataset = shlex.quote(settings.dataset or "train.jsonl")
    run = f" --run {shlex.quote(settings.run)}" if settings.run else ""
    base = f" --base-model {shlex.quote(settings.base_model)}" if settings.base_model else ""
    if judgement.cause is Cause.MECHANICAL:
        steps.append(
            f"See every fault and write a cleaned copy: gradian diagnose --dataset "
            f"{dataset}{run}{base} --emit-fixes fixed"
        )
    if judgement.cause is Cause.DIFFUSE and settings.run:
        steps.append(
            f"Measure an earlier checkpoint: gradian evaluate{base} --adapter {shlex.quote(settings.run)}/checkpoint-N "
            f"--eval-dataset {shlex.quote(settings.eval_dataset or 'eval.jsonl')} --metric "
            f"{shlex.quote(settings.metric)}"
        )
    if judgement.accused:
        steps.append(
            "Prove it: train once more without the accused rows and run this command on the new adapter"
        )
    if result is not None and result.comparison.outcome == "inconclusive" and not result.comparison.improved:
        steps.append("Attribute all the same, at your own risk: add --force")
    return steps


def limits_of(
    fine_tune: FineTune,
    rows: TrainingSet,
    result: EvaluationResult | None,
    attributed: Attributed | None,
    queried: int,
) -> list[str]:
    """What this report does not show, the general and what is particular to this run."""
    limits = []
    if attributed is not None:
        limits.append(
            "Influence is a local estimate at the trained adapter. The accused rows are candidate "
            "causes; only training "
            "without them proves it."
        )
        limits.append(
            "Effects are in nats of loss(wanted) - loss(said) on the lost items, not in points of the metric."
        )
    limits += [f"Not attributed: {part}" for part in fine_tune.adapter_parts_not_attributed]
    if fine_tune.profile.packing:
        limits.append(
            f"The trainer packed rows ({fine_tune.profile.packing}); here each row stands alone, so "
            f"gradients differ from "
            "the run's where rows could see one another."
        )
    if fine_tune.profile.assumed:
        limits.append("Assumed of the trainer: " + ", ".join(fine_tune.profile.assumed))
    if rows.left_out:
        limits.append("Rows that were not learnt from: " + "; ".join(rows.left_out))
    if attributed is not None and attributed.scoring.permutations < fine_tune.settings.permutations:
        limits.append(
            f"p-values rest on {attributed.scoring.permutations} random partitions, fewer than asked for, since "
            "groups of this size take long to solve"
        )
    if result is not None:
        lost = len(result.lost)
        if attributed is not None and queried < lost:
            limits.append(
                f"{queried} of {lost} lost items were explained, drawn with the seed (--max-queries)"
            )
        if result.partial:
            limits.append(
                f"PARTIAL: only the first {result.comparison.items} of {result.items_in_file} items (--limit)"
            )
    if fine_tune.settings.trust_remote_code:
        limits.append("The base model's own code was run (--trust-remote-code)")
    return limits


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
