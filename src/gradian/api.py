"""The Python API: the command line's verbs as functions. Settings by name, typed results back, errors as
`GradianError`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradian.audit.context import AuditInputs
from gradian.audit.redact import redacted_result
from gradian.audit.runner import AuditResult, run_audit
from gradian.config import BuildIndexSettings, Config, DiagnoseSettings, EvaluateSettings, resolve
from gradian.evaluation.result import EvaluationResult
from gradian.report.model import Report
from gradian.verbs.index import Index
from gradian.verbs.listener import Listener

__all__ = ["attribute", "build_index", "diagnose", "evaluate", "load_index"]


def diagnose(*, config: str | Path | None = None, **settings: Any) -> AuditResult:
    """Find mechanical causes in rows, configuration, logs and adapter file. No weights, no torch.

    Args:
        config: a gradian.yaml; settings given by name override it.
        settings: fields of `gradian.config.DiagnoseSettings`.

    Raises:
        GradianError: a setting is wrong or something that was named cannot be read.
    """
    resolved = resolve(DiagnoseSettings, settings, config)
    result = run_audit(
        AuditInputs(
            dataset=resolved.dataset,
            run=resolved.run,
            base_model=resolved.base_model,
            eval_dataset=resolved.eval_dataset,
            trainer=resolved.trainer,
            revision=resolved.revision,
            response_marker=resolved.response_marker,
        ),
        select=resolved.select,
        ignore=resolved.ignore,
        thresholds=resolved.thresholds,
    )
    return redacted_result(result) if resolved.redact else result


def evaluate(
    *, config: str | Path | None = None, listener: Listener | None = None, **settings: Any
) -> EvaluationResult:
    """Measure base against tuned on the same items.

    Args:
        config: a gradian.yaml; settings given by name override it.
        listener: told of progress.
        settings: fields of `gradian.config.EvaluateSettings`.

    Raises:
        GradianError: a setting is missing or wrong, an input cannot be used.
    """
    from gradian.evaluation.redact import redacted_result as without_text
    from gradian.verbs.evaluate import evaluate as carry_out

    resolved = resolve(EvaluateSettings, settings, config)
    result = carry_out(resolved, listener).result
    return without_text(result) if resolved.redact else result


def build_index(
    *, config: str | Path | None = None, listener: Listener | None = None, **settings: Any
) -> Index:
    """Compute every training row's gradient once, or find it computed.

    Args:
        config: a gradian.yaml; settings given by name override it.
        listener: told of progress and size.
        settings: fields of `gradian.config.BuildIndexSettings`.

    Raises:
        GradianError: a setting is missing or wrong, an input cannot be used, no space.
    """
    from gradian.verbs.index import build_index as carry_out

    return carry_out(resolve(BuildIndexSettings, settings, config), listener)


def load_index(path: str | Path) -> Index:
    """Open a complete index from its folder.

    Raises:
        IndexStoreError: no complete index there.
    """
    from gradian.verbs.index import load_index as carry_out

    return carry_out(path)


def attribute(
    *, config: str | Path | None = None, listener: Listener | None = None, **settings: Any
) -> Report:
    """Explain a fine-tune that lost a capability.

    Args:
        config: a gradian.yaml; settings given by name override it.
        listener: told of progress.
        settings: fields of `gradian.config.Config`.

    Raises:
        GradianError: a setting is missing or wrong, an input cannot be used, no space.
    """
    from gradian.verbs.attribute import attribute as carry_out

    return carry_out(resolve(Config, settings, config), listener)
