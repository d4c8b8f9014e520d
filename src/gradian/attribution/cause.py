"""The words of a verdict: where a regression comes from, and how sure that is."""

from __future__ import annotations

from enum import Enum


class Cause(str, Enum):
    """Where the regression comes from."""

    MECHANICAL = "mechanical"
    CONTENT = "content"
    SETUP = "setup"
    DIFFUSE = "diffuse"
    BASE_MODEL = "base_model"
    NONE = "none"


class Confidence(str, Enum):
    """How sure the verdict is of its cause."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"
