"""`trainer_state.json` of transformers' Trainer: bare NaN allowed, resumed runs untangled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradian.run.artefact import ArtefactError, read_json_object
from gradian.run.log_history import MAX_STEP, LogHistory, finite, split_lines


def read_trainer_state(path: Path, name: str) -> LogHistory:
    """Reads a trainer state; `name` is its path relative to the run folder. Raises ArtefactError."""
    state = read_json_object(path)
    if "log_history" not in state and "global_step" not in state:
        raise ArtefactError("has neither log_history nor global_step, so it is no trainer state")
    history = state.get("log_history")
    lines = [line for line in history if isinstance(line, dict)] if isinstance(history, list) else []
    best = state.get("best_model_checkpoint")
    return LogHistory(
        file=name,
        global_step=_whole(state.get("global_step")),
        max_steps=_positive(state.get("max_steps")),
        epoch=finite(state.get("epoch")),
        num_train_epochs=finite(state.get("num_train_epochs")),
        train_batch_size=_positive(state.get("train_batch_size")),
        logging_steps=finite(state.get("logging_steps")),
        eval_steps=finite(state.get("eval_steps")),
        save_steps=finite(state.get("save_steps")),
        best_metric=finite(state.get("best_metric")),
        best_global_step=_whole(state.get("best_global_step")),
        best_checkpoint=best if isinstance(best, str) else None,
        should_training_stop=_should_stop(state),
        **split_lines(lines),
    )


def _whole(value: Any) -> int | None:
    parsed = finite(value)
    return int(parsed) if parsed is not None and 0 <= parsed < MAX_STEP else None


def _positive(value: Any) -> int | None:
    parsed = _whole(value)
    return parsed if parsed is not None and parsed > 0 else None


def _should_stop(state: dict[str, Any]) -> bool | None:
    value: Any = state
    for key in ("stateful_callbacks", "TrainerControl", "args", "should_training_stop"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, bool) else None
