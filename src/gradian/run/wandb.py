"""A Weights & Biases run folder (`wandb/run-*/files/`): its config, summary and package versions.

The history is in a binary `.wandb` file, which is not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradian.run.artefact import (
    MAX_CONFIG_BYTES,
    ArtefactError,
    parse_yaml_object,
    read_json_object,
    read_text,
)
from gradian.run.log_history import LogHistory, LogPoint, number

PACKAGES = ("trl", "transformers", "peft", "torch", "datasets", "tokenizers", "accelerate", "unsloth",
"axolotl",
            "torchtune")  # fmt: skip
REQUIREMENT = re.compile(r"^([A-Za-z0-9_.-]+)==([\w.+!-]+)$", re.MULTILINE)


@dataclass(frozen=True)
class WandbRun:
    """What the newest run below `wandb/` says.

    Attributes:
        files: what was read, relative to `wandb/`; the config first.
        config: key -> value (transformers' integration stores the training arguments, PEFT's config and the
            model's config in one mapping).
        versions: package -> version, from requirements.txt (versions_file).
        history: the last logged values as a log of one point; None without a summary.
    """

    files: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    versions_file: str = ""
    history: LogHistory | None = None


def read_wandb_folder(folder: Path) -> WandbRun | None:
    """Reads the newest run below `folder`; None when there is none. Raises ArtefactError on a damaged
    config.
    """
    runs = [path for pattern in ("run-*", "offline-run-*") for path in folder.glob(pattern)]
    runs = [path for path in runs if (path / "files" / "config.yaml").is_file()]
    if not runs:
        return None
    newest = max(runs, key=lambda path: path.name.removeprefix("offline-"))  # run-<date>_<time>-<id>
    files = newest / "files"
    prefix = f"{newest.name}/files"
    raw = parse_yaml_object(read_text(files / "config.yaml", MAX_CONFIG_BYTES))
    config = {key: item["value"] for key, item in raw.items() if isinstance(item, dict) and "value" in item}
    config.pop("_wandb", None)
    read = [f"{prefix}/config.yaml"]
    versions, versions_file, history = {}, "", None
    try:
        found = dict(REQUIREMENT.findall(read_text(files / "requirements.txt", MAX_CONFIG_BYTES)))
        versions = {name: found[name] for name in PACKAGES if name in found}
        versions_file = f"{prefix}/requirements.txt"
        read.append(versions_file)
    except ArtefactError:
        pass  # optional: not every version of wandb writes it
    try:
        summary = read_json_object(files / "wandb-summary.json", MAX_CONFIG_BYTES)
        history = _summary_history(summary, f"wandb/{prefix}/wandb-summary.json")
        read.append(f"{prefix}/wandb-summary.json")
    except ArtefactError:
        pass  # a crashed run has none
    return WandbRun(tuple(read), config, versions, versions_file, history)


def _summary_history(summary: Mapping[str, Any], file: str) -> LogHistory | None:
    """The last value of each metric. One point cannot show a trend, and the checks on logs ask for more."""
    values = {key: parsed for key, item in summary.items() if (parsed := number(item)) is not None}
    step = int(values.get("train/global_step", 0))
    train = {key.removeprefix("train/"): value for key, value in values.items() if key.startswith("train/")}
    evals = {
        "eval_" + key.removeprefix("eval/"): value for key, value in values.items() if key.startswith("eval/")
    }
    epoch = train.pop("epoch", None)
    train.pop("global_step", None)
    if not train and not evals:
        return None
    return LogHistory(
        file=file,
        train=(LogPoint(step, epoch, train),) if train else (),
        evals=(LogPoint(step, epoch, evals),) if evals else (),
        global_step=step or None,
        epoch=epoch,
        complete=False,
    )
