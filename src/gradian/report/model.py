"""The report: one frozen model. Every rendering is a pure function of it, and nothing else is in any of them.

Field names may be added to, never renamed without a new `schema_version`.

The sign, stated once: a **negative** score means that the row *hurt* the capability, a positive one that it
*helped*. All effects are in nats of the query loss, averaged over the regressed items, where
`query loss = loss(wanted answer) - loss(what the model said)`. Removing rows from training changes the query loss
by the stated effect; a negative effect is an improvement. Renderings say "hurt" and "helped", never a bare sign.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gradian.attribution.cause import Cause, Confidence
from gradian.audit.finding import Finding

__all__ = [
    "SCHEMA_VERSION",
    "Agreement",
    "ArmCounts",
    "Cause",
    "Confidence",
    "Evaluation",
    "Group",
    "GroupFinding",
    "ItemResult",
    "Outcome",
    "Provenance",
    "Report",
    "RowScore",
    "Timings",
    "Verdict",
]

SCHEMA_VERSION = 1


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Outcome(str, Enum):
    """What the evaluation says."""

    REGRESSION = "regression"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    NO_TARGET = "no_target"


class Verdict(_Frozen):
    """The first paragraph, and what it rests on.

    Attributes:
        text: the whole first paragraph, every number computed.
        reasons: why the confidence is what it is, one sentence each.
        fixes: what to change, the most important first.
        forced: the attribution was made although the evaluation did not show a regression (`--force`).
    """

    outcome: Outcome
    cause: Cause
    confidence: Confidence
    reasons: tuple[str, ...] = ()
    text: str
    fixes: tuple[str, ...] = ()
    forced: bool = False


class ArmCounts(_Frozen):
    """How one arm's generations ended: counts of items."""

    empty: int = 0
    hit_token_limit: int = 0
    not_extracted: int = 0


class Evaluation(_Frozen):
    """Base against tuned on the same items.

    Attributes:
        base, tuned: mean score in [0, 1] (for `nll`: mean log-probability of the wanted answer in nats, at most 0,
            so that higher is better there too).
        delta: tuned - base. ci: its 95 % interval, [low, high].
        kept, lost, gained, both_wrong: counts of items, base against tuned. For a graded metric an item is lost
            when its score fell, gained when it rose.
        mcnemar_p: exact two-sided McNemar p-value; None for a graded metric.
        minimum_detectable_effect: smallest |delta| found with 80 % power at this number of items; None if no
            item changed.
        base_nll, tuned_nll: teacher-forced loss of the wanted answers, nats per item.
        base_margin, tuned_margin: mean log p(wanted) - log p(said by tuned) over the lost items, nats; None if
            there are none.
        partial: the evaluation was limited to the first items (`--limit`).
    """

    capability: str
    metric: str
    items: int
    base: float
    tuned: float
    delta: float
    ci: tuple[float, float]
    ci_method: str = "percentile bootstrap over items"
    resamples: int = 10_000
    seed: int = 0
    kept: int
    lost: int
    gained: int
    both_wrong: int
    mcnemar_p: float | None = None
    minimum_detectable_effect: float | None = None
    equivalence_margin: float | None = None
    base_nll: float | None = None
    tuned_nll: float | None = None
    base_margin: float | None = None
    tuned_margin: float | None = None
    base_counts: ArmCounts = ArmCounts()
    tuned_counts: ArmCounts = ArmCounts()
    partial: bool = False
    notes: tuple[str, ...] = ()


class ItemResult(_Frozen):
    """One eval item: what was wanted and what both models said."""

    item: int
    file: str
    line: int | None
    outcome: str  # kept | lost | gained | both_wrong
    prompt: str
    wanted: str
    base_said: str
    tuned_said: str
    base_score: float
    tuned_score: float


class GroupFinding(_Frozen):
    """An audit finding that the rows of a group share.

    `rows_with` of the group's `rows` have it, against `rows_elsewhere` of the others; `p_value` is Fisher's exact,
    one-sided, for a larger share inside the group.
    """

    id: str
    title: str
    rows_with: int
    rows_elsewhere: int
    p_value: float
    fix: str | None = None


