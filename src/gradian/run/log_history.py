"""What a trainer logged: training points, evaluations, and how far the run got.

One form for every source (`trainer_state.json`, `trainer_log.jsonl`, torchtune's log, TensorBoard, W&B).
Values are
floats under the names that transformers uses: `loss`, `learning_rate`, `grad_norm`, `eval_loss`,
`mean_token_accuracy`. NaN and infinity are kept, they are the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

#: Keys that only reinforcement learning trainers log. Their losses are about zero when all is well.
RL_KEYS = frozenset({"reward", "frac_reward_zero_std", "clip_ratio", "policy/approxkl_avg"})
RL_PREFIXES = ("objective/", "actor/", "ppo/", "rewards/", "clip_ratio/")
MAX_STEP = 2**53  # beyond it a float holds no whole numbers, and no run has as many steps
#: Keys of preference trainers (DPO, KTO, ORPO), whose losses start at ln 2 and mean something else.
PREFERENCE_KEYS = ("rewards/chosen", "rewards/margins", "logps/chosen", "logits/chosen")


@dataclass(frozen=True, slots=True)
class LogPoint:
    """One logged line: the optimizer `step` (0 when the source has none), the `epoch` and the numbers."""

    step: int
    epoch: float | None
    values: Mapping[str, float]


@dataclass(frozen=True)
class LogHistory:
    """The log of one run, in step order, one point a step.

    Attributes:
        file: the source, relative to the run folder.
        train: points with a training loss, learning rate or gradient norm.
        evals: points with `eval_*` values.
        summary: the closing line of the run (`train_runtime`, `train_loss`, ...).
        global_step, max_steps: optimizer steps done and planned; None when the source has none.
        epoch, num_train_epochs: epochs done and planned.
        train_batch_size: rows per device and forward pass, as the state has it.
        logging_steps, eval_steps, save_steps: as the state has them.
        best_metric, best_global_step, best_checkpoint: what best-model tracking recorded.
        should_training_stop: False when the state was saved in mid-run; None when not recorded.
        restarts: steps at which the log goes back to an earlier step (a resumed run).
        repeated: lines that a later line of the same step replaced.
        complete: False for a source that holds the last values only (a W&B summary).
        kind: `rl` and `preference` runs log losses that the rules for supervised tuning do not fit.
    """

    file: str
    train: tuple[LogPoint, ...] = ()
    evals: tuple[LogPoint, ...] = ()
    summary: Mapping[str, float] = field(default_factory=dict)
    global_step: int | None = None
    max_steps: int | None = None
    epoch: float | None = None
    num_train_epochs: float | None = None
    train_batch_size: int | None = None
    logging_steps: float | None = None
    eval_steps: float | None = None
    save_steps: float | None = None
    best_metric: float | None = None
    best_global_step: int | None = None
    best_checkpoint: str | None = None
    should_training_stop: bool | None = None
    restarts: tuple[int, ...] = ()
    repeated: int = 0
    complete: bool = True
    kind: Literal["sft", "preference", "rl"] = "sft"

    def series(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps and values of a training series, in step order; both empty when it was not logged."""
        return _series(self.train, name)

    def eval_series(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps and values of an evaluation series, in step order."""
        return _series(self.evals, name)

    def eval_names(self) -> tuple[str, ...]:
        """The `eval_*` names that were logged, sorted, without timings."""
        timing = ("_runtime", "_per_second")
        names = {name for point in self.evals for name in point.values}
        return tuple(sorted(name for name in names if not name.endswith(timing)))


def epoch_ends(logs: LogHistory) -> list[float]:
    """Steps at which epochs end, from the logged epochs; the last epoch's end is not a boundary."""
    pairs = [(point.step, point.epoch) for point in logs.train if point.epoch and point.step]
    if not pairs:
        return []
    per_epoch = float(np.median([step / epoch for step, epoch in pairs if epoch]))
    last = pairs[-1][1] or 0
    return [number * per_epoch for number in range(1, math.ceil(last - 1e-3))]


def number(value: Any) -> float | None:
    """A logged number; NaN and infinity also in their text forms; None when it is no number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def finite(value: Any) -> float | None:
    """A logged number that must be a real one, such as an epoch; None when it is NaN, infinite or no number."""
    parsed = number(value)
    return parsed if parsed is not None and math.isfinite(parsed) else None


def split_lines(lines: Iterable[Mapping[str, Any]], step_key: str = "step") -> dict[str, Any]:
    """Sorts logged lines into the fields `train`, `evals`, `summary`, `restarts`, `repeated` and `kind`.

    A step that was logged twice keeps its last line: a resumed run goes over some steps again.
    """
    train: dict[int, LogPoint] = {}
    evals: dict[int, LogPoint] = {}
    summary: dict[str, float] = {}
    restarts: list[int] = []
    repeated, highest, keys = 0, -1, set[str]()
    for line in lines:
        values = {str(key): parsed for key, item in line.items() if (parsed := number(item)) is not None}
        keys.update(str(key) for key in line)
        step_value = values.pop(step_key, None)
        epoch = finite(values.pop("epoch", None))
        step = int(step_value) if step_value is not None and 0 <= step_value < MAX_STEP else 0
        if "train_runtime" in values:
            summary = values
            continue
        is_eval = any(name.startswith("eval_") for name in values)
        if not values or not (
            is_eval or "loss" in values or "learning_rate" in values or "grad_norm" in values
        ):
            continue
        target = evals if is_eval else train
        if not is_eval:
            if step < highest and step in train:
                restarts.append(step)
            highest = step if step in train else max(highest, step)
        repeated += step in target
        target[step] = LogPoint(step, epoch, values)
    return {
        "train": tuple(train[step] for step in sorted(train)),
        "evals": tuple(evals[step] for step in sorted(evals)),
        "summary": summary,
        "restarts": tuple(restarts),
        "repeated": repeated,
        "kind": _kind(keys),
    }


def _kind(keys: set[str]) -> Literal["sft", "preference", "rl"]:
    if any(key.startswith(PREFERENCE_KEYS) for key in keys):
        return "preference"
    if any(key in RL_KEYS or key.startswith(RL_PREFIXES) for key in keys):
        return "rl"
    return "sft"


def _series(points: tuple[LogPoint, ...], name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    chosen = [point for point in points if name in point.values]
    steps = np.array([point.step for point in chosen], dtype=np.int64)
    return steps, np.array([point.values[name] for point in chosen], dtype=np.float64)
