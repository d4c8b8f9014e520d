"""Gradian: what broke a LoRA fine-tune, how sure that is, and what to change.

    import gradian

    report = gradian.attribute(
        base_model="HuggingFaceTB/SmolLM2-135M-Instruct", run="runs/mine", dataset="train.jsonl",
        eval_dataset="eval.jsonl", capability="json_formatting", metric="json_valid",
    )
    print(report.verdict.text)

Every function takes the settings of `gradian.config.Config` by name. Importing this package imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradian.version import __version__

if TYPE_CHECKING:
    from gradian.api import attribute, build_index, diagnose, evaluate, load_index

__all__ = ["__version__", "attribute", "build_index", "diagnose", "evaluate", "load_index"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from gradian import api

        return getattr(api, name)
    raise AttributeError(f"module 'gradian' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
