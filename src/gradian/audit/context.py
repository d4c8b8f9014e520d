"""What a check may look at: the rows, the run, the tokenizers and the base model's config, each read when
first needed.

It knows how to say why something is missing, so that a check that needs it is skipped with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gradian.audit.bundled import swaps_template
from gradian.audit.facts import DatasetFacts
from gradian.audit.registry import Need, RowScan
from gradian.errors import GradianError, ModelError
from gradian.rows.profile import ASSUMED_PROFILE, TrainerProfile

if TYPE_CHECKING:
    from gradian.rows.tokenizer import Tokenizer
    from gradian.run.folder import Run

Progress = Callable[[str, int], None]  # the file that is read, rows so far


@dataclass(frozen=True)
class AuditInputs:
    """What `gradian diagnose` was given.

    Attributes:
        dataset, eval_dataset: files or folders of rows.
        run: the run folder.
        base_model: a folder or the name of a model in the local cache.
        revision: its revision.
        trainer: `trl==0.16.0`: overrides what the run folder says.
        response_marker: text that comes right before an answer, for collators that find answers by it.
    """

    dataset: str | None = None
    run: str | None = None
    base_model: str | None = None
    eval_dataset: str | None = None
    revision: str | None = None
    trainer: str | None = None
    response_marker: str | None = None


@dataclass
class AuditContext:
    """The inputs of an audit, read lazily.

    Attributes:
        inputs: what the user gave.
        thresholds: every threshold of every check, overrides applied.
        scans: check id -> its row scan, for the checks that were selected.
        progress: told after every batch of rows.
        problems: what could not be read although it is there, for the report.
    """

    inputs: AuditInputs
    thresholds: Mapping[str, float] = field(default_factory=dict)
    scans: Mapping[str, RowScan] = field(default_factory=dict)
    progress: Progress | None = None
    problems: list[str] = field(default_factory=list)

    def preset(self, **known: Any) -> None:
        """Use values that are known already in place of reading them: names and values of the properties
        below."""
        for name, value in known.items():
            assert isinstance(getattr(type(self), name, None), cached_property), f"{name} is no lazy input"
            self.__dict__[name] = value

    # -- the run ---------------------------------------------------------------------------------------------

    @cached_property
    def run(self) -> Run | None:
        """The run folder; None when none was given."""
        if self.inputs.run is None:
            return None
        from gradian.run.folder import read_run

        return read_run(self.inputs.run, self.inputs.trainer)

    @cached_property
    def profile(self) -> TrainerProfile:
        """How the trainer turned rows into tokens."""
        profile = self._stated_profile()
        template = self.tokenizer.template if self.tokenizer is not None else None
        if template is None or profile.assistant_mask == "prefix" or template.has_generation_markers:
            return profile
        if not swaps_template(profile, template.source):
            return profile
        # The variant that is swapped in renders the same text; only where the answers lie must be found
        # otherwise.
        assumed = (*profile.assumed, "TRL's own training variant of the chat template")
        return replace(profile, assistant_mask="prefix", assumed=assumed)

    def _stated_profile(self) -> TrainerProfile:
        if self.run is not None:
            return self.run.profile
        if self.inputs.trainer is not None:
            from gradian.run.profile import parse_trainer_override, profile_for
            from gradian.run.settings import RunSettings

            return profile_for(*parse_trainer_override(self.inputs.trainer), RunSettings())
        return ASSUMED_PROFILE

    # -- the models' files -----------------------------------------------------------------------------------

    @cached_property
    def base_tokenizer(self) -> Tokenizer | None:
        """The base model's tokenizer; None when no base model was given or found.

        Raises:
            ModelError: a base model was given by the user and has no usable tokenizer.
        """
        if self.inputs.base_model is not None:
            return self._load(self.inputs.base_model, self.inputs.revision)
        named = self.base_model_name
        try:
            return self._load(named, None) if named else None
        except ModelError:
            return None  # only named by the run, not by the user: its checks are skipped, with the reason

    @cached_property
    def run_tokenizer(self) -> Tokenizer | None:
        """The tokenizer that was saved with the run; None when there is none."""
        folder = self.run.tokenizer_folder if self.run is not None else None
        if folder is None:
            return None
        try:
            return self._load(str(folder), None)
        except ModelError as error:
            self.problems.append(str(error))
            return None

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """What the rows were tokenised with: the run's own tokenizer and template, else the base model's."""
        chosen = self.run_tokenizer or self.base_tokenizer
        if chosen is None or chosen.template is not None:
            return chosen
        template = self.run.chat_template if self.run is not None else None
        if template is None and self.base_tokenizer is not None and self.base_tokenizer.template is not None:
            template = self.base_tokenizer.template.source
        return chosen.with_template(template) if template is not None else chosen

    @property
    def template_source(self) -> str:
        """Where the chat template comes from, in a few words."""
        if self.tokenizer is None or self.tokenizer.template is None:
            return "without a chat template"
        chosen = self.run_tokenizer or self.base_tokenizer
        if chosen is None or chosen.template is not None:
            return "with its own chat template"
        if self.run is not None and self.run.chat_template is not None:
            return f"with the run's chat template ({self.run.chat_template_file})"
        return "with the base model's chat template"

    @property
    def base_model_name(self) -> str | None:
        """`--base-model`, else what the run says."""
        if self.inputs.base_model is not None:
            return self.inputs.base_model
        return self.run.base_model if self.run is not None else None

    @cached_property
    def base_config(self) -> Mapping[str, Any] | None:
        """`config.json` of the base model, when its folder is known."""
        from gradian.rows.tokenizer_files import find_folder

        if self.base_model_name is None:
            return None
        try:
            folder = find_folder(self.base_model_name, self.inputs.revision)
            config = json.loads((folder / "config.json").read_text("utf-8"))
        except (GradianError, OSError, ValueError):
            return None  # the checks that need it are skipped, with the reason
        return config if isinstance(config, dict) else None

    @staticmethod
    def _load(name_or_path: str, revision: str | None) -> Tokenizer:
        from gradian.rows.tokenizer import load_tokenizer

        return load_tokenizer(name_or_path, revision=revision)

    # -- the rows --------------------------------------------------------------------------------------------

    @cached_property
    def dataset(self) -> DatasetFacts | None:
        """The training rows in columns; None when none were given."""
        return self._facts(self.inputs.dataset, "train", self.scans)

    @cached_property
    def eval(self) -> DatasetFacts | None:
        """The eval rows in columns; None when none were given."""
        return self._facts(self.inputs.eval_dataset, "eval", {})

    def _facts(self, path: str | None, split: str, scans: Mapping[str, RowScan]) -> DatasetFacts | None:
        if path is None:
            return None
        from gradian.audit.collect import collect
        from gradian.audit.source import FileSource

        return collect(
            FileSource(path, split),
            tokenizer=self.tokenizer,
            profile=self.profile,
            scans=scans,
            progress=self.progress,
        )

    # -- for the checks --------------------------------------------------------------------------------------

    def threshold(self, name: str) -> float:
        """The threshold `<check id>.<name>`, as the check declares it or as the user set it."""
        return self.thresholds[name]

    def missing(self, need: Need) -> str | None:
        """Why an input is not there; None when it is."""
        run = self.run
        reasons: dict[Need, Callable[[], str | None]] = {
            Need.ROWS: lambda: None if self.inputs.dataset else "no dataset",
            Need.EVAL_ROWS: lambda: None if self.inputs.eval_dataset else "no eval set",
            Need.TOKENS: lambda: self._no_tokens(self.inputs.dataset, "no dataset"),
            Need.EVAL_TOKENS: lambda: self._no_tokens(self.inputs.eval_dataset, "no eval set"),
            Need.TOKENIZER: lambda: None if self.tokenizer else "no tokenizer",
            Need.RUN_TOKENIZER: lambda: None if self.run_tokenizer else "no tokenizer in the run",
            Need.BASE_TOKENIZER: lambda: None if self.base_tokenizer else "no base model",
            Need.BASE_CONFIG: lambda: None if self.base_config is not None else "no config of the base model",
            Need.RUN: lambda: None if run else "no run",
            Need.SETTINGS: lambda: None if run and run.settings else "no settings",
            Need.LOGS: lambda: None if run and run.logs else "no training log",
            Need.ADAPTER: lambda: None if run and run.adapter else "no adapter",
            Need.CHECKPOINTS: lambda: None if run and run.checkpoints else "no checkpoints",
        }
        if run is None and need in (Need.SETTINGS, Need.LOGS, Need.ADAPTER, Need.CHECKPOINTS):
            return "no run"
        return reasons[need]()

    def _no_tokens(self, path: str | None, without: str) -> str | None:
        if path is None:
            return without
        return None if self.tokenizer else "no tokenizer"


def first_missing(context: AuditContext, needs: tuple[Need, ...]) -> str | None:
    """Why the first missing need is missing; None when nothing is."""
    return next((reason for need in needs if (reason := context.missing(need)) is not None), None)
