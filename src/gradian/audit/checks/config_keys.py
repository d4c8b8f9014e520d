"""Settings that the trainer does not know, or does not obey any more."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.run.profile import DISPLAY_NAMES
from gradian.run.trl_profile import MAX_LENGTH_ADDED, MAX_SEQ_LENGTH_REMOVED, parse_version

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext

#: What people write from another trainer's habit -> what this trainer calls it.
FOREIGN_NAMES: Mapping[str, Mapping[str, str]] = {
    "axolotl": {
        "cutoff_len": "sequence_len", "epochs": "num_epochs", "lora_rank": "lora_r", "lr": "learning_rate",
        "max_seq_len": "sequence_len", "max_seq_length": "sequence_len", "num_train_epochs": "num_epochs",
        "packing": "sample_packing", "per_device_train_batch_size": "micro_batch_size",
        "target_modules": "lora_target_modules",
    },
    "llama_factory": {
        "epochs": "num_train_epochs", "lora_r": "lora_rank", "lora_target_modules": "lora_target",
        "lr": "learning_rate", "max_length": "cutoff_len", "max_seq_length": "cutoff_len",
        "micro_batch_size": "per_device_train_batch_size", "num_epochs": "num_train_epochs",
        "sequence_len": "cutoff_len", "target_modules": "lora_target",
    },
    "trl": {
        "cutoff_len": "max_length", "epochs": "num_train_epochs", "lora_rank": "lora_r",
        "lora_target": "lora_target_modules", "lr": "learning_rate", "max_seq_len": "max_length",
        "micro_batch_size": "per_device_train_batch_size", "num_epochs": "num_train_epochs",
        "sequence_len": "max_length", "target_modules": "lora_target_modules",
    },
}  # fmt: skip


@check(
    "config.unused_length_key",
    title="A length limit under a name that this version ignores",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    explain="""
TRL called the limit `max_seq_length` up to 0.15, `max_length` since 0.16, and dropped the old name in 0.20.
A value under
the other name has no effect: rows are cut at the default of 1,024 tokens, and nothing says so.

**Fix.** The value under the name that the detected version obeys.

Source: unslothai/unsloth#2904; TRL `SFTConfig` at 0.15, 0.16 and 0.20.
""",
)
def unused_length_key(context: AuditContext) -> Iterator[Observation]:
    run, profile = context.run, context.profile
    assert run is not None
    if profile.trainer not in ("trl", "unsloth"):
        raise NotApplicableError("a trainer with one name for it")
    version = parse_version(profile.version)
    if profile.trainer == "unsloth":
        obeyed, ignored = "max_length", "max_seq_length"
    elif version is not None and version < MAX_LENGTH_ADDED:
        obeyed, ignored = "max_seq_length", "max_length"
    elif version is None or version >= MAX_SEQ_LENGTH_REMOVED:
        obeyed, ignored = "max_length", "max_seq_length"
    else:
        return  # 0.16 to 0.19 obey both
    meant, effective = run.settings.integer(ignored), profile.max_length
    if meant is None or meant <= 0 or meant == effective:
        return
    setting = run.settings.setting(ignored)
    stated = run.settings.setting(obeyed)
    yield Observation(
        title=(
            f"{ignored} {meant:,} has no effect in {DISPLAY_NAMES[profile.trainer]}"
            f"{' ' + profile.version if profile.version else ''}; the limit is "
            f"{'none' if effective is None else f'{effective:,} tokens'}"
        ),
        values={ignored: meant, obeyed: effective, "version": profile.version},
        assumes=None if profile.version else "a recent TRL",
        fix=Fix.change(
            obeyed, effective, meant, text=f"{obeyed} {effective} -> {meant}",
            file=stated.file if stated is not None else setting.file if setting is not None else None,
        ),
    )  # fmt: skip


@check(
    "config.unknown_key",
    title="A setting that the trainer does not know",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    explain="""
A key of the configuration file is none of the trainer's, but close to one of them, or what another trainer
calls it.
axolotl ignores unknown keys without a word, so that the default holds; other trainers refuse to start.

**Reported** only when there is a likely meaning: a key that differs by two letters at most, or the name that
another trainer uses. Other unknown keys may belong to a plugin.

**Fix.** The key that was meant.
""",
)
def unknown_key(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    trainer = context.profile.trainer
    known = known_keys().get(trainer)
    if known is None:
        raise NotApplicableError("no table of keys for this trainer")
    config_files = (".yaml", ".yml", ".json", "README.md")
    for setting in run.settings:
        for seen in setting.seen:
            top_level = "." not in seen.key and "[" not in seen.key
            if (
                not seen.file.endswith(config_files)
                or seen.file.endswith("adapter_config.json")
                or not top_level
            ):
                continue
            if seen.file.startswith("wandb/") or (seen.file.endswith("README.md") and trainer != "axolotl"):
                continue
            if seen.key in known or (seen.file.endswith("README.md") and seen.key in CARD_BULLETS):
                continue
            meant = _meant(seen.key, trainer, known)
            if meant is None:
                continue
            yield Observation(
                title=f"{seen.key} is no setting of {DISPLAY_NAMES[trainer]}; {meant} is",
                values={"key": seen.key, "value": seen.value, "meant": meant},
                locations=(seen.file,),
                fix=Fix.change(
                    seen.key, seen.value, seen.value, text=f"{seen.key} -> {meant}", file=seen.file
                ),
            )


#: Bullets of transformers' card, which stand beside axolotl's block in the same file.
CARD_BULLETS = frozenset(
    {"train_batch_size", "distributed_type", "num_devices", "total_train_batch_size", "total_eval_batch_size",
     "lr_scheduler_type", "lr_scheduler_warmup_steps", "lr_scheduler_warmup_ratio", "training_steps",
     "mixed_precision_training", "label_smoothing_factor"}
)  # fmt: skip


@cache
def known_keys() -> Mapping[str, frozenset[str]]:
    """trainer -> the keys of its configuration (see `source` in the data file)."""
    text = resources.files("gradian.audit").joinpath("data/known_keys.json").read_text("utf-8")
    return {trainer: frozenset(keys) for trainer, keys in json.loads(text)["keys"].items()}


def _meant(key: str, trainer: str, known: frozenset[str]) -> str | None:
    foreign = FOREIGN_NAMES.get(trainer, {}).get(key)
    if foreign is not None:
        return foreign
    near = difflib.get_close_matches(key, sorted(known), n=3, cutoff=0.75)
    return next((name for name in near if edit_distance(key, name) <= 2 and len(key) > 4), None)


def edit_distance(left: str, right: str) -> int:
    """Levenshtein distance: insertions, deletions and substitutions of single letters."""
    previous = list(range(len(right) + 1))
    for row, letter in enumerate(left, 1):
        current = [row]
        for column, other in enumerate(right, 1):
            current.append(
                min(previous[column] + 1, current[-1] + 1, previous[column - 1] + (letter != other))
            )
        previous = current
    return previous[-1]
