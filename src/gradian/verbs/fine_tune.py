"""The fine-tune under investigation: base, adapter and run, resolved once and loaded only when something must
be computed."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradian.errors import ConfigError
from gradian.model.adapter import AdapterFolder, not_attributed, read_adapter
from gradian.model.places import BaseFolder, find_base
from gradian.rows.profile import ASSUMED_PROFILE, TrainerProfile
from gradian.rows.tokenizer import Tokenizer, load_tokenizer
from gradian.run.folder import Run, read_run
from gradian.run.tokenizer_files import has_tokenizer
from gradian.verbs.listener import Listener, Silent

if TYPE_CHECKING:
    from gradian.model.loaded import LoadedModel


class FineTune:
    """Where everything is; `loaded` brings the weights into memory at its first use.

    Args:
        settings: any settings with the keys of `ModelSettings` and `RowSettings`.

    Raises:
        GradianError: on use, whatever is missing or does not fit, with the way out.
    """

    def __init__(self, settings: Any, listener: Listener | None = None) -> None:
        self.settings = settings
        self.listener = listener or Silent()

    @cached_property
    def run(self) -> Run | None:
        """The run folder, when one was named."""
        return read_run(self.settings.run, self.settings.trainer) if self.settings.run else None

    @cached_property
    def profile(self) -> TrainerProfile:
        """How the trainer turned rows into tokens."""
        if self.run is not None:
            return self.run.profile
        if self.settings.trainer:
            from gradian.run.profile import parse_trainer_override, profile_for

            return profile_for(*parse_trainer_override(self.settings.trainer))
        return ASSUMED_PROFILE

    @cached_property
    def adapter(self) -> AdapterFolder:
        """The adapter: the one named, else the run's."""
        place = self.settings.adapter or self.settings.run
        if place is None:
            raise ConfigError(
                "--adapter is missing", fix="pass --adapter FOLDER, or --run FOLDER that holds one"
            )
        return read_adapter(place)

    @property
    def adapter_parts_not_attributed(self) -> tuple[str, ...]:
        """What was trained but has no LoRA block, with its share of the trained parameters."""
        return not_attributed(self.adapter)

    @cached_property
    def base(self) -> BaseFolder:
        """The base model's folder."""
        if self.settings.base_model is None:
            named = self.adapter.config.get("base_model_name_or_path")
            raise ConfigError(
                "--base-model is missing",
                why="the adapter changes a base model, which must be loaded with it",
                fix=f"the adapter names {named}: --base-model {named}"
                if named
                else "pass --base-model FOLDER-OR-HUB-ID",
            )
        return find_base(
            self.settings.base_model,
            self.settings.revision,
            trust_remote_code=self.settings.trust_remote_code,
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The one saved with the adapter, else the run's, else the base's; said when it is not the base's.

        The folder above the adapter counts only where a trainer's output has that form: `adapter`, `checkpoint-500`.
        """
        folder = self.adapter.path
        places = [folder]
        if self.run is not None and self.run.tokenizer_folder is not None:
            places.append(self.run.tokenizer_folder)
        if folder.name == "adapter" or folder.name.startswith("checkpoint-"):
            places.append(folder.parent)
        for place in places:
            if has_tokenizer(place):
                self.listener.say(f"tokenizer: {place}, saved with the fine-tune")
                return load_tokenizer(str(place))
        return load_tokenizer(str(self.base.path))

    @cached_property
    def loaded(self) -> LoadedModel:
        """Base and adapter in memory."""
        from gradian.model.loaded import load

        self.listener.say(f"loading {self.base.name} with {self.adapter.path}")
        model = load(
            self.base,
            self.adapter,
            self.tokenizer,
            dtype=self.settings.dtype,
            device=self.settings.device,
            trust_remote_code=self.settings.trust_remote_code,
        )
        self.listener.say(f"device {model.device}, weights in {str(model.dtype).removeprefix('torch.')}")
        return model

    @cached_property
    def compute(self) -> tuple[str, str]:
        """Device and dtype that are used, without loading weights: (`cpu`, `float32`)."""
        from gradian.model.loaded import choose_device, choose_dtype

        device = choose_device(self.settings.device)
        dtype = choose_dtype(self.settings.dtype, device, self.base.path)
        return str(device), str(dtype).removeprefix("torch.")

    @cached_property
    def base_sha256(self) -> str:
        """Digest of the base's weights and config."""
        from gradian.index.identity import weights_sha256

        return weights_sha256(self.base.path)

    @cached_property
    def adapter_sha256(self) -> str:
        """Digest of the adapter's weights and config."""
        from gradian.index.identity import weights_sha256

        return weights_sha256(self.adapter.path)

    @property
    def arms_id(self) -> str:
        """What both arms' answers depend on: weights, tokeniser, dtype, libraries."""
        from gradian.index.identity import computing_versions

        data = [
            self.base_sha256,
            self.adapter_sha256,
            self.tokenizer.sha256,
            *self.compute,
            computing_versions(),
        ]
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def state(self) -> Path:
        """The folder of indexes and evaluations."""
        return Path(self.settings.index_dir)
