"""LLaMA-Factory's `trainer_log.jsonl`: one line a logged step, appended when a run is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradian.run.artefact import ArtefactError, parse_json, read_text
from gradian.run.log_history import LogHistory, finite, split_lines

FILE_NAME = "trainer_log.jsonl"
NAMES: Mapping[str, str] = {"lr": "learning_rate", "current_steps": "step"}


def read_trainer_log(path: Path, name: str) -> LogHistory:
    """Reads a trainer log. Lines that are no JSON (a killed run's last line) are left out. Raises
    ArtefactError.
    """
    records: list[dict[str, Any]] = []
    for line in read_text(path).splitlines():
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except ArtefactError:
            continue
        if isinstance(record, dict):
            records.append({NAMES.get(key, key): value for key, value in record.items()})
    if not any("step" in record for record in records):
        raise ArtefactError("holds no JSON line with current_steps")
    last = records[-1]
    step, total = finite(last.get("step")), finite(last.get("total_steps"))
    return LogHistory(
        file=name,
        global_step=int(step) if step is not None else None,
        max_steps=int(total) if total else None,
        epoch=finite(last.get("epoch")),
        **split_lines([{k: v for k, v in record.items() if k in LOGGED} for record in records]),
    )


#: The keys that are measurements; the others are progress and times.
LOGGED = frozenset({"step", "loss", "eval_loss", "reward", "accuracy", "learning_rate", "epoch"})
