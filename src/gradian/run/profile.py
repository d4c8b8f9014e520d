"""Which trainer, of which version, wrote a run, and what that trainer does to rows.

A wrapper is looked for before what it wraps: unsloth, axolotl and LLaMA-Factory runs also look like TRL or
transformers runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gradian.errors import ConfigError
from gradian.rows.profile import TrainerProfile
from gradian.run.settings import RunSettings
from gradian.run.trainer_profiles import (
    axolotl_profile,
    llama_factory_profile,
    torchtune_profile,
    transformers_profile,
    unsloth_profile,
)
from gradian.run.trl_profile import Version, oldest_version, parse_version, trl_profile, version_before

TRAINERS = ("trl", "transformers", "unsloth", "axolotl", "llama_factory", "torchtune")
SPELLINGS: Mapping[str, str] = {
    "trl": "trl", "sfttrainer": "trl", "transformers": "transformers", "hf": "transformers", "trainer":
    "transformers", "unsloth": "unsloth", "axolotl": "axolotl", "llama_factory": "llama_factory",
    "llamafactory": "llama_factory", "torchtune": "torchtune",
}  # fmt: skip
DISPLAY_NAMES: Mapping[str, str] = {
    "trl": "TRL", "transformers": "transformers Trainer", "unsloth": "unsloth", "axolotl": "axolotl",
    "llama_factory": "LLaMA-Factory", "torchtune": "torchtune", "unknown": "unknown trainer",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """A version and the file that states it, relative to the run folder.

    `installed` is True when the file lists what was installed, which is not yet what was used.
    """

    version: str
    file: str
    installed: bool = False


@dataclass(frozen=True)
class Evidence:
    """What the readers found that tells trainers apart. Each value is the file that shows it.

    Attributes:
        versions: `trl`, `transformers`, ... -> version and file.
        tags: the model card's tags, and tags_file.
        args_class: class of training_args.bin; "" for arguments that were logged as text. args_file holds
            them and args_fields are the fields that it holds.
        config_trainer: the trainer whose configuration file is in the folder, and config_file.
        log_trainer: the trainer whose log is in the folder, and log_file.
        peft_version, adapter_file: the adapter's PEFT version; unsloth_adapter: it carries unsloth's mark.
    """

    versions: Mapping[str, FoundVersion] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    tags_file: str = ""
    args_class: str = ""
    args_file: str = ""
    args_fields: Mapping[str, object] = field(default_factory=dict)
    config_trainer: str | None = None
    config_file: str = ""
    log_trainer: str | None = None
    log_file: str = ""
    unsloth_adapter: str = ""


#: `apply_chat_template` drops null message keys from this release of transformers on.
MESSAGES_NORMALIZED = (5, 24, 0)
#: Arguments that SFTConfig has and transformers' TrainingArguments have not.
SFT_FIELDS = frozenset({"dataset_text_field", "packing"})


@dataclass(frozen=True, slots=True)
class _Detected:
    trainer: str
    version: str | None
    reason: str


def parse_trainer_override(text: str) -> tuple[str, str | None]:
    """`trl==0.16.0`, `trl`, `llama-factory` -> trainer and version. Raises ConfigError."""
    name, separator, version = text.strip().partition("==")
    trainer = SPELLINGS.get(re.sub(r"[\s-]+", "_", name.strip().lower()))
    if trainer is None:
        raise ConfigError(
            f"no trainer is called {name.strip()!r}",
            where="--trainer",
            fix="use one of " + ", ".join(TRAINERS) + ", with a version as in trl==0.16.0",
        )
    if separator and parse_version(version.strip()) is None:
        raise ConfigError(
            f"{version.strip()!r} is not a version", where="--trainer", fix="write it as in trl==0.16.0"
        )
    return trainer, version.strip() or None


def profile_for(
    trainer: str, version: str | None = None, settings: RunSettings | None = None
) -> TrainerProfile:
    """What `trainer` at `version` does to rows with these settings; `unknown` behaves as the latest TRL.

    The profile's `reason` is that the user says so; `detect_profile` puts the evidence in its place.

    Args:
        trainer: one of TRAINERS, or `unknown`.
        version: its version; None for the latest that Gradian knows.
        settings: what the run's files state; None without a run.
    """
    settings = settings or RunSettings()
    reason = f"{_title(trainer, version)}, as --trainer says"
    others = {
        "unsloth": unsloth_profile,
        "axolotl": axolotl_profile,
        "llama_factory": llama_factory_profile,
        "torchtune": torchtune_profile,
        "transformers": transformers_profile,
    }
    if trainer in others:
        return replace(others[trainer](settings), version=version, reason=reason)
    assert trainer in ("trl", "unknown"), f"{trainer} has no profile"
    profile = trl_profile(parse_version(version), settings)
    assumed = profile.assumed
    if trainer == "unknown":
        assumed = ("the trainer behaves as the latest TRL", *assumed)
    elif version is None:
        assumed = ("TRL is recent (no file states its version)", *assumed)
    return replace(profile, trainer=trainer, version=version, assumed=assumed, reason=reason)


def detect_profile(
    evidence: Evidence, settings: RunSettings, override: tuple[str, str | None] | None = None
) -> TrainerProfile:
    """The profile of a run.

    Args:
        override: trainer and version that the user states; they win over every artefact.
    """
    if override is not None:
        trainer, version = override
        if version is None:  # the user names the trainer only, so the files may still state the version
            stated = _detect(evidence)
            version = stated.version if stated.trainer == trainer else None
        return _with_library(profile_for(trainer, version, settings), evidence)
    found = _detect(evidence)
    profile = replace(profile_for(found.trainer, found.version, settings), reason=found.reason)
    return _with_library(profile, evidence)


def _with_library(profile: TrainerProfile, evidence: Evidence) -> TrainerProfile:
    """What the version of transformers decides: how messages are prepared for the template."""
    found = evidence.versions.get("transformers")
    version = parse_version(found.version) if found else None
    return replace(profile, normalizes_messages=version is not None and version >= MESSAGES_NORMALIZED)


def _detect(evidence: Evidence) -> _Detected:
    return (
        _detect_wrapper(evidence)
        or _detect_trl(evidence)
        or _detect_by_files(evidence)
        or _Detected("unknown", None, "no file of the run names its trainer, so the latest TRL is assumed")
    )


def _detect_wrapper(evidence: Evidence) -> _Detected | None:
    """unsloth, axolotl and LLaMA-Factory by the class of their arguments, their tags or their own config."""
    classes = (("unsloth", "unsloth"), ("axolotl", "axolotl"), ("llamafactory", "llama_factory"),
               ("llmtuner", "llama_factory"))  # fmt: skip
    for start, trainer in classes:
        if evidence.args_class.lower().startswith(start):
            name = evidence.args_class.rsplit(".", 1)[-1]
            return _found(evidence, trainer, f"{evidence.args_file} holds its {name}")
    if evidence.config_trainer in ("axolotl", "llama_factory", "torchtune"):
        return _found(evidence, evidence.config_trainer, f"{evidence.config_file} is its configuration")
    for tag, trainer in (("unsloth", "unsloth"), ("axolotl", "axolotl"), ("llama-factory", "llama_factory")):
        if tag in evidence.tags:
            return _found(evidence, trainer, f"{evidence.tags_file} is tagged {tag}")
    if evidence.unsloth_adapter:
        return _found(evidence, "unsloth", f"{evidence.unsloth_adapter} carries its mark")
    return None


def _detect_trl(evidence: Evidence) -> _Detected | None:
    stated = evidence.versions.get("trl")
    sft_arguments = evidence.args_class.startswith("trl.") or evidence.args_fields.keys() >= SFT_FIELDS
    if stated is not None and (sft_arguments or not stated.installed):
        return _Detected("trl", stated.version, f"TRL {stated.version}, read from {stated.file}")
    if sft_arguments:
        lower, upper = oldest_version(evidence.args_fields), version_before(evidence.args_fields)
        if lower is None:
            version = (
                None if upper is None else "0.15.0" if "max_seq_length" in evidence.args_fields else None
            )
            return _Detected("trl", version, f"TRL before 0.16, by the fields of {evidence.args_file}")
        # The newest known fields say nothing of later releases: the latest behaviour is taken.
        version = _text(lower) if upper is not None and lower < upper else None
        return _Detected(
            "trl", version, f"TRL {_text(lower)} or later, by the fields of {evidence.args_file}"
        )
    if evidence.config_trainer == "trl":
        return _Detected("trl", None, f"TRL, since {evidence.config_file} is its configuration")
    return None


def _detect_by_files(evidence: Evidence) -> _Detected | None:
    if evidence.args_class.startswith("transformers."):
        return _found(evidence, "transformers", f"{evidence.args_file} holds transformers' TrainingArguments")
    if "trl" in evidence.tags or "sft" in evidence.tags:
        return _Detected("trl", None, f"TRL, since {evidence.tags_file} is tagged so")
    if evidence.log_trainer is not None and evidence.log_trainer != "transformers":
        return _found(evidence, evidence.log_trainer, f"{evidence.log_file} is its log")
    if "generated_from_trainer" in evidence.tags:
        return _found(evidence, "transformers", f"{evidence.tags_file} is tagged generated_from_trainer")
    return None


def _found(evidence: Evidence, trainer: str, why: str) -> _Detected:
    stated = evidence.versions.get(trainer)
    version = stated.version if stated is not None else None
    return _Detected(trainer, version, f"{_title(trainer, version)}: {why}")


def _title(trainer: str, version: str | None) -> str:
    return f"{DISPLAY_NAMES[trainer]} {version}" if version else DISPLAY_NAMES[trainer]


def _text(version: Version) -> str:
    return ".".join(str(part) for part in version)
