"""The shape of the adapter: scale, targets, rank, dropout."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradian.audit.change import change
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.token_sets import new_tokens
from gradian.audit.training_plan import lora_scale, training_plan, trains_adapter
from gradian.audit.wording import plural
from gradian.run.adapter import LORA_KEY

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.run.folder import Run

#: Names of attention projections across model families.
ATTENTION = frozenset(
    {
        "q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "out_proj",
        "wq", "wk", "wv", "wo", "output_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj",
        "query", "key", "value",
    }
)  # fmt: skip
#: Names of input embeddings and output heads across model families.
EMBEDDINGS = frozenset({"embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings", "embedding"})
HEADS = frozenset({"lm_head", "embed_out", "output"})
#: Initialisations that put the adapter somewhere other than "A random, B zero", with a scale of their own.
CONVERTED_INIT = re.compile(r"pissa|olora|corda|orthogonal|lora_ga|eva|mica", re.IGNORECASE)


def _adapter_run(context: AuditContext) -> Run:
    assert context.run is not None
    if not trains_adapter(context.run):
        raise NotApplicableError("no adapter is trained")
    return context.run


def target_names(run: Run) -> tuple[str, ...] | None:
    """The last parts of the adapted modules' names: from the weights when they can be read, else as stated.

    None when neither says (a regular expression, `all-linear`).
    """
    if run.adapter is not None and run.adapter.tensors:
        matches = [LORA_KEY.match(tensor.name) for tensor in run.adapter.tensors]
        names = {match["module"].rsplit(".", 1)[-1] for match in matches if match}
        return tuple(sorted(names)) or None
    stated = run.settings.strings("target_modules")
    if (
        stated is None
        or any(not re.fullmatch(r"[\w.]+", name) for name in stated)
        or stated == ("all-linear",)
    ):
        return None
    return tuple(sorted({name.rsplit(".", 1)[-1] for name in stated}))


@check(
    "config.lora_scale_high",
    title="LoRA scale too high",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    thresholds={"warning": 8, "error": 64},
    explain="""
The update is `scale * B A` with scale = alpha / r (alpha / sqrt(r) with rank-stabilised LoRA, arXiv
2312.03732). A large scale multiplies the learning rate of the whole update; alpha left at 128 when r was
lowered, or rsLoRA switched on with an alpha made for alpha / r, does it by accident.

**Severity.** Warning above a scale of `warning`, error above `error`.

**Fix.** alpha = 2 r, or 2 sqrt(r) with rank-stabilised LoRA.

**Not reported** for adapters initialised from or converted from PiSSA, OLoRA and the like (PEFT doubles r and
alpha when it converts).
""",
)
def lora_scale_high(context: AuditContext) -> Iterator[Observation]:
    run = _adapter_run(context)
    settings = run.settings
    if CONVERTED_INIT.search(str(settings.get("init_lora_weights") or "")):
        raise NotApplicableError("an initialisation with a scale of its own")
    scale, rank = _largest_scale(run), settings.number("lora_r")
    warning = context.threshold("config.lora_scale_high.warning")
    if scale is None or rank is None or scale <= warning:
        return
    stabilised = settings.flag("use_rslora") is True
    new = max(1, round(2 * math.sqrt(rank) if stabilised else 2 * rank))
    error = scale > context.threshold("config.lora_scale_high.error")
    formula = "alpha / sqrt(r)" if stabilised else "alpha / r"
    yield Observation(
        title=f"The adapter is scaled by {scale:g} ({formula})",
        severity=Severity.ERROR if error else Severity.WARNING,
        values={
            "scale": scale, "lora_r": rank, "lora_alpha": settings.number("lora_alpha"),
            "use_rslora": stabilised, "threshold": warning,
        },
        fix=change(settings, "lora_alpha", new, trainer=run.profile.trainer),
    )  # fmt: skip


def _largest_scale(run: Run) -> float | None:
    """The scale, or the largest of those that rank and alpha patterns give to single modules."""
    settings = run.settings
    base, rank, alpha = lora_scale(settings), settings.number("lora_r"), settings.number("lora_alpha")
    if base is None or rank is None or alpha is None:
        return None
    ranks, alphas = settings.get("rank_pattern") or {}, settings.get("alpha_pattern") or {}
    if not isinstance(ranks, dict) or not isinstance(alphas, dict):
        return base
    scales = [base] if not alphas else []
    for name in {*ranks, *alphas}:
        own_rank, own_alpha = ranks.get(name, rank), alphas.get(name, alpha)
        if isinstance(own_rank, (int, float)) and isinstance(own_alpha, (int, float)) and own_rank > 0:
            scales.append(own_alpha / (math.sqrt(own_rank) if settings.flag("use_rslora") else own_rank))
    return max(scales, default=base)


@check(
    "config.lora_scale_low",
    title="LoRA scale low",
    severity=Severity.INFO,
    needs=(Need.SETTINGS,),
    thresholds={"scale": 0.25, "rank": 128},
    explain="""
