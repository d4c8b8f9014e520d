"""Packing: several rows in one sequence, and whether they can see one another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.change import change, key_of
from gradian.audit.facts import SHAPES
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.rows.row import Shape
from gradian.run.trl_profile import parse_version

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext

COMPLETION_LOSS_WITH_PACKING = (0, 20, 0)  # huggingface/trl#3749


@check(
    "config.packing_cross_contamination",
    title="Packed rows see one another",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    explain="""
Packing puts several rows into one sequence. Unless the attention keeps them apart, an answer is learnt with
the unrelated rows before it in view, and at inference those are missing.

**Kept apart** by TRL >= 0.19 with `bfd` or `ffd` *and* flash attention, by LLaMA-Factory's `neat_packing`,
by axolotl with an attention backend that takes sequence boundaries, by torchtune. **Not** by `wrapped`
packing, older TRL, plain LLaMA-Factory packing, or without flash attention.

**Severity.** Warning; info when all rows are plain text, which is how models are pretrained.

**Fix.** No packing, or the strategy and attention that isolate rows.

Sources: huggingface/trl#805, #1230 and #3526, unslothai/unsloth#126.
""",
)
def packing_cross_contamination(context: AuditContext) -> Iterator[Observation]:
    run, profile = context.run, context.profile
    assert run is not None
    if profile.packing is None:
        raise NotApplicableError("rows are not packed")
    if profile.packing_isolates_rows:
        return
    facts = context.dataset
    plain, per_block = False, None
    if facts is not None:
        shapes = {SHAPES[code] for code in np.unique(facts.shape[facts.readable]).tolist()}
        plain = bool(shapes) and shapes <= {Shape.TEXT, Shape.RAW}
        if facts.tokens is not None and profile.max_length:
            known = facts.tokens.full[facts.tokens.known]
            per_block = float(profile.max_length / known.mean()) if len(known) else None
    unknown = next((text for text in profile.assumed if "attention" in text), None)
    blocks = f", about {per_block:.1f} rows to a sequence" if per_block else ""
    key = key_of(run.settings, "packing", profile.trainer)
    yield Observation(
        title=f"{profile.packing} packing without isolation{blocks}",
        severity=Severity.INFO if plain else Severity.WARNING,
        message="Answers are learnt with unrelated rows in view.",
        values={"packing": profile.packing, "rows_per_sequence": per_block, "plain_text": plain},
        assumes=unknown,
        fix=Fix.change(
            key, True, False, text=f"{key} true -> false{_isolating(profile.trainer, profile.version)}",
            file=setting.file if (setting := run.settings.setting("packing")) is not None else None,
        ),
    )  # fmt: skip


def _isolating(trainer: str, version: str | None) -> str:
    """The other way out: the setting that keeps packed rows apart."""
    if trainer == "llama_factory":
        return ", or neat_packing true"
    if trainer == "axolotl":
        return ", or attn_implementation flash_attention_2"
    if trainer in ("trl", "unknown"):
        parsed = parse_version(version)
        upgrade = "TRL >= 0.19 with " if parsed is not None and parsed < (0, 19, 0) else ""
        return f", or {upgrade}packing_strategy bfd and attn_implementation flash_attention_2"
    return ""


@check(
    "config.packing_with_completion_loss",
    title="Packing loses the completion mask",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    explain="""
Before 0.20 TRL could not carry the completion mask through packing: `completion_only_loss` has no effect
there, and the loss covers the prompts too.

**Fix.** No packing, or TRL >= 0.20.

Source: huggingface/trl#3749.
""",
)
def packing_with_completion_loss(context: AuditContext) -> Iterator[Observation]:
    run, profile = context.run, context.profile
    assert run is not None
    version = parse_version(profile.version)
    if profile.trainer != "trl" or version is None or version >= COMPLETION_LOSS_WITH_PACKING:
        raise NotApplicableError("a trainer that packs masks")
    if profile.packing is None or run.settings.flag("completion_only_loss") is not True:
        return
    yield Observation(
        title=f"completion_only_loss has no effect with packing in TRL {profile.version}",
        values={"packing": profile.packing, "completion_only_loss": True, "trl": profile.version},
        fix=change(run.settings, "packing", False, note="or TRL >= 0.20"),
    )
