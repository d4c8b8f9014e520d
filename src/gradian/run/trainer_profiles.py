"""What trainers other than TRL do to rows: unsloth, axolotl, LLaMA-Factory, torchtune, plain transformers.

Sources: unsloth_zoo `dataset_utils.py`; axolotl `prompt_tokenizers.py`, `prompt_strategies/chat_template.py`,
`utils/data`; LLaMA-Factory `data/processor`, `data/converter.py`, `hparams`; torchtune `data/_utils.py`,
`data/_messages.py`; transformers `trainer.py`.
"""

from __future__ import annotations

from gradian.rows.profile import LossOn, Overflow, TrainerProfile
from gradian.run.settings import RunSettings, first_present
from gradian.run.trl_profile import attention_implementation, shuffles

UNSLOTH_DEFAULT_LENGTH = 1024
AXOLOTL_DEFAULT_LENGTH = 512
LLAMA_FACTORY_DEFAULT_LENGTH = 2048

#: axolotl dataset types whose rows the tokenizer cuts, so that the length filter never sees a long one.
AXOLOTL_CHAT_TYPES = ("chat_template", "sharegpt")
#: torchtune dataset builders that learn the prompt unless told otherwise (torchtune/datasets/_alpaca.py).
TORCHTUNE_TRAINS_ON_INPUT = ("alpaca_dataset", "alpaca_cleaned_dataset")


def unsloth_profile(settings: RunSettings) -> TrainerProfile:
    """unsloth wraps TRL: the text column is tokenised as it stands, without an EOS."""
    assumed = ["loss on the whole row (train_on_responses_only leaves no trace in a run folder)"]
    setting = first_present(settings, ("max_length", "max_seq_length"))  # unsloth_zoo asks in this order
    max_length = settings.integer(setting.name) if setting else None
    if max_length is None:
        max_length = UNSLOTH_DEFAULT_LENGTH
        assumed.append(f"max_seq_length = {max_length} (unsloth's default when the model has none)")
    packing = (settings.text("packing_strategy") or "bfd") if settings.flag("packing") else None
    return TrainerProfile(
        trainer="unsloth",
        max_length=max_length,
        overflow="truncate_end",
        end_of_text="none",
        loss_on="assistant" if settings.flag("assistant_only_loss") else "everything",
        assistant_mask="markers",
        removes_double_bos=True,
        packing=packing,
        packing_isolates_rows=packing in ("bfd", "ffd"),  # unsloth brings its own varlen attention
        shuffles=shuffles(settings),
        eos_token=settings.text("eos_token"),
        assumed=tuple(assumed),
    )


def axolotl_profile(settings: RunSettings) -> TrainerProfile:
    """axolotl drops rows that are too long, except those that the tokenizer has cut already (alpaca and
    kin).
    """
    assumed: list[str] = []
    max_length = settings.integer("max_length")
    if max_length is None:
        max_length = AXOLOTL_DEFAULT_LENGTH
        assumed.append(f"sequence_len = {max_length} (axolotl's default)")
    dataset_type = settings.text("dataset_type")
    if dataset_type is None:
        dataset_type = "chat_template"
        assumed.append("dataset type = chat_template (no file states it)")
    chat = dataset_type.split(".")[0] in AXOLOTL_CHAT_TYPES
    strategy = settings.text("excess_length_strategy") or "drop"
    overflow: Overflow = "truncate_end" if not chat or strategy == "truncate" else "drop"
    loss_on: LossOn = "assistant" if chat else "everything" if dataset_type == "completion" else "completion"
    if settings.flag("train_on_inputs"):
        loss_on = "everything"
    packing = "sample_packing" if settings.flag("packing") else None
    isolates = packing is not None and _axolotl_isolates(settings)
    if packing and not isolates:
        assumed.append("no attention backend that separates packed rows (no file states one)")
    return TrainerProfile(
        trainer="axolotl",
        max_length=max_length,
        overflow=overflow,
        end_of_text="append_if_room",
        loss_on=loss_on,
        assistant_mask="prefix",
        train_on_turn_end=settings.text("train_on_eos") not in ("none",),
        drops_fully_masked=True,
        removes_double_bos=True,
        packing=packing,
        packing_isolates_rows=isolates,
        shuffles=settings.text("curriculum_sampling") is None,
        assumed=tuple(assumed),
    )


def _axolotl_isolates(settings: RunSettings) -> bool:
    flags = ("flash_attention", "flex_attention", "sdp_attention", "xformers_attention", "eager_attention")
    return any(settings.flag(name) for name in flags) or attention_implementation(settings) is not None


def llama_factory_profile(settings: RunSettings) -> TrainerProfile:
    """LLaMA-Factory cuts prompt and answer in proportion and skips rows whose roles do not alternate."""
    assumed: list[str] = []
    max_length = settings.integer("max_length")
    if max_length is None:
        max_length = LLAMA_FACTORY_DEFAULT_LENGTH
        assumed.append(f"cutoff_len = {max_length} (LLaMA-Factory's default)")
    neat = settings.flag("neat_packing") is True
    packing = "neat_packing" if neat else "packing" if settings.flag("packing") else None
    if settings.flag("mask_history"):
        assumed.append("mask_history: only the last answer of a conversation is learnt; all are counted here")
    pretraining = settings.text("stage") == "pt"
    return TrainerProfile(
        trainer="llama_factory",
        max_length=max_length,
        overflow="split" if pretraining else "drop" if packing else "truncate_proportional",
        end_of_text="append_text",
        loss_on="everything" if pretraining or settings.flag("train_on_inputs") else "assistant",
        assistant_mask="prefix",
        role_order="skip",
        packing=packing,
        packing_isolates_rows=neat,
        shuffles=settings.flag("disable_shuffling") is not True,
        assumed=tuple(assumed),
    )


def torchtune_profile(settings: RunSettings) -> TrainerProfile:
    """torchtune cuts on the right and puts EOS in the last place; a wrong role order stops the run."""
    assumed: list[str] = []
    max_length = settings.integer("max_length")
    builder = (settings.text("dataset_type") or "").rsplit(".", 1)[-1]
    trains_on_input = settings.flag("train_on_inputs")
    if trains_on_input is None:
        trains_on_input = builder.startswith(TORCHTUNE_TRAINS_ON_INPUT)
        assumed.append(
            f"train_on_input = {str(trains_on_input).lower()} ({builder or 'the dataset'}'s default)"
        )
    packing = "packed" if settings.flag("packing") else None
    return TrainerProfile(
        trainer="torchtune",
        max_length=max_length,
        overflow="keep" if max_length is None else "truncate_end_keep_eos",
        end_of_text="append_text",
        loss_on="everything" if trains_on_input or builder == "text_completion_dataset" else "assistant",
        assistant_mask="prefix",
        role_order="raise",
        packing=packing,
        packing_isolates_rows=packing is not None,
        shuffles=settings.flag("shuffle") is not False,
        assumed=tuple(assumed),
    )


def transformers_profile(settings: RunSettings) -> TrainerProfile:
    """transformers' own Trainer: the user's code tokenises, so nothing but the collator is known."""
    return TrainerProfile(
        trainer="transformers",
        overflow="keep",
        end_of_text="none",
        loss_on="everything",
        pad_masks_eos=True,
        shuffles=shuffles(settings),
        assumed=(
            "rows tokenised as they stand, without a length limit (user code decides)",
            "collator = DataCollatorForLanguageModeling",
        ),
    )
