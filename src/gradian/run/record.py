"""What is known of a run once its folder was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gradian.rows.profile import TrainerProfile
from gradian.run.adapter import AdapterFile, Checkpoint
from gradian.run.artefact import RunProblem
from gradian.run.log_history import LogHistory
from gradian.run.model_card import ModelCard
from gradian.run.profile import FoundVersion
from gradian.run.settings import RunSettings


@dataclass(frozen=True)
class Run:
    """A run folder.

    Attributes:
        path: the folder.
        profile: what the trainer did to rows.
        settings: every setting that some file states.
        logs: the log of the whole run; None when none was found.
        adapter: the final adapter (the folder's own, else `adapter/` or the like, else the last
            checkpoint's).
        checkpoints: saved steps, ascending.
        versions: package -> version and the file that states it.
        card: the model card; None without one.
        tokenizer_folder: the folder that holds the run's tokenizer; None without one.
        chat_template: the run's chat template, and chat_template_file where it was read.
        full_weights: names of full model weights in the folder itself (a merged model).
        args_class: class of the pickled training arguments; "" without one.
        artefacts: the files that were read, relative to the folder, sorted.
        problems: what could not be read and why.
    """

    path: Path
    profile: TrainerProfile
    settings: RunSettings
    logs: LogHistory | None = None
    adapter: AdapterFile | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    versions: Mapping[str, FoundVersion] = field(default_factory=dict)
    card: ModelCard | None = None
    tokenizer_folder: Path | None = None
    chat_template: str | None = None
    chat_template_file: str | None = None
    full_weights: tuple[str, ...] = ()
    args_class: str = ""
    artefacts: tuple[str, ...] = ()
    problems: tuple[RunProblem, ...] = ()

    @property
    def base_model(self) -> str | None:
        """The base model that the run names; None when no file does."""
        return self.settings.text("base_model")
