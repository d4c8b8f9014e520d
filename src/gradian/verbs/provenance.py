"""Everything that is needed to make a result again: hashes, versions, settings, seeds."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from gradian.attribution.scoring import CHECK_ENGINE
from gradian.config import Config
from gradian.engines.fisher import HEADLINE_DAMPING
from gradian.evaluation.result import EvaluationResult
from gradian.report.model import Provenance
from gradian.rows.training_set import TrainingSet
from gradian.verbs.fine_tune import FineTune
from gradian.verbs.index import Index
from gradian.version import __version__

PACKAGES = ("torch", "transformers", "peft", "tokenizers", "numpy", "scipy", "scikit-learn")


def provenance_of(
    settings: Config,
    fine_tune: FineTune,
    rows: TrainingSet,
    result: EvaluationResult | None,
    evaluation_id: str | None,
    index: Index | None,
) -> Provenance:
    """The provenance section of a report."""
    device, dtype = fine_tune.compute
    profile = fine_tune.profile
    return Provenance(
        index_id=index.index_id if index else None,
        evaluation_id=evaluation_id,
        base_model=fine_tune.base.name,
        revision=settings.revision or fine_tune.base.commit,
        adapter=str(fine_tune.adapter.path),
        adapter_sha256=fine_tune.adapter_sha256,
        dataset_sha256=rows.dataset.sha256,
        eval_dataset_sha256=result.eval_sha256 if result else None,
        rows=len(rows),
        rows_left_out=rows.left_out,
        profile=f"{profile.trainer} {profile.version or ''}".strip() + f" ({profile.reason})",
        profile_assumed=profile.assumed,
        dtype=dtype,
        device=device,
        engine=f"{settings.engine} (rows), checked by {CHECK_ENGINE}" if index else None,
        group_engine="fisher, exact removal of the group" if index else None,
        damping=HEADLINE_DAMPING if index else None,
        projection=index.store.layout.k if index else None,
        sites=len(fine_tune.adapter.sites),
        not_attributed=fine_tune.adapter_parts_not_attributed,
        config=settings.model_dump(mode="json"),
        versions=versions(),
        seeds={"seed": settings.seed},
    )


def versions() -> dict[str, str]:
    """Gradian, Python and every library that a number depends on."""
    found = {"gradian": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found