With a small scale (alpha / r) the update needs a higher learning rate to amount to the same.

**Reported** below `scale` with a rank below `rank`. High ranks with a small scale are published recipes (TRL:
r=256, alpha=16), and alpha = r, a scale of 1, is PEFT's default; neither is reported.

**Fix.** alpha = 2 r.
""",
)
def lora_scale_low(context: AuditContext) -> Iterator[Observation]:
    run = _adapter_run(context)
    scale, rank = lora_scale(run.settings), run.settings.number("lora_r")
    limit = context.threshold("config.lora_scale_low.scale")
    if (
        scale is None
        or rank is None
        or scale >= limit
        or rank >= context.threshold("config.lora_scale_low.rank")
    ):
        return
    yield Observation(
        title=f"The adapter is scaled by {scale:.2g} only",
        values={
            "scale": scale,
            "lora_r": rank,
            "lora_alpha": run.settings.number("lora_alpha"),
            "threshold": limit,
        },
        fix=change(run.settings, "lora_alpha", max(1, round(2 * rank)), trainer=run.profile.trainer),
    )


@check(
    "config.attention_only",
    title="Only attention is adapted",
    severity=Severity.INFO,
    needs=(Need.SETTINGS,),
    thresholds={"rows": 10_000},
    explain="""
Most of what a model knows sits in its MLP layers. An adapter on the attention projections alone learns less,
also at the same number of parameters; `q_proj, v_proj`, PEFT's default for many models, least of all.

**Severity.** Info; warning when the loss hardly fell or there are more than `rows` rows to learn.

**Fix.** `target_modules "all-linear"`.

Source: "LoRA Without Regret", as the TRL documentation reports it.
""",
)
def attention_only(context: AuditContext) -> Iterator[Observation]:
    run = _adapter_run(context)
    names = target_names(run)
    if not names or not set(names) <= ATTENTION or run.settings.get("target_parameters"):
        return
    plan = training_plan(context)
    rows = plan.rows
    many = rows is not None and rows > context.threshold("config.attention_only.rows")
    stalled = _stalled(run)
    severe = many or stalled
    why = "the loss hardly fell" if stalled else f"there are {plural(rows or 0, 'row')}" if many else ""
    yield Observation(
        title=f"Only attention is adapted ({', '.join(names)})",
        severity=Severity.WARNING if severe else Severity.INFO,
        message=f"It is a warning because {why}." if severe else "",
        values={"target_modules": list(names), "rows": rows},
        fix=change(run.settings, "target_modules", "all-linear", trainer=run.profile.trainer),
    )


def _stalled(run: Run) -> bool:
    from gradian.audit.curve import Curve

    curve = Curve.of(run.logs.series("loss")) if run.logs is not None else None
    return curve is not None and len(curve) >= 20 and curve.head > 0.5 and curve.change > -0.03


@check(
    "config.rank_capacity",
    title="More to learn than the adapter can hold",
    severity=Severity.INFO,
    needs=(Need.TOKENS, Need.ADAPTER),
    thresholds={"tokens_per_parameter": 10},
    explain="""
A rule of thumb: a trained token carries about one bit to be learnt, and a parameter holds about two. With
many more trained tokens than parameters the rank may be what limits the run.

**Reported** above `tokens_per_parameter` trained tokens per adapter parameter.

**Fix.** The power of two that brings the ratio below that, at most 256.

Source: "LoRA Without Regret" (capacity estimate). A heuristic, hence info.
""",
)
def rank_capacity(context: AuditContext) -> Iterator[Observation]:
    run = _adapter_run(context)
    facts, rank = context.dataset, run.settings.integer("lora_r")
    assert facts is not None
    assert facts.tokens is not None
    assert run.adapter is not None
    parameters = sum(tensor.size for tensor in run.adapter.tensors)
    trained = int(facts.tokens.kept_loss[facts.tokens.known].sum())
    limit = context.threshold("config.rank_capacity.tokens_per_parameter")
    if parameters == 0 or not rank or trained <= limit * parameters:
        return
    new = min(256, 1 << math.ceil(math.log2(rank * trained / (limit * parameters))))
    if new <= rank:
        return
    yield Observation(
        title=f"{trained:,} trained tokens for {parameters:,} adapter parameters",
        values={"trained_tokens": trained, "parameters": parameters, "threshold": limit, "lora_r": rank},
        fix=change(run.settings, "lora_r", new, trainer=run.profile.trainer),
    )


@check(
    "config.dropout_high",
    title="High LoRA dropout",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS,),
    thresholds={"warning": 0.2, "info": 0.1},
    explain="""
