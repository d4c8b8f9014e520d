"""How a trainer, of one version with one configuration, turns rows into tokens.

`run` builds a profile from a run folder; `rows.tokens` follows it; the audit reads it. One object, so that
the audit and the gradients can never disagree about what was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Overflow = Literal[
    "keep",  # no limit
    "truncate_end",  # the end of the row is cut off (TRL `keep_start`, tokenizer truncation)
    "truncate_start",  # the start is cut off (TRL `keep_end`)
    "truncate_end_keep_eos",  # cut, then the last token replaced by EOS (torchtune)
    "truncate_proportional",  # prompt and answer cut in proportion, turn by turn (LLaMA-Factory)
    "drop",  # the whole row is left out (axolotl)
    "split",  # packing that carries the overflow into the next block; nothing is lost
]
EndOfText = Literal[
    "none",  # plain text is tokenised as it stands
    "append_text",  # EOS text appended to plain-text rows that do not end with it (TRL >= 0.17)
    "append_id",  # EOS id appended to every row whose last id differs, chat rows too (TRL 0.16)
    "append_if_room",  # EOS added unless the length limit was hit (axolotl alpaca)
]
LossOn = Literal[
    "everything",  # every token
    "completion",  # the completion where the row splits prompt from completion, else every token
    "assistant",  # assistant turns
]


@dataclass(frozen=True, slots=True)
class TrainerProfile:
    """What a trainer does to rows before the model sees them.

    Attributes:
        trainer: `trl`, `transformers`, `unsloth`, `axolotl`, `llama_factory`, `torchtune` or `unknown`.
        version: the trainer's version as found, else None.
        reason: why Gradian thinks so, in one clause that is printed.
        max_length: the length limit in tokens; None for no limit.
        overflow: what happens to a longer row.
        end_of_text: who writes the end-of-sequence token.
        loss_on: which tokens are targets.
        assistant_mask: how assistant turns are found: by the template's `{% generation %}` blocks, or by
            the difference between prefixes of the conversation.
        train_on_turn_end: the end-of-turn token after a trained turn is a target too.
        drops_fully_masked: rows without any target are left out (TRL >= 1.9).
        pad_masks_eos: the collator hides every token whose id is the pad id, so EOS is lost when pad is EOS.
        removes_double_bos: a second BOS is removed.
        chat_adds_special_tokens: rendered chat rows are tokenised with the tokenizer's own special tokens
            on top of the template's (older TRL, text pipelines): a template that writes BOS gets two.
        normalizes_messages: null message keys are dropped and `reasoning_content` is filled from its older
            names before rendering (`apply_chat_template` of transformers >= 5.24).
        role_order: what happens to a conversation whose roles do not alternate.
        packing: the packing strategy, None without packing.
        packing_isolates_rows: rows in a pack cannot attend to one another.
        shuffles: rows are visited in random order.
        eos_token: EOS text that the trainer was told to use instead of the tokenizer's.
        assumed: the settings that no artefact states, `key = value`, for the report.
    """

    trainer: str
    version: str | None = None
    reason: str = ""
    max_length: int | None = None
    overflow: Overflow = "keep"
    end_of_text: EndOfText = "append_text"
    loss_on: LossOn = "assistant"
    assistant_mask: Literal["markers", "prefix"] = "prefix"
    train_on_turn_end: bool = True
    drops_fully_masked: bool = False
    pad_masks_eos: bool = False
    removes_double_bos: bool = False
    chat_adds_special_tokens: bool = False
    normalizes_messages: bool = False
    role_order: Literal["accept", "skip", "raise"] = "accept"
    packing: str | None = None
    packing_isolates_rows: bool = False
    shuffles: bool = True
    eos_token: str | None = None
    assumed: tuple[str, ...] = ()


#: What is used without a run folder: nothing is cut and the answers are learnt.
ASSUMED_PROFILE = TrainerProfile(
    trainer="unknown",
    reason="no run folder was given",
    assumed=("loss on the assistant turns only", "no length limit"),
)