class Group(_Frozen):
    """Training rows that are judged together.

    Attributes:
        id: the user's own group name, or the number of the cluster; `unclustered` for the rows in none.
        label: the terms that set it apart (`invoice, total, currency`).
        share: share of the negative score mass, in [0, 1]; share_ci its bootstrap interval over items.
        row_share, token_share: share of the rows and of the tokens that were learnt from.
        first_order_effect: sum of the row scores over n, nats.
        removal_effect: exact effect of removing the group, nats, at the headline damping; removal_effects the
            same at each damping of the sweep (keys: damping as text, relative to the mean squared row norm).
        explained: removal effect over the change of the query loss from base to tuned; None without a base arm.
        p_value: share of random partitions into groups of the same sizes whose worst group is at least as bad.
        accused: the verdict names it.
    """

    id: str
    label: str
    size: int
    rows: tuple[int, ...]
    share: float
    share_ci: tuple[float, float] | None = None
    row_share: float
    token_share: float
    first_order_effect: float
    removal_effect: float
    removal_effects: dict[str, float] = Field(default_factory=dict)
    explained: float | None = None
    p_value: float | None = None
    accused: bool = False
    findings: tuple[GroupFinding, ...] = ()
    representative_rows: tuple[int, ...] = ()


class RowScore(_Frozen):
    """A training row and what it did (see the module's docstring for the sign).

    Attributes:
        score: `q . H^-1 g`, in the engine's own unit, by which rows are ranked; every lost item has the same say in it.
        share: its part of all harm (negative: -0.05 is 5 % of it) or of all help (positive).
        removal_effect: exact effect of removing this row alone, nats. Near copies of a row make it small: each of them
            is replaceable.
        tokens: targets that it was learnt from. loss: their summed loss, nats.
        findings: ids of the audit's findings about this very row.
    """

    row: int
    file: str
    line: int | None
    score: float
    share: float
    removal_effect: float
    group: str
    tokens: int
    loss: float
    findings: tuple[str, ...] = ()
    prompt: str = ""
    answer: str = ""


class Agreement(_Frozen):
    """Does an engine without curvature see the same? Never averaged away."""

    engines: tuple[str, str]
    rank_correlation: float
    top_overlap: float
    top_k: int
    same_top_group: bool
    length_correlation: float | None = None
    text: str = ""


class Provenance(_Frozen):
    """Everything that is needed to make this report again."""

    index_id: str | None = None
    evaluation_id: str | None = None
    base_model: str | None = None
    revision: str | None = None
    adapter: str | None = None
    adapter_sha256: str | None = None
    dataset_sha256: str | None = None
    eval_dataset_sha256: str | None = None
    rows: int = 0
    rows_left_out: tuple[str, ...] = ()
    profile: str = ""
    profile_assumed: tuple[str, ...] = ()
    dtype: str | None = None
    device: str | None = None
    engine: str | None = None
    group_engine: str | None = None
    damping: float | None = None
    projection: int | None = None
    sites: int | None = None
    not_attributed: tuple[str, ...] = ()
    config: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    seeds: dict[str, int] = Field(default_factory=dict)


class Timings(_Frozen):
    """How long this run took: `seconds` by stage, and `reused`, what was found on disk instead of computed."""

    seconds: dict[str, float] = Field(default_factory=dict)
    reused: tuple[str, ...] = ()


class Report(_Frozen):
    """A whole report. `timings` and nothing else differs between two runs on the same inputs."""

    schema_version: int = SCHEMA_VERSION
    title: str
    smoke_test: bool = False
    verdict: Verdict
    evaluation: Evaluation | None = None
    findings: tuple[Finding, ...] = ()
    items: tuple[ItemResult, ...] = ()
    groups: tuple[Group, ...] = ()
    rows: tuple[RowScore, ...] = ()
    rows_total: int = 0
    agreement: Agreement | None = None
    next_steps: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    provenance: Provenance = Provenance()
    timings: Timings = Timings()
