"""One headline per cause: a finding that only follows from another one is attached to it.

A consequence is still in the list of findings, for programs; people read it as a line under its cause.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradian.audit.finding import Finding

#: cause -> what follows from it, in the order in which a finding with several possible causes takes its
#: headline: rows without a target explain a zero loss better than an optimiser setting does.
CONSEQUENCES: dict[str, tuple[str, ...]] = {
    "template.missing": ("template.render_error", "data.no_trainable_tokens"),
    "template.no_generation_markers": (
        "data.no_trainable_tokens",
        "template.loss_on_prompt",
        "template.stop_token_not_trained",
        "logs.loss_zero",
        "adapter.zero_b",
        "config.steps_too_few",
        "config.warmup_exceeds_run",
    ),
    "template.response_marker_missing": ("data.no_trainable_tokens", "logs.loss_zero", "adapter.zero_b"),
    "data.no_trainable_tokens": (
        "logs.loss_zero",
        "logs.grad_norm_zero",
        "logs.not_learning",
        "adapter.zero_b",
        "adapter.tiny_update",
        "data.low_trainable_ratio",
        "config.steps_too_few",
        "config.warmup_exceeds_run",
    ),
    "logs.loss_nan": ("logs.loss_zero", "logs.loss_nan_hidden", "logs.grad_norm_nan", "adapter.nan"),
    "logs.loss_nan_hidden": ("logs.loss_zero", "logs.grad_norm_nan", "adapter.nan", "logs.not_learning"),
    "logs.loss_zero": ("logs.grad_norm_zero", "logs.not_learning", "adapter.zero_b", "adapter.tiny_update"),
    "logs.lr_constant_zero": (
        "logs.not_learning",
        "logs.grad_norm_tiny",
        "adapter.zero_b",
        "adapter.tiny_update",
    ),
    "adapter.no_tensors": ("adapter.zero_b", "adapter.targets_unmatched", "adapter.rank_mismatch"),
    "adapter.zero_b": ("adapter.tiny_update",),
    "adapter.targets_unmatched": ("config.attention_only",),
    "config.warmup_exceeds_run": (
        "logs.lr_constant_zero",
        "logs.not_learning",
        "adapter.tiny_update",
        "logs.grad_norm_tiny",
        "logs.lr_mismatch",
    ),
    "config.lr_full_finetune": ("logs.not_learning", "adapter.tiny_update", "logs.grad_norm_tiny"),
    "config.lr_too_high": (
        "logs.loss_diverged",
        "logs.loss_spike",
        "logs.grad_norm_spike",
        "adapter.exploded",
    ),
    "run.base_model_mismatch": (
        "run.chat_template_mismatch",
        "run.tokenizer_mismatch",
        "adapter.new_tokens_untrained",
        "adapter.lm_head_not_saved",
    ),
    "config.max_steps_override": ("logs.run_incomplete", "config.steps_too_few", "data.tiny_for_schedule"),
    "data.truncated_completion": ("config.unused_length_key", "token.over_model_context"),
    "data.duplicate_rows": ("data.tiny_for_schedule",),
    "data.role_order": (
        "data.last_turn_not_assistant",
        "template.render_error",
        "template.generation_prompt_mismatch",
        "run.rows_mismatch",
    ),
    "data.rows_dropped_too_long": ("run.rows_mismatch",),
    "data.sorted_by_group": ("config.no_shuffle",),
    "data.unknown_role": ("data.role_order", "template.render_error"),
    "data.json_unparseable": ("data.format_inconsistent",),
    "data.unfinished_completion": ("data.format_inconsistent", "token.missing_eos"),
    "template.content_dropped": ("template.generation_prompt_mismatch",),
    "token.prompt_boundary_mismatch": ("data.trailing_whitespace", "template.generation_prompt_mismatch"),
    "data.special_tokens_in_text": ("token.pad_in_content",),
    "eval.contamination_exact": ("eval.contamination_near", "logs.eval_below_train"),
    "template.stop_token_not_trained": ("token.missing_eos",),
    "token.eos_not_turn_end": ("token.missing_eos",),
    "logs.epoch_step_drop": ("logs.memorised",),
    "logs.loss_spike": ("logs.grad_norm_spike",),
    "logs.overfitting": ("run.last_not_best", "run.best_not_saved"),
    "data.empty_completion": ("data.no_trainable_tokens",),
}

#: A consequence that is about rows only follows from a cause that covers all of them; the others stand alone.
SAME_ROWS = frozenset(
    {
        "data.format_inconsistent",
        "data.last_turn_not_assistant",
        "data.no_trainable_tokens",
        "data.role_order",
        "eval.contamination_near",
        "template.generation_prompt_mismatch",
        "template.render_error",
        "token.missing_eos",
        "token.pad_in_content",
    }
)


#: A few rows without a target do not bring the loss to zero or leave the adapter empty: these causes only
#: explain what happens to the whole run when they cover most rows.
OF_MOST_ROWS = frozenset({"data.no_trainable_tokens", "template.response_marker_missing"})
MOST = 0.5


def attach_consequences(findings: Sequence[Finding]) -> list[Finding]:
    """Name in each finding what it follows from, and in each cause what follows from it.

    A chain ends at its first cause: when the rows have no target, the loss is zero and B stays zero, both
    follow from the rows. The order of the findings is kept.
    """
    by_id: dict[str, Finding] = {}
    for finding in findings:
        by_id.setdefault(finding.id, finding)
    cause_of: dict[str, str] = {}
    for cause, consequences in CONSEQUENCES.items():
        if cause not in by_id:
            continue
        for consequence in consequences:
            if (
                consequence in by_id
                and consequence not in cause_of
                and _follows(by_id[consequence], by_id[cause])
            ):
                cause_of[consequence] = cause
    first = {consequence: _root(consequence, cause_of) for consequence in cause_of}
    attached = []
    for finding in findings:
        consequences = tuple(sorted(id for id, cause in first.items() if cause == finding.id))
        attached.append(
            finding.model_copy(
                update={"consequences": consequences, "follows_from": first.get(finding.id)},
            )
        )
    return attached


def _follows(consequence: Finding, cause: Finding) -> bool:
    if consequence.id in SAME_ROWS and cause.rows:
        return bool(consequence.rows) and set(consequence.rows) <= set(cause.rows)
    if cause.id in OF_MOST_ROWS and not consequence.id.startswith("data."):
        return cause.count >= MOST * cause.of
    return True


def _root(id: str, cause_of: dict[str, str]) -> str:
    seen = {id}
    while id in cause_of and cause_of[id] not in seen:
        id = cause_of[id]
        seen.add(id)
    return id
