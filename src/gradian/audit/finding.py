"""What a check reports: one finding, with its evidence and its fix."""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Severity(str, Enum):
    """How bad it is. `info` never affects an exit code."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for error, 1 for warning, 2 for info: the order of listing."""
        return ("error", "warning", "info").index(self.value)


class Fix(BaseModel):
    """What to change, with the computed value.

    `text` is complete in itself (`max_length 512 -> 1024`). `key`, `from` and `to` say the same for a
    program; `to` is always a value that can be written, never a description. `file` is the file that holds
    the key; `remove_rows` are rows of the training set to leave out, 0-based and ascending. `safe` is False
    when following it loses or changes data.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    text: str
    key: str | None = None
    from_: Any = Field(default=None, alias="from")
    to: Any = None
    file: str | None = None
    safe: bool = True
    remove_rows: tuple[int, ...] = ()

    @classmethod
    def change(
        cls,
        key: str,
        old: Any,
        new: Any,
        *,
        text: str | None = None,
        file: str | None = None,
        safe: bool = True,
    ) -> Fix:
        """The change of one setting; the text is `key old -> new` unless another is given."""
        values = {"key": key, "from": old, "to": new, "file": file, "safe": safe}
        return cls.model_validate({"text": text or f"{key} {old} -> {new}", **values})


class Finding(BaseModel):
    """One thing that is wrong, or worth knowing.

    `rows` are 0-based and ascending; `count` is how many things are affected (rows unless `values` says
    otherwise) of `of`; `locations` are `file:line` of the first of them. `values` holds the numbers that
    fired and the threshold. `assumes` names the trainer behaviour that was taken for granted. `consequences`
    are ids of findings that follow from this one and are therefore not listed on their own; such a finding
    names its cause in `follows_from`. `row_level` says that `rows` are the faulty rows; `of_eval` that they
    are rows of the eval set. `fingerprint` is the same for the same fault when rows are appended (baselines).
    """

    model_config = ConfigDict(frozen=True)

    id: str
    severity: Severity
    title: str
    message: str = ""
    rows: tuple[int, ...] = ()
    locations: tuple[str, ...] = ()
    count: int = 0
    of: int = 0
    values: dict[str, Any] = Field(default_factory=dict)
    assumes: str | None = None
    fix: Fix | None = None
    consequences: tuple[str, ...] = ()
    row_level: bool = False
    follows_from: str | None = None
    of_eval: bool = False
    fingerprint: str = ""
