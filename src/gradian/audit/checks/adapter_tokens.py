"""Added tokens: whether the adapter trained and saved what makes them mean something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gradian.audit.change import change
from gradian.audit.checks.config_lora import EMBEDDINGS, HEADS
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.token_sets import new_tokens
from gradian.audit.wording import listed, plural

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run

SHOWN = 8


def _added(context: AuditContext) -> dict[int, str]:
    """Tokens that the run added to the base model's vocabulary, apart from one that only pads."""
    added = new_tokens(context)
    if added is None:
        raise NotApplicableError("the run has another vocabulary, not an extended one")
    assert context.run_tokenizer is not None
    pad = context.run_tokenizer.pad_token_id
    return {token_id: token for token_id, token in added.items() if token_id != pad}


@check(
    "adapter.new_tokens_untrained",
    title="Added tokens whose embeddings were not trained",
    severity=Severity.ERROR,
    needs=(Need.ADAPTER, Need.RUN_TOKENIZER, Need.BASE_TOKENIZER),
    explain="""
The run's tokenizer has tokens that the base model's has not. Their embedding rows start at random, and LoRA
on the linear layers
does not touch embeddings: the model reads noise where they stand and never learns to write them.

**Covered** by `trainable_token_indices` (PEFT 0.15), by `embed_tokens` in `modules_to_save` or among the
target modules.

**Severity.** Error when the new tokens occur in the training rows, else warning. A token that only serves as
padding is not reported.

**Fix.** `trainable_token_indices`, which trains just those rows; or `modules_to_save: [embed_tokens,
lm_head]`.

Sources: PEFT documentation, troubleshooting ("extending the vocabulary"), huggingface/peft#2589 and #2898;
axolotl refuses and LLaMA-Factory warns on the same.
""",
)
def new_tokens_untrained(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    added = _added(context)
    covered, _ = covered_tokens(run)
    open_tokens = {
        token_id: token
        for token_id, token in added.items()
        if covered is not None and token_id not in covered
    }
    if not open_tokens:
        return
    assert context.run_tokenizer is not None
    assert context.base_tokenizer is not None
    rows = _rows_with(context, set(open_tokens.values()))
    facts = context.dataset
    shown = listed([f"`{token}`" for token in list(open_tokens.values())[:SHOWN]])
    more = f" and {len(open_tokens) - SHOWN} more" if len(open_tokens) > SHOWN else ""
    name = _embedding_name(run)
    value = {name: list(open_tokens)}
    where = f" They occur in {len(rows)} of {plural(facts.rows, 'row')}." if facts is not None else ""
    yield Observation(
        title=(
            f"{plural(len(open_tokens), 'added token')} ({shown}{more}) without trained embeddings"
            + (f", in {len(rows)} of {plural(facts.rows, 'row')}" if facts is not None else "")
        ),
        severity=Severity.ERROR if rows else Severity.WARNING,
        message=(
            f"The run's tokenizer has {context.run_tokenizer.vocab_size:,} entries, the base model's "
            f"{context.base_tokenizer.vocab_size:,}.{where}"
        ),
        rows=rows,
        count=len(rows) if rows else len(open_tokens),
        of=facts.rows if rows and facts is not None else len(added),
        values={
            "tokens": {str(token_id): token for token_id, token in list(open_tokens.items())[:50]},
            "run_vocabulary": context.run_tokenizer.vocab_size,
            "base_vocabulary": context.base_tokenizer.vocab_size, "rows_with": len(rows),
        },
        fix=change(run.settings, "trainable_token_indices", value).model_copy(
            update={
                "text": f"trainable_token_indices: {{{name}: {_short(list(open_tokens))}}}, "
                f"or modules_to_save: [{name}, lm_head]"
            }
        ),
    )  # fmt: skip


def covered_tokens(run: Run) -> tuple[frozenset[int] | None, str]:
    """Ids whose input embedding is trained (None: all are) and by which setting."""
    settings = run.settings
    for name in ("modules_to_save", "target_modules"):
        stated = settings.strings(name) or ()
        if any(module.rsplit(".", 1)[-1] in EMBEDDINGS for module in stated):
            return None, name
    if run.adapter is not None and run.adapter.matrices("lora_embedding_A"):
        return None, "target_modules"
    return frozenset(_indices(settings.get("trainable_token_indices"))), "trainable_token_indices"


def _indices(stated: Any) -> set[int]:
    lists = stated.values() if isinstance(stated, Mapping) else [stated]
    return {item for ids in lists if isinstance(ids, list) for item in ids if isinstance(item, int)}


def _embedding_name(run: Run) -> str:
    stated = run.settings.get("trainable_token_indices")
    return next(iter(stated)) if isinstance(stated, Mapping) and stated else "embed_tokens"


def _rows_with(context: AuditContext, tokens: set[str]) -> list[int]:
    """Rows in whose text one of the tokens stands."""
    if context.dataset is None:
        return []
    return [
        row
        for row, prompt, answer in context.dataset.texts()
        if any(token in answer or token in prompt for token in tokens)
    ]


def _short(ids: list[int]) -> str:
    if len(ids) <= SHOWN:
        return str(ids)
    if ids == list(range(ids[0], ids[-1] + 1)):
        return f"[{ids[0]}, ..., {ids[-1]}]"
    return f"[{', '.join(map(str, ids[:SHOWN]))}, ...]"


@check(
    "adapter.lm_head_not_saved",
    title="The output side of added tokens was not trained",
    severity=Severity.WARNING,
    needs=(Need.ADAPTER, Need.RUN_TOKENIZER, Need.BASE_TOKENIZER, Need.BASE_CONFIG),
    explain="""
The model's input embeddings and its output head are separate matrices (`tie_word_embeddings: false`). The
rows of the added
tokens were trained on the input side only: the model can read them and has no trained way to write them.

**Reported** only when the answers contain such a token, or no rows are given.

**Fix.** `lm_head` among the saved or trained modules.

Sources: PEFT documentation, troubleshooting; TRL's SFTTrainer adds `lm_head` for this reason.
""",
)
def lm_head_not_saved(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    assert context.base_config is not None
    if context.base_config.get("tie_word_embeddings", True) is not False:
        raise NotApplicableError("input and output embeddings are tied")
    added = _added(context)
    covered, setting = covered_tokens(run)
    trained = set(added) if covered is None else set(added) & covered
    if not trained:
        return
    settings = run.settings
    stated = [*(settings.strings("modules_to_save") or ()), *(settings.strings("target_modules") or ())]
    indices = settings.get("trainable_token_indices")
    named = [*stated, *(indices if isinstance(indices, Mapping) else ())]
    if any(module.rsplit(".", 1)[-1] in HEADS for module in named):
        return
    tokens = {added[token_id] for token_id in trained}
    if context.dataset is not None and not any(
        token in answer for _, _, answer in context.dataset.texts() for token in tokens
    ):
        return
    fix: Fix = (
        Fix(text="trainable_token_indices: the same ids for lm_head", key="trainable_token_indices")
        if setting == "trainable_token_indices"
        else change(settings, setting, [*(settings.strings(setting) or ()), "lm_head"])
    )
    yield Observation(
        title=f"The input rows of {plural(len(trained), 'added token')} are trained, the lm_head rows are not",
        values={"tokens": sorted(tokens)[:50], "setting": setting, "tie_word_embeddings": False},
        fix=fix,
    )
