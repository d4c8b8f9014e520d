"""A report without the text of rows and items, for sharing.

What is left: numbers, file names and lines, group names, findings, commands. Group names may be three
words of the rows, and a finding's message may quote a value: whoever must hide those too should not share it.
"""

from __future__ import annotations

from gradian.report.model import ItemResult, Report, RowScore


def redacted(report: Report) -> Report:
    """The same report with every prompt and answer replaced by its length."""
    return report.model_copy(
        update={
            "items": tuple(_item(item) for item in report.items),
            "rows": tuple(_row(row) for row in report.rows),
        }
    )


def _item(item: ItemResult) -> ItemResult:
    fields = ("prompt", "wanted", "base_said", "tuned_said")
    return item.model_copy(update={field: _length(getattr(item, field)) for field in fields})


def _row(row: RowScore) -> RowScore:
    return row.model_copy(update={"prompt": _length(row.prompt), "answer": _length(row.answer)})


def _length(text: str) -> str:
    return f"[redacted: {len(text):,} {'character' if len(text) == 1 else 'characters'}]"
