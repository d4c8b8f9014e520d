"""What TRL's SFTTrainer does to rows, by version.

Each rule names the version that brought it. Sources: `trl/trainer/sft_trainer.py` and `sft_config.py` at the
releases named (huggingface/trl).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from gradian.rows.profile import EndOfText, LossOn, Overflow, TrainerProfile
from gradian.run.settings import RunSettings

Version = tuple[int, int, int]

DEFAULT_MAX_LENGTH = 1024  # SFTConfig.max_length (max_seq_length before 0.16), every release
LATEST: Version = (999, 0, 0)

CHAT_AS_TEXT: Version = (
    0,
    15,
    0,
)  # until 0.17 chat rows are rendered to text, then tokenised with special tokens
MAX_LENGTH_ADDED: Version = (0, 16, 0)  # max_length added, max_seq_length deprecated: it still wins when set
PAD_BY_POSITION: Version = (0, 16, 1)  # #3200: own collator, labels masked by position instead of by pad id
EOS_ON_TEXT: Version = (0, 17, 0)  # EOS text appended to non-conversational rows only; completion_only_loss
ISOLATING_PACKING: Version = (0, 19, 0)  # #3526: packing_strategy "ffd", position ids; assistant_only_loss
MAX_SEQ_LENGTH_REMOVED: Version = (0, 20, 0)  # also: strategy "bfd" becomes the default
BFD_SPLITS: Version = (0, 27, 0)  # #4632: best-fit packing carries the overflow into other packs
BFD_TRUNCATES: Version = (0, 29, 0)  # #5076: truncates again; "bfd_split" is the one that splits
DROPS_FULLY_MASKED: Version = (1, 9, 0)  # #6320: rows left without a target by the cut are filtered out

#: Fields that date a pickled SFTConfig: field -> the first release whose SFTConfig holds it.
FIELD_ADDED: Mapping[str, Version] = {
    "max_length": MAX_LENGTH_ADDED,
    "pad_token": (0, 16, 1),
    "completion_only_loss": (0, 17, 0),
    "activation_offloading": (0, 18, 0),
    "assistant_only_loss": (0, 19, 0),
    "loss_type": (0, 23, 0),
    "shuffle_dataset": (0, 26, 0),
    "truncation_mode": (1, 0, 0),
    "trust_remote_code": (1, 7, 0),
}
#: The reverse: fields that a later release no longer holds. field -> the first release without it.
FIELD_REMOVED: Mapping[str, Version] = {
    "num_of_sequences": (0, 18, 0),
    "chars_per_token": (0, 18, 0),
    "max_seq_length": MAX_SEQ_LENGTH_REMOVED,
}

FLASH_ATTENTION = re.compile(r"flash_attention|flash_attn|kernels-community", re.IGNORECASE)


def parse_version(text: str | None) -> Version | None:
    """`0.16.0`, `1.17.0.dev0`, `v0.19` -> three numbers; None when it is no version."""
    match = re.match(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?", text or "")
    return (int(match[1]), int(match[2] or 0), int(match[3] or 0)) if match else None


def oldest_version(fields: Mapping[str, object]) -> Version | None:
    """The oldest release whose pickled SFTConfig could hold these fields; None when they do not say."""
    found = [version for name, version in FIELD_ADDED.items() if name in fields]
    return max(found) if found else None


def version_before(fields: Mapping[str, object]) -> Version | None:
    """The first release that could *not* have written a pickled SFTConfig with these fields; None if open."""
    found = [version for name, version in FIELD_REMOVED.items() if name in fields]
    missing = [version for name, version in FIELD_ADDED.items() if name not in fields]
    return min(found + missing) if found or missing else None


def trl_profile(version: Version | None, settings: RunSettings) -> TrainerProfile:
    """The profile of TRL at `version` (None: the latest) with these settings. `reason` is left empty."""
    at = version or LATEST
    assumed: list[str] = []
    packing = _packing(at, settings)
    loss_on = _loss_on(at, settings, assumed)
    max_length = _max_length(at, settings, assumed)
    isolates = False
    if packing in ("ffd", "bfd", "bfd_split") and at >= ISOLATING_PACKING:
        implementation = attention_implementation(settings)
        isolates = implementation is not None and bool(FLASH_ATTENTION.search(implementation))
        if implementation is None:
            assumed.append("attn_implementation is not flash attention (no file states it)")
    return TrainerProfile(
        trainer="trl",
        max_length=max_length,
        overflow=_overflow(at, packing, max_length, settings),
        end_of_text=_end_of_text(at, packing),
        loss_on=loss_on,
        assistant_mask="markers",
        train_on_turn_end=True,
        chat_adds_special_tokens=CHAT_AS_TEXT <= at < EOS_ON_TEXT,
        drops_fully_masked=at >= DROPS_FULLY_MASKED and packing is None,
        pad_masks_eos=at < PAD_BY_POSITION and packing is None,
        packing=packing,
        packing_isolates_rows=isolates,
        shuffles=shuffles(settings),
        eos_token=settings.text("eos_token"),
        assumed=tuple(assumed),
    )


def shuffles(settings: RunSettings) -> bool:
    """transformers' Trainer visits rows in random order unless it is told otherwise (5.x) or streams."""
    return settings.text("train_sampling_strategy") != "sequential" and settings.flag("streaming") is not True


