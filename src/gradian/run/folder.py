"""A run folder, read: everything that later stages need to know of how the adapter was trained.

The folder may be a trainer's output directory, a checkpoint, an adapter alone, or hold no more than a
configuration file. Nothing in it is executed; what cannot be read is named among the problems.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from gradian.errors import InputError
from gradian.run.adapter import AdapterFile, Checkpoint, has_adapter, inside, read_adapter
from gradian.run.artefact import ArtefactError, RunProblem
from gradian.run.axolotl import ARGUMENT_NAMES as AXOLOTL_ARGUMENT_NAMES
from gradian.run.axolotl import add_axolotl_settings
from gradian.run.config_files import ConfigFile, find_config_files
from gradian.run.log_history import LogHistory
from gradian.run.model_card import CARD_NAMES, ModelCard, read_model_card
from gradian.run.places import Place, Places, find_places
from gradian.run.profile import Evidence, FoundVersion, detect_profile, parse_trainer_override
from gradian.run.record import Run
from gradian.run.settings import SettingsBuilder
from gradian.run.tensorboard import PREFIX as EVENTS_PREFIX
from gradian.run.tensorboard import EventLog, read_event_folder
from gradian.run.tokenizer_files import has_tokenizer, read_chat_template
from gradian.run.torchtune import LOG_GLOB, read_torchtune_log
from gradian.run.trainer_log import FILE_NAME as TRAINER_LOG
from gradian.run.trainer_log import read_trainer_log
from gradian.run.trainer_state import read_trainer_state
from gradian.run.training_args import read_training_args
from gradian.run.wandb import WandbRun, read_wandb_folder

FULL_WEIGHTS = re.compile(r"^(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)$")
#: adapter_config.json key -> normalised name.
ADAPTER_NAMES: Mapping[str, str] = {"r": "lora_r", "revision": "base_revision"}

T = TypeVar("T")

__all__ = ["Run", "read_run"]


def read_run(path: str | Path, trainer: str | None = None) -> Run:
    """Reads a run folder.

    Args:
        path: the folder.
        trainer: what the user says wrote it, e.g. `trl==0.16.0`; None to find out.

    Raises:
        InputError: the path does not exist, is no folder or cannot be listed.
        ConfigError: `trainer` is not the name of a trainer.
    """
    override = parse_trainer_override(trainer) if trainer else None
    folder = Path(path)
    _check_folder(folder, str(path))
    return _RunReader(folder).read(override)


def _check_folder(folder: Path, shown: str) -> None:
    try:
        exists, is_folder = folder.exists(), folder.is_dir()
    except (OSError, ValueError) as error:  # a name too long, an embedded NUL
        raise InputError("the run folder cannot be used", where=shown, why=str(error)) from None
    if not exists:
        fix = "give the trainer's output_dir, one of its checkpoint-N folders, or the adapter's folder"
        raise InputError("the run folder does not exist", where=shown, fix=fix)
    if not is_folder:
        raise InputError(
            "the run is a file, not a folder", where=shown, fix=f"give its folder: {folder.parent}"
        )
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError("the run folder cannot be listed", where=shown, why="permission denied")


class _RunReader:
    """Gathers what the readers find in one folder. Lives for one `read_run`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.artefacts: set[str] = set()
        self.problems: list[RunProblem] = []
        self.versions: dict[str, FoundVersion] = {}
        self.builder = SettingsBuilder()
        self.evidence = Evidence()
        self.card_file = ""

    def read(self, override: tuple[str, str | None] | None) -> Run:
        places = find_places(self.folder)
        self.problems += places.problems
        checkpoints = tuple(
            Checkpoint(place.step or 0, place.path, place.name, self._adapter(place))
            for place in places.checkpoints
        )
        adapter = self._final_adapter(places, checkpoints)
        # The order in which settings are added is the order in which they are trusted.
        self._read_training_args(places)
        self._read_adapter_settings(adapter)
        events = self._read_events(places)
        card = self._read_cards(places)
        self._read_configs(places, card)
        wandb = self._read_wandb(places)
        self._add_card_settings(card)
        logs = self._read_logs(places, events, wandb)
        settings = self.builder.build()
        template, template_file = self._read_template(places)
        return Run(
            path=self.folder,
            profile=detect_profile(replace(self.evidence, versions=self.versions), settings, override),
            settings=settings,
            logs=logs,
            adapter=adapter,
            checkpoints=checkpoints,
            versions=dict(sorted(self.versions.items())),
            card=card,
            tokenizer_folder=next((place.path for place in places.all if has_tokenizer(place.path)), None),
            chat_template=template,
            chat_template_file=template_file,
            full_weights=tuple(name for name in places.entries if FULL_WEIGHTS.match(name)),
            args_class=self.evidence.args_class,
            artefacts=tuple(sorted(self.artefacts)),
            problems=tuple(self.problems),
        )

    def _try(self, name: str, read: Callable[[], T], note: bool = True) -> T | None:
        """What `read` gives; on an ArtefactError a problem is noted and None is returned."""
        try:
            value = read()
        except ArtefactError as error:
            self.problems.append(RunProblem(name, str(error)))
            return None
        if note:
            self.artefacts.add(name)
        return value

    def _adapter(self, place: Place) -> AdapterFile | None:
        if not has_adapter(place.path):
            return None
        adapter, problems = read_adapter(place.path, place.name)
        self.problems += problems
        self.artefacts.update(adapter.files)
        return adapter

    def _final_adapter(self, places: Places, checkpoints: tuple[Checkpoint, ...]) -> AdapterFile | None:
        own = [
            place for place in places.all if place.name == "." or (place.step is None and not place.around)
        ]
        for place in own:
            adapter = self._adapter(place)
            if adapter is not None:
                return adapter
        return next((point.adapter for point in reversed(checkpoints) if point.adapter is not None), None)

    def _read_training_args(self, places: Places) -> None:
        """Reads the first readable training_args.bin: the checkpoints' copies say the same."""
        for place in places.all:
            path = place.path / "training_args.bin"
            if not path.exists():
                continue
            name = inside(place.name, "training_args.bin")
            args = self._try(name, partial(read_training_args, path))
            if args is None:
                continue
            if args.unsafe:
                listed = ", ".join(args.unsafe[:5]) + (", ..." if len(args.unsafe) > 5 else "")
                why = f"refers to {listed}, which trainers do not write; not executed, values not used"
                self.problems.append(RunProblem(name, why, "unsafe_pickle"))
                continue
            own_names = AXOLOTL_ARGUMENT_NAMES if args.class_name.startswith("axolotl.") else None
            self.builder.add(name, args.values, own_names)
            self.evidence = replace(
                self.evidence, args_class=args.class_name, args_file=name, args_fields=args.values
            )
            return

    def _read_adapter_settings(self, adapter: AdapterFile | None) -> None:
        if adapter is None or not adapter.has_config:
            return
        file = inside(adapter.name, "adapter_config.json")
        self.builder.add(file, adapter.config, ADAPTER_NAMES)
        peft = adapter.config.get("peft_version")
        if isinstance(peft, str):
            self.versions["peft"] = FoundVersion(peft, file)
        mapping = adapter.config.get("auto_mapping")
        if isinstance(mapping, dict) and mapping.get("unsloth_fixed"):
            self.evidence = replace(self.evidence, unsloth_adapter=file)

    def _read_cards(self, places: Places) -> ModelCard | None:
        """Reads every model card for versions and tags; the first one that tells something is the run's."""
        chosen: ModelCard | None = None
        for place in places.all:
            path = place.path / "README.md"
            if not path.exists():
                continue
            name = inside(place.name, "README.md")
            card = self._try(name, partial(read_model_card, path))
            if card is None:
                continue
            stated = dict(
                card.versions, **({"axolotl": card.axolotl_version} if card.axolotl_version else {})
            )
            for package, version in stated.items():
                self.versions.setdefault(package, FoundVersion(version, name))
            if card.tags and not self.evidence.tags:
                self.evidence = replace(self.evidence, tags=card.tags, tags_file=name)
            if chosen is None and (card.versions or card.tags or card.hyperparameters or card.axolotl):
                chosen, self.card_file = card, name
        return chosen

    def _read_events(self, places: Places) -> EventLog | None:
        folders = [self.folder / name for name in ("runs", "logs") if name in places.entries]
        if any(name.startswith(EVENTS_PREFIX) for name in places.entries):
            folders.insert(0, self.folder)
        for folder in folders:
            events, problems = read_event_folder(folder, self.folder)
            self.problems += problems
            if events is not None:
                self.artefacts.update(events.files)
                self.builder.add(events.files[-1], events.arguments)
                self._note_arguments(events.files[-1], events.arguments)
                return events
        return None

    def _read_configs(self, places: Places, card: ModelCard | None) -> None:
        """Configuration files at the top of the folder, then the one inside an axolotl model card."""
        configs, problems = find_config_files(self.folder, places.entries)
        self.problems += problems
        for config in configs:
            self.artefacts.add(config.name)
            self._add_config(config)
        if card is not None and card.axolotl is not None:
            self._add_config(ConfigFile(self.card_file, "axolotl", card.axolotl, add_axolotl_settings))

    def _add_config(self, config: ConfigFile) -> None:
        known = self.evidence.config_trainer
        if known is not None and known != config.trainer:
            why = f"is a configuration of {config.trainer} beside one of {known}"
            self.problems.append(RunProblem(config.name, why, "not_read"))
            return
        if known is None:
            self.evidence = replace(self.evidence, config_trainer=config.trainer, config_file=config.name)
        config.add_settings(self.builder, config.name, config.values)

    def _read_wandb(self, places: Places) -> WandbRun | None:
        if "wandb" not in places.entries:
            return None
        run = self._try("wandb", partial(read_wandb_folder, self.folder / "wandb"), note=False)
        if run is None:
            return None
        self.artefacts.update(inside("wandb", file) for file in run.files)
        self.builder.add(inside("wandb", run.files[0]), run.config)
        self._note_arguments(inside("wandb", run.files[0]), run.config)
        for package, version in run.versions.items():
            found = FoundVersion(version, inside("wandb", run.versions_file), installed=True)
            self.versions.setdefault(package, found)
        return run

    def _note_arguments(self, file: str, arguments: Mapping[str, object]) -> None:
        """Arguments that were logged as text tell the trainer too, when there is no training_args.bin."""
        if arguments and not self.evidence.args_fields:
            self.evidence = replace(self.evidence, args_file=file, args_fields=arguments)

    def _add_card_settings(self, card: ModelCard | None) -> None:
        if card is None:
            return
        self.builder.add(self.card_file, card.hyperparameters, CARD_NAMES)
        if card.base_model:
            self.builder.add_one(self.card_file, "base_model", "base_model", card.base_model)

    def _read_logs(
        self, places: Places, events: EventLog | None, wandb: WandbRun | None
    ) -> LogHistory | None:
        """The log that got furthest; of equals the first in this order.

        The log around a checkpoint is left out: it goes on after the checkpoint was saved.
        """
        in_checkpoint = any(place.name == "." and place.step is not None for place in places.all)
        states = [place for place in places.all if not (place.around and in_checkpoint)]
        readers: list[tuple[str, Callable[[], LogHistory], str]] = []
        for place in states:
            path = place.path / "trainer_state.json"
            if path.exists():
                name = inside(place.name, "trainer_state.json")
                readers.append((name, partial(read_trainer_state, path, name), "transformers"))
        if TRAINER_LOG in places.entries:
            path = self.folder / TRAINER_LOG
            readers.append((TRAINER_LOG, partial(read_trainer_log, path, TRAINER_LOG), "llama_factory"))
        for path in sorted([*self.folder.glob(LOG_GLOB), *self.folder.glob(f"logs/{LOG_GLOB}")]):
            name = os.path.relpath(path, self.folder).replace(os.sep, "/")
            readers.append((name, partial(read_torchtune_log, path, name), "torchtune"))
        logs: list[LogHistory] = []
        for name, read, trainer in readers:
            history = self._try(name, read)
            if history is None:
                continue
            logs.append(history)
            if trainer != "transformers":  # whose state every wrapper writes too
                self.evidence = replace(self.evidence, log_trainer=trainer, log_file=name)
        logs += [found.history for found in (events, wandb) if found and found.history]
        return max(logs, key=lambda log: (log.global_step or 0, len(log.train)), default=None)

    def _read_template(self, places: Places) -> tuple[str | None, str | None]:
        for place in places.all:
            name = inside(place.name, "chat template")
            found = self._try(name, partial(read_chat_template, place.path), note=False)
            if found is not None:
                file = inside(place.name, found[1])
                self.artefacts.add(file)
                return found[0], file
        return None, None
