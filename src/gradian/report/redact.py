"""A report without the text of rows and items, for sharing.

What is left: numbers, file names and lines, group names, the verdict, commands, and findings as far as they quote no
row. Group names may be three words of the rows, and the verdict may name a finding's fix: whoever must hide those
too should not share it.
"""

from __future__ import annotations

from gradian.audit.redact import quotes_rows, redacted_finding, redacted_title
from gradian.evaluation.redact import length_of
from gradian.report.model import Group, GroupFinding, ItemResult, Report, RowScore


def redacted(report: Report) -> Report:
    """The same report with every prompt and answer replaced by its length, and no row quoted by a finding."""
    return report.model_copy(
        update={
            "items": tuple(_item(item) for item in report.items),
            "rows": tuple(_row(row) for row in report.rows),
            "findings": tuple(redacted_finding(finding) for finding in report.findings),
            "groups": tuple(_group(group) for group in report.groups),
        }
    )


def _item(item: ItemResult) -> ItemResult:
    fields = ("prompt", "wanted", "base_said", "tuned_said")
    return item.model_copy(update={field: length_of(getattr(item, field)) for field in fields})


def _row(row: RowScore) -> RowScore:
    return row.model_copy(update={"prompt": length_of(row.prompt), "answer": length_of(row.answer)})


def _group(group: Group) -> Group:
    return group.model_copy(update={"findings": tuple(_shared(finding) for finding in group.findings)})


def _shared(finding: GroupFinding) -> GroupFinding:
    if not quotes_rows(finding.id):
        return finding
    return finding.model_copy(
        update={
            "title": redacted_title(finding.id),
            "fix": None if finding.fix is None else f"see gradian explain {finding.id}",
        }
    )
