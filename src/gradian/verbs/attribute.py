"""`attribute`: evaluate, audit, index, score, judge, report. The join of the three lanes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gradian.attribution.accuse import Accusation, accuse, find_suspect
from gradian.attribution.groups import group_rows, text_of
from gradian.attribution.join import findings_shared_by
from gradian.attribution.verdict import Evidence, JudgedGroup, judge
from gradian.audit.context import AuditInputs
from gradian.audit.finding import Finding, Severity
from gradian.audit.redact import redacted_result
from gradian.audit.runner import run_audit
from gradian.config import Config, require
from gradian.errors import ModelError
from gradian.evaluation.result import EvaluationResult, ItemEvaluation
from gradian.report.build import Attributed, ReportParts, build_report
from gradian.report.model import Report
from gradian.rows.training_set import TrainingSet, read_training_set
from gradian.verbs.advice import limits_of, next_steps
from gradian.verbs.evaluate import evaluate
from gradian.verbs.fine_tune import FineTune
from gradian.verbs.index import Index, batch_tokens, build_index, capture_of
from gradian.verbs.listener import Listener, Silent
from gradian.verbs.provenance import provenance_of

if TYPE_CHECKING:
    from gradian.gradients.query import Contrast

#: Without an eval set the first training rows stand in for it.
SMOKE_TEST_ROWS = 5
NO_TARGET_ID = "attribution.no_capability_target"


@dataclass
class _Diary:
    """How long each stage took, and what was found on disk instead of computed."""

    seconds: dict[str, float] = field(default_factory=dict)
    reused: list[str] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 3)


def attribute(settings: Config, listener: Listener | None = None) -> Report:
    """Explain a fine-tune that lost a capability.

    Without a regression nothing is attributed and no gradient is computed, unless `settings.force`. Without an eval
    dataset the report is a smoke test.

    Raises:
        GradianError: a setting is missing or wrong, an input cannot be used, no space.
    """
    listener = listener or Silent()
    require(settings, "base_model", "dataset")
    assert settings.dataset is not None, "checked by require"
    diary = _Diary()
    fine_tune = FineTune(settings, listener)
    with diary.stage("read and check"):
        rows = read_training_set(settings.dataset, fine_tune.tokenizer, fine_tune.profile)
        findings = list(_audit(settings))
    result, evaluation_id = None, None
    if settings.eval_dataset is None:
        findings.insert(0, _no_target(rows))
    else:
        with diary.stage("evaluate"):
            evaluated = evaluate(settings, listener, fine_tune)
        result, evaluation_id = evaluated.result, evaluated.evaluation_id
        if evaluated.reused:
            diary.reused.append(f"evaluation {evaluation_id}: both arms were generated and scored before")
    regression = result is not None and result.comparison.outcome == "regression"
    wanted = result is None or regression or settings.force
    chosen = _chosen(settings, result) if wanted and result is not None else []
    contrasts = _contrasts(chosen, rows, fine_tune) if wanted else []
    index = attributed = None
    if contrasts:
        index, attributed = _attribute(
            settings, listener, fine_tune, rows, findings, chosen, contrasts, diary
        )
    evidence = Evidence(
        capability=settings.capability,
        comparison=result.comparison if result else None,
        findings=findings,
        groups=attributed.groups if attributed else (),
        accusation=_accusation(attributed) if attributed else None,
        agreement=attributed.scoring.agreement if attributed else None,
        regression_nats=attributed.regression_nats if attributed else None,
        base_margin=result.base_margin_median if result else None,
        items_explained=len(chosen),
        forced=settings.force and attributed is not None,
    )
    judgement = judge(evidence)
    return build_report(
        ReportParts(
            title=f"{settings.capability}: {fine_tune.adapter.path.name} on {fine_tune.base.short_name}",
            judgement=judgement,
            capability=settings.capability,
            evaluation=result,
            attributed=attributed,
            findings=findings,
            next_steps=next_steps(settings, judgement, result),
            limits=limits_of(fine_tune, rows, result, attributed, len(chosen)),
            provenance=provenance_of(settings, fine_tune, rows, result, evaluation_id, index),
            forced=evidence.forced and not regression,
            seconds=diary.seconds,
            reused=diary.reused,
        )
    )


def _accusation(attributed: Attributed) -> Accusation:
    effects = [judged.effect for judged in attributed.groups]
    suspect = find_suspect(effects, [judged.row_share for judged in attributed.groups])
    return replace(accuse(effects, attributed.regression_nats), suspect=suspect)


def _audit(settings: Config) -> Sequence[Finding]:
    audited = run_audit(
        AuditInputs(
            dataset=settings.dataset,
            run=settings.run or settings.adapter,
            base_model=settings.base_model,
            eval_dataset=settings.eval_dataset,
            revision=settings.revision,
            trainer=settings.trainer,
            response_marker=settings.response_marker,
        ),
        select=settings.select,
        ignore=settings.ignore,
        thresholds=settings.thresholds,
    )
    # Redacted before anything is worded with them, so that no verdict quotes a row either.
    return (redacted_result(audited) if settings.redact else audited).findings


def _no_target(rows: TrainingSet) -> Finding:
    return Finding(
        id=NO_TARGET_ID,
        severity=Severity.WARNING,
        title="no eval dataset, so no capability is measured",
        message=f"The first {min(SMOKE_TEST_ROWS, len(rows))} training rows stand in for lost items.",
        values={"rows_used": min(SMOKE_TEST_ROWS, len(rows))},
    )


def _chosen(settings: Config, result: EvaluationResult) -> list[ItemEvaluation]:
    from gradian.attribution.queries import choose_items

    return choose_items(result, settings.max_queries, settings.seed)


def _contrasts(chosen: Sequence[ItemEvaluation], rows: TrainingSet, fine_tune: FineTune) -> list[Contrast]:
    from gradian.attribution.queries import contrast_of
    from gradian.gradients.query import Contrast

    if chosen:
        return [contrast_of(item) for item in chosen]
    if fine_tune.settings.eval_dataset is not None:
        return []  # forced, but no item was lost: there is no question to ask
    # As they were trained on, cut and all: the targets from the first one on are the answer.
    stand_ins = []
    for number, row in enumerate(rows.tokens[:SMOKE_TEST_ROWS]):
        start = max(1, int(row.loss_mask.argmax()))
        ids = row.ids.tolist()
        stand_ins.append(Contrast(number, tuple(ids[:start]), tuple(ids[start:]), None))
    return stand_ins


def _attribute(
    settings: Config,
    listener: Listener,
    fine_tune: FineTune,
    rows: TrainingSet,
    findings: Sequence[Finding],
    chosen: Sequence[ItemEvaluation],
    contrasts: Sequence[Contrast],
    diary: _Diary,
) -> tuple[Index, Attributed]:
    from gradian.attribution.queries import query_vectors, question_id
    from gradian.attribution.scoring import check_memory, score_rows

    check_memory(len(rows))
    with diary.stage("index"):
        index = build_index(settings, listener, fine_tune, rows)
    if index.found == len(rows):
        diary.reused.append(f"index {index.index_id}: the gradients of all {len(rows)} rows were there")
    elif index.copied:
        diary.reused.append(
            f"{index.copied} of {len(rows)} rows: gradients copied from another index of this adapter"
        )
    with diary.stage("query"):
        queries, found = query_vectors(
            index.store,
            contrasts,
            capture_of(fine_tune, index.store.layout),
            batch_tokens(settings, fine_tune),
            lambda done, total: listener.progress("gradients of lost items (tokens)", done, total),
        )
    if found:
        diary.reused.append(
            f"index {index.index_id}: this question was asked before, its gradients were there"
        )
    if not queries.any():
        raise ModelError(
            "the query has no gradient",
            why="the adapter does not change what the model says",
            fix="gradian diagnose --run ...",
        )
    with diary.stage("score"):
        grouping = group_rows(
            [text_of(talk) for talk in rows.conversations], [row.group for row in rows.rows], settings.seed
        )
        scoring = score_rows(
            index.store,
            queries,
            grouping,
            rows.loss_tokens,
            question=question_id(contrasts),
            engine=settings.engine,
            seed=settings.seed,
            permutations=settings.permutations,
        )
        numbers = [row.row for row in rows.rows]
        groups = [
            JudgedGroup(
                group,
                effect,
                len(group.rows) / len(rows),
                tuple(findings_shared_by([numbers[i] for i in group.rows], findings, numbers)),
            )
            for group, effect in zip(grouping.groups, scoring.effects, strict=True)
        ]
    return index, Attributed(
        rows=rows,
        losses=[float(loss) for loss in index.store.losses()],
        grouping=grouping,
        scoring=scoring,
        groups=groups,
        regression_nats=_regression_nats(chosen),
    )


def _regression_nats(chosen: Sequence[ItemEvaluation]) -> float | None:
    """How far the query loss rose from base to tuned over the queried items, nats an item."""
    rises = [
        item.base_margin - item.tuned_margin
        for item in chosen
        if item.base_margin is not None and item.tuned_margin is not None
    ]
    return sum(rises) / len(rises) if rises else None