def attention_implementation(settings: RunSettings) -> str | None:
    """The attention implementation that some file states; None when none does."""
    stated = settings.text("attn_implementation") or settings.text("flash_attn")
    kwargs = settings.get("model_init_kwargs")
    if stated is None and isinstance(kwargs, dict):
        value = kwargs.get("attn_implementation")
        stated = value if isinstance(value, str) else None
    return stated


def length_key(version: Version | None) -> Literal["max_length", "max_seq_length"]:
    """The length setting that this release obeys."""
    return "max_length" if (version or LATEST) >= MAX_LENGTH_ADDED else "max_seq_length"


def _max_length(at: Version, settings: RunSettings, assumed: list[str]) -> int | None:
    names = ["max_length"] if at >= MAX_LENGTH_ADDED else ["max_seq_length"]
    if MAX_LENGTH_ADDED <= at < MAX_SEQ_LENGTH_REMOVED and settings.integer("max_seq_length") is not None:
        names = ["max_seq_length"]  # deprecated, but when set it overrides max_length
    for name in names:
        if name not in settings:
            continue
        value = settings.integer(name)
        if value is not None:
            return value if value > 0 else None
        if at >= MAX_LENGTH_ADDED:
            return None  # stated as null: no limit
    assumed.append(f"{names[0]} = {DEFAULT_MAX_LENGTH} (TRL's default)")
    return DEFAULT_MAX_LENGTH


def _packing(at: Version, settings: RunSettings) -> str | None:
    if settings.flag("packing") is not True:
        return None
    if at < ISOLATING_PACKING:
        return "wrapped"  # rows are concatenated and cut into blocks
    return settings.text("packing_strategy") or ("bfd" if at >= MAX_SEQ_LENGTH_REMOVED else "ffd")


def _overflow(at: Version, packing: str | None, max_length: int | None, settings: RunSettings) -> Overflow:
    if max_length is None:
        return "keep"
    if packing in ("wrapped", "bfd_split") or (packing == "bfd" and BFD_SPLITS <= at < BFD_TRUNCATES):
        return "split"
    if settings.text("truncation_mode") == "keep_end" and packing is None:
        return "truncate_start"
    return "truncate_end"


def _end_of_text(at: Version, packing: str | None) -> EndOfText:
    if at >= EOS_ON_TEXT:
        return "append_text"
    if at >= MAX_LENGTH_ADDED:
        return "append_id"
    # ConstantLengthDataset puts EOS between the rows that it concatenates.
    return "append_id" if packing else "none"


def _loss_on(at: Version, settings: RunSettings, assumed: list[str]) -> LossOn:
    if at < EOS_ON_TEXT:
        if at < PAD_BY_POSITION:
            assumed.append("no completion-only collator (the run folder does not record it)")
        return "everything"
    if at >= ISOLATING_PACKING and settings.flag("assistant_only_loss") is True:
        return "assistant"
    if "assistant_only_loss" not in settings and at >= ISOLATING_PACKING:
        assumed.append("assistant_only_loss = false (TRL's default)")
    if settings.flag("completion_only_loss") is False:
        return "everything"
    return "completion"