Dropout before A hides that share of the input from the adapter at every step. Above 0.2 it slows learning
more than it regularises; most recipes use 0 to 0.05. PEFT cannot apply it to parameters that are adapted
directly (`target_parameters`): there it must be 0.

**Severity.** Error with `target_parameters`; warning above `warning`; info above `info`.

**Fix.** 0.05, or 0 with `target_parameters`.

Source: PEFT `LoraConfig.target_parameters`; axolotl's validation of `lora_target_parameters`.
""",
)
def dropout_high(context: AuditContext) -> Iterator[Observation]:
    run = _adapter_run(context)
    dropout = run.settings.number("lora_dropout")
    if not dropout or dropout <= 0:
        return
    direct = bool(run.settings.get("target_parameters"))
    warning = context.threshold("config.dropout_high.warning")
    if not direct and dropout <= context.threshold("config.dropout_high.info"):
        return
    high = dropout > warning
    yield Observation(
        title=f"lora_dropout {dropout:g}" + (" with target_parameters, which allow none" if direct else ""),
        severity=Severity.ERROR if direct else Severity.WARNING if high else Severity.INFO,
        values={"lora_dropout": dropout, "threshold": warning, "target_parameters": direct},
        fix=change(run.settings, "lora_dropout", 0.0 if direct else 0.05, trainer=run.profile.trainer),
    )


@check(
    "config.embeddings_targeted",
    title="Embeddings are trained without new tokens",
    severity=Severity.INFO,
    needs=(Need.SETTINGS,),
    explain="""
`embed_tokens` or `lm_head` among the trained modules makes the adapter several times as large (a row for
every token of the vocabulary) and moves tokens that the rows never show. It is needed when tokens were
added, and they were not. With tied weights, training one of the two leaves the other behind unless
`ensure_weight_tying` is set (PEFT 0.18).

**Reported** only when the run's tokenizer and the base model's are both known and have the same tokens.

**Fix.** The list without them.

Source: unslothai/unsloth#1093; PEFT documentation, troubleshooting.
""",
)
def embeddings_targeted(context: AuditContext) -> Iterator[Observation]:
    run = _adapter_run(context)
    if context.run_tokenizer is None or context.base_tokenizer is None:
        raise NotApplicableError("the tokenizers of the run and of the base model are not both known")
    if new_tokens(context) != {}:
        return
    settings = run.settings
    for name in ("modules_to_save", "target_modules"):
        stated = settings.strings(name) or ()
        found = [module for module in stated if module.rsplit(".", 1)[-1] in EMBEDDINGS | HEADS]
        if not found:
            continue
        rest = [module for module in stated if module not in found]
        fix: Fix = change(settings, name, rest or None, trainer=run.profile.trainer)
        yield Observation(
            title=f"{', '.join(found)} in {name}, but no token was added",
            values={name: list(stated), "embeddings": found},
            fix=fix,
        )


@check(
    "config.neftune_strong",
    title="Strong embedding noise",
    severity=Severity.INFO,
    needs=(Need.SETTINGS,),
    aliases=("config.neftune",),
    thresholds={"limit": 15},
    explain="""
NEFTune adds noise to the embeddings during training. The paper uses alpha 5, 10 and 15; above that the noise
drowns short inputs.

**Fix.** 5.

Source: NEFTune, arXiv 2310.05914.
""",
)
def neftune_strong(context: AuditContext) -> Iterator[Observation]:
    run = context.run
    assert run is not None
    alpha = run.settings.number("neftune_noise_alpha")
    limit = context.threshold("config.neftune_strong.limit")
    if alpha is None or alpha <= limit:
        return
    yield Observation(
        title=f"neftune_noise_alpha {alpha:g} is beyond what was tried in the paper",
        values={"neftune_noise_alpha": alpha, "limit": limit},
        fix=change(run.settings, "neftune_noise_alpha", 5, trainer=run.profile.trainer),
    )
