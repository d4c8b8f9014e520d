"""Configuration files of trainers at the top of a run folder, told apart by their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradian.run.artefact import (
    MAX_CONFIG_BYTES,
    MAX_YAML_CHARACTERS,
    ArtefactError,
    RunProblem,
    parse_json,
    parse_yaml_object,
    read_text,
)
from gradian.run.axolotl import add_axolotl_settings, is_axolotl_config
from gradian.run.llama_factory import add_llama_factory_settings, is_llama_factory_config
from gradian.run.settings import SettingsBuilder
from gradian.run.torchtune import add_torchtune_settings, is_torchtune_config
from gradian.run.trl_config import add_trl_settings, is_trl_config

MAX_FILES = 20  # candidates that are opened
ENDINGS = (".yaml", ".yml", ".json")
#: Files of other kinds with these endings.
NOT_CONFIGS = frozenset(
    {
        "adapter_config.json", "added_tokens.json", "all_results.json", "config.json", "eval_results.json",
        "generation_config.json", "preprocessor_config.json", "processor_config.json",
        "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "train_results.json",
        "trainer_state.json", "vocab.json",
    }
)  # fmt: skip

AddSettings = Callable[[SettingsBuilder, str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class ConfigFile:
    """A trainer's configuration: its `name` in the folder, the trainer, its values and how to add them."""

    name: str
    trainer: str
    values: Mapping[str, Any]
    add_settings: AddSettings


#: The most telling keys are asked first: a TRL configuration shares its names with LLaMA-Factory's.
KINDS: tuple[tuple[str, Callable[[Mapping[str, Any]], bool], AddSettings], ...] = (
    ("torchtune", is_torchtune_config, add_torchtune_settings),
    ("axolotl", is_axolotl_config, add_axolotl_settings),
    ("llama_factory", is_llama_factory_config, add_llama_factory_settings),
    ("trl", is_trl_config, add_trl_settings),
)


def find_config_files(folder: Path, entries: Iterable[str]) -> tuple[list[ConfigFile], list[RunProblem]]:
    """The configurations among the entries of `folder`, in the order of their names.

    A YAML file that does not parse is a problem. A JSON file may be anything, so one that does not parse or
    is no configuration is passed over.
    """
    found: list[ConfigFile] = []
    problems: list[RunProblem] = []
    names = [name for name in entries if name.lower().endswith(ENDINGS) and name not in NOT_CONFIGS]
    for name in names[MAX_FILES:]:
        problems.append(
            RunProblem(name, f"was not opened: {MAX_FILES} other files were tried first", "not_read")
        )
    for name in names[:MAX_FILES]:
        is_json = name.lower().endswith(".json")
        if not is_json and _size(folder / name) > MAX_YAML_CHARACTERS:
            problems.append(RunProblem(name, "is too large to be a trainer's configuration", "not_read"))
            continue
        try:
            text = read_text(folder / name, MAX_CONFIG_BYTES)
            values = parse_json(text) if is_json else parse_yaml_object(text)
        except ArtefactError as error:
            if not is_json:
                problems.append(RunProblem(name, str(error)))
            continue
        config = classify(name, values)
        if config is not None:
            found.append(config)
    return found, problems


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def classify(name: str, values: Any) -> ConfigFile | None:
    """The configuration that these values are; None when they are none."""
    if not isinstance(values, dict):
        return None
    for trainer, is_kind, add_settings in KINDS:
        if is_kind(values):
            return ConfigFile(name, trainer, values, add_settings)
    return None
