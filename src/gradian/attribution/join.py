"""Which audit findings the rows of a group share more than chance would have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradian.audit.finding import Finding, Severity

#: Largest p-value of an association that is listed.
LARGEST_P = 0.01
#: A finding explains a group when at least this part of its rows have it.
COVERS = 1 / 3
#: Row-level findings about what the rows say, and how often. All others are about how rows were made, cut or marked.
CONTENT_FINDINGS = frozenset(
    {
        "data.duplicate_rows",
        "data.conflicting_answers",
        "data.refusal_boilerplate",
        "data.language_mix",
        "data.label_imbalance",
        "data.length_outliers",
        "data.near_duplicate_rows",
    }
)


@dataclass(frozen=True)
class SharedFinding:
    """A row-level finding that is enriched in a group.

    Attributes:
        finding: what the audit found.
        inside, outside: how many rows of the group, and of all others, have it.
        size: rows of the group.
        p_value: Fisher's exact test, one-sided, for a larger share inside.
    """

    finding: Finding
    inside: int
    outside: int
    size: int
    p_value: float

    @property
    def mechanical(self) -> bool:
        """It is a fault of making, cutting or marking rows, it is serious, and much of the group has it."""
        return (
            self.finding.id not in CONTENT_FINDINGS
            and self.finding.severity is not Severity.INFO
            and self.inside >= COVERS * self.size
        )


def findings_shared_by(
    group: Sequence[int], findings: Sequence[Finding], rows: Sequence[int]
) -> list[SharedFinding]:
    """Row-level findings enriched in a group, strongest first.

    Args:
        group: row numbers of the group. rows: row numbers of all rows that were learnt from; findings about
            other rows do not count.
    """
    from scipy.stats import hypergeom  # type: ignore[attr-defined]

    everything, inside_group = set(rows), set(group)
    shared = []
    for finding in findings:
        if not finding.row_level or finding.of_eval:
            continue
        having = everything.intersection(finding.rows)
        inside = len(having & inside_group)
        if inside < 2:
            continue
        p_value = float(hypergeom.sf(inside - 1, len(everything), len(having), len(inside_group)))
        if p_value <= LARGEST_P:
            shared.append(SharedFinding(finding, inside, len(having) - inside, len(inside_group), p_value))
    shared.sort(key=lambda s: (-s.inside, s.finding.severity.rank, s.p_value, s.finding.id))
    return shared
