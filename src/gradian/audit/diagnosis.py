"""`gradian diagnose`: the audit with its baseline, as one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gradian.audit.baseline import apply_baseline
from gradian.audit.context import AuditInputs, Progress
from gradian.audit.runner import AuditResult, run_audit


def diagnose(
    inputs: AuditInputs,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    thresholds: Mapping[str, float] | None = None,
    baseline: str | Path | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Find mechanical causes in the rows, the configuration, the logs and the adapter file.

    Args:
        inputs: what to look at.
        select, ignore: prefixes of check ids; everything is selected when `select` is empty.
        thresholds: `<check id>.<name>` -> number.
        baseline: a file of `write_baseline`; what it knows is moved to `known`.
        progress: called with the path and the number of rows read so far.

    Raises:
        ConfigError, InputError, ModelError: with what, where, why and the fix.
    """
    result = run_audit(inputs, select=select, ignore=ignore, thresholds=thresholds, progress=progress)
    return apply_baseline(result, baseline) if baseline is not None else result
