"""Can the chat template render the rows, and does the loss see what it should of them?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.bundled import swaps_template
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.wording import excerpt, percent, plural, some
from gradian.rows.row import Conversation, Shape, Turn
from gradian.rows.template import TemplateRenderError
from gradian.rows.tokens import tokenize

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext
    from gradian.rows.template import ChatTemplate


def chat_template(context: AuditContext) -> ChatTemplate:
    """The template that rendered the rows.

    Raises:
        NotApplicableError: there is none, or no row is rendered with one.
    """
    facts, tokenizer = context.dataset, context.tokenizer
    if tokenizer is None or tokenizer.template is None:
        raise NotApplicableError("no chat template")
    if facts is not None and not facts.templated.any():
        raise NotApplicableError("no row needs a chat template")
    return tokenizer.template


@check(
    "template.missing",
    title="Conversations and no chat template",
    severity=Severity.ERROR,
    needs=(Need.ROWS, Need.TOKENIZER),
    explain="""
The rows are conversations, and neither the run nor the base model's tokenizer has a chat template. Base
models often have none. Trainers stop, or fall back to a format that nobody chose.

**Fix.** Give the template that the model shall be used with: TRL `chat_template_path`, axolotl
`chat_template: chatml`, LLaMA-Factory `template:`.

Source: the axolotl FAQ.
""",
)
def missing(context: AuditContext) -> Iterator[Observation]:
    facts, tokenizer = context.dataset, context.tokenizer
    assert facts is not None
    assert tokenizer is not None
    if tokenizer.template is not None or not facts.templated.any():
        return
    rows = np.flatnonzero(facts.templated).tolist()
    key = {"axolotl": "chat_template", "llama_factory": "template"}.get(
        context.profile.trainer, "chat_template_path"
    )
    yield Observation(
        title=f"{len(rows):,} of {plural(facts.rows, 'row')} need a chat template and the tokenizer has none",
        message=f"Tokenizer: {tokenizer.name_or_path}.",
        rows=rows,
        fix=Fix(text=f"set {key} to the template that the model shall be used with", key=key),
    )


@check(
    "template.render_error",
    title="The chat template refuses rows",
    severity=Severity.ERROR,
    needs=(Need.TOKENS,),
    thresholds={"error_share": 0.10},
    row_level=True,
    explain="""
The chat template raises an error for these rows: it knows no system role, wants user and assistant to
alternate, or misses a key. A trainer stops there.

**Severity.** Error from 10 % of the rows on, else warning.

**Fix.** Change the rows as the template's message says, or use a template that takes them.
""",
)
def render_error(context: AuditContext) -> Iterator[Observation]:
    facts = context.dataset
    assert facts is not None
    chat_template(context)
    failures = facts.render_failures
    if not failures:
        return
    rows = sorted(row for failure in failures for row in failure.rows)
    share = len(rows) / facts.rows
    limit = context.threshold("template.render_error.error_share")
    reasons = [f"{excerpt(failure.message, 120)} ({some(failure.rows)})" for failure in failures[:3]]
    yield Observation(
        title=f"The chat template refuses {len(rows):,} of {plural(facts.rows, 'row')} ({some(rows)})",
        severity=Severity.ERROR if share >= limit else Severity.WARNING,
        message=f"{'; '.join(reasons)}.",
        rows=rows,
        values={
            "reasons": {failure.message: len(failure.rows) for failure in failures[:20]},
            "share": share,
            "error_share": limit,
        },
        fix=Fix(
            text=f"change or remove {plural(len(rows), 'row')} as the template's message says", safe=False
        ),
    )


@check(
    "template.no_generation_markers",
    title="Loss on answers only, and a template that marks none",
    severity=Severity.ERROR,
    needs=(Need.TOKENIZER,),
    explain="""
`assistant_only_loss` finds the answers by the `{% generation %}` blocks of the chat template, and this
template has none. Some stacks then train on nothing (a mask of zeros), some on everything (a mask of ones);
TRL raises at the first row.

**Severity.** Info for TRL 1.1 and later when it brings its own training variant of exactly this template and
swaps it in.

**Fix.** Use a training template with `{% generation %}...{% endgeneration %}` around what the assistant says,
or convert the rows to `prompt` and `completion`.

Sources: marin-community/marin#7237, NVIDIA-NeMo/Megatron-Bridge#3359, Liquid4All/liquid-finetune#37,
QwenLM/Qwen3#1522.
""",
)
def no_generation_markers(context: AuditContext) -> Iterator[Observation]:
    template = chat_template(context)
    profile = context.profile
    if profile.loss_on != "assistant" or template.has_generation_markers:
        return
    swapped = swaps_template(profile, template.source)
    if profile.assistant_mask != "markers" and not swapped:
        return
    rows = int(context.dataset.templated.sum()) if context.dataset is not None else 0
    yield Observation(
        title="assistant_only_loss is set and the chat template has no {% generation %} block",
        severity=Severity.INFO if swapped else Severity.ERROR,
        message=f"{profile.reason}; it swaps in its own training variant of this template."
        if swapped
        else "Without it no token of an answer is marked: nothing is learnt, or the trainer stops.",
        count=rows,
        of=context.dataset.rows if context.dataset is not None else 0,
        assumes=f"{profile.trainer} finds answers by the template's generation blocks",
        fix=None
        if swapped
        else Fix(
            text="use a training template with {% generation %} markers, or convert the rows to prompt + "
            "completion",
            key="chat_template_path",
        ),
    )


def _probe_conversation() -> Conversation:
    turns = (
        Turn("user", "First question"),
        Turn("assistant", "First answer"),
        Turn("user", "Second question"),
    )
    return Conversation(Shape.MESSAGES, (*turns, Turn("assistant", "Second answer")))


@check(
    "template.stop_token_not_trained",
    title="The end of an answer is not learnt",
    severity=Severity.ERROR,
    needs=(Need.TOKENIZER, Need.RUN),
    explain="""
With the loss on answers only, the token that ends an assistant turn is not among the targets: the model never
learns to stop. Usually the `{% generation %}` block of the template closes before the end-of-turn token.

**How.** A conversation of two exchanges is rendered and masked as the trainer does; the last target of the
first answer must be a stop token.

**Fix.** Move the end-of-turn token inside the block, or in axolotl set `train_on_eos: turn`.
""",
)
def stop_token_not_trained(context: AuditContext) -> Iterator[Observation]:
    template = chat_template(context)
    profile, tokenizer = context.profile, context.tokenizer
    assert tokenizer is not None
    if profile.loss_on != "assistant":
        raise NotApplicableError("the loss is not on assistant turns only")
    if profile.assistant_mask == "markers" and not template.has_generation_markers:
        raise NotApplicableError("the template has no generation markers")
    try:
        row = tokenize(_probe_conversation(), tokenizer, profile)
    except TemplateRenderError:
        raise NotApplicableError("the template refuses a plain conversation") from None
    targets = np.flatnonzero(row.loss_mask)
    if len(targets) == 0:
        return
    # The first run of targets is the first answer; what follows the second one may be cut by the template.
    gap = np.flatnonzero(np.diff(targets) > 1)
    answer = targets[: int(gap[0]) + 1] if len(gap) else targets
    written = [int(token) for token in row.ids[answer] if tokenizer.decode([int(token)]).strip()]
    if not written or written[-1] in tokenizer.stop_ids or written[-1] in tokenizer.added_tokens:
        return
    stop = tokenizer.added_tokens.get(tokenizer.turn_end_id) if tokenizer.turn_end_id is not None else None
    axolotl = profile.trainer == "axolotl"
    yield Observation(
        title=f"The token that ends an answer ({stop or 'none is written'}) is not learnt",
        message=f"The last target of an answer is {tokenizer.decode([written[-1]])!r}.",
        assumes=f"loss on assistant turns, found by {profile.assistant_mask}",
        fix=Fix.change("train_on_eos", "none", "turn")
        if axolotl
        else Fix(text=f"put {stop or 'an end-of-turn token'} inside the template's generation block"),
    )


#: Setting that turns the loss off for prompts, and its values before and after, by trainer.
_ANSWER_LOSS = {
    "axolotl": ("train_on_inputs", True, False),
    "llama_factory": ("train_on_prompt", True, False),
    "torchtune": ("dataset.train_on_input", True, False),
}


@check(
    "template.loss_on_prompt",
    title="The loss also covers the prompts",
    severity=Severity.INFO,
    needs=(Need.TOKENS, Need.RUN),
    thresholds={"warning_ratio": 4},
    explain="""
Every token of a conversation is a target, the user's words too: TRL's default for `messages` rows,
`train_on_inputs` and `train_on_prompt` elsewhere. That is a legitimate choice and often harmless; it is a
waste when prompts are much longer than answers.

**Severity.** Info; warning when the prompts are more than four times as long as the answers.

Sources: huggingface/trl#1507, the TRL documentation of `assistant_only_loss`.
""",
)
def loss_on_prompt(context: AuditContext) -> Iterator[Observation]:
    facts, profile = context.dataset, context.profile
    assert facts is not None
    assert facts.tokens is not None
    chats = facts.readable & (facts.turns > 0) & facts.tokens.known
    split = np.isin(facts.shape, [list(Shape).index(Shape.PROMPT_COMPLETION)])
    covered = chats if profile.loss_on == "everything" else chats & ~split & facts.templated
    if profile.loss_on == "assistant" or not covered.any():
        return
    if (
        profile.loss_on == "completion"
        and not (facts.shape[covered] == list(Shape).index(Shape.MESSAGES)).any()
    ):
        return
    answers = int(facts.assistant_chars[covered].sum())
    prompts = int((facts.prompt_chars + facts.answer_chars)[covered].sum()) - answers
    share = prompts / max(1, prompts + answers)
    ratio = context.threshold("template.loss_on_prompt.warning_ratio")
    if share <= 0.5:
        return
    key, old, new = _ANSWER_LOSS.get(profile.trainer, ("assistant_only_loss", False, True))
    if profile.trainer in ("trl", "unsloth") and split[covered].all():
        key, old, new = "completion_only_loss", False, True
    yield Observation(
        title=f"{percent(share)} of what is learnt are prompts ({plural(int(covered.sum()), 'row')})",
        severity=Severity.WARNING if prompts > ratio * answers else Severity.INFO,
        message=f"Prompts have {prompts:,} characters, answers {answers:,}.",
        count=int(covered.sum()),
        of=facts.rows,
        values={"prompt_characters": prompts, "answer_characters": answers, "warning_ratio": ratio},
        assumes=f"loss on {profile.loss_on}",
        fix=Fix.change(key, old, new),
    )


@check(
    "template.response_marker_missing",
    title="The response marker is not in the rows",
    severity=Severity.ERROR,
    needs=(Need.TOKENS,),
    row_level=True,
    explain="""
Collators that learn answers only by a marker (`DataCollatorForCompletionOnlyLM`, unsloth's
`train_on_responses_only`) search for its **token ids**. The ids of a text depend on what stands before it, so
that a marker which is in the text need not be in the ids; the row is then masked as a whole and nothing is
learnt from it.

Only checked when the marker is known: from `--response-marker`, or a `response_template` in the run's
configuration.

**Fix.** The evidence proposes a text that stands right before the answers in at least 99 % of the rows.

Sources: huggingface/transformers#27733, huggingface/trl#445.
""",
)
def response_marker_missing(context: AuditContext) -> Iterator[Observation]:
    facts, tokenizer = context.dataset, context.tokenizer
    assert facts is not None
    assert tokenizer is not None
    marker = context.inputs.response_marker
    if marker is None and context.run is not None:
        settings = context.run.settings
        marker = settings.text("response_template") or settings.text("response_part")
    if marker is None:
        raise NotApplicableError("no response marker known")
    # A marker at the start of a line has other ids than one on its own: collators are given either form.
    forms = {tuple(tokenizer.encode(marker, False))}
    newline = tokenizer.encode("\n", False)
    after_newline = tokenizer.encode("\n" + marker, False)
    if after_newline[: len(newline)] == newline:
        forms.add(tuple(after_newline[len(newline) :]))
    absent: list[int] = []
    before: dict[str, int] = {}
    checked = 0
    refused = {row for failure in facts.render_failures for row in failure.rows}
    for row, conversation in facts.conversations():
        if row in refused:
            continue
        ids = tokenize(conversation, tokenizer, context.profile).ids.tolist()
        checked += 1
        if not any(_contains(ids, form) for form in forms):
            absent.append(row)
        text = tokenizer.decode(ids)
        answer = conversation.answer_text.strip()[:40]
        if answer and answer in text:
            lead = text[: text.rindex(answer)][-24:]
            for size in range(4, len(lead) + 1, 4):
                before[lead[-size:]] = before.get(lead[-size:], 0) + 1
    if not absent:
        return
    common = [text for text, count in before.items() if count >= 0.99 * checked]
    proposal = max(common, key=lambda text: (len(text), text), default=None)
    yield Observation(
        title=f"The marker {excerpt(marker, 40)!r} is not in the token ids of {len(absent):,} of "
        f"{plural(checked, 'row')} ({some(absent)})",
        message="These rows are masked as a whole.",
        rows=absent,
        values={"marker": marker, "proposal": proposal},
        fix=Fix.change(
            "response_template", marker, proposal, text=f"response marker {marker!r} -> {proposal!r}"
        )
        if proposal
        else Fix(text="pass the marker's token ids, taken from a tokenised row"),
    )


def _contains(ids: list[int], form: tuple[int, ...]) -> bool:
    size = len(form)
    return any(tuple(ids[start : start + size]) == form for start in range(len(ids) - size + 1))


#: Chat formats, the names that configurations give them, and a token that each of them writes.
_FORMATS = (
    (re.compile(r"qwen|chatml"), "<|im_start|>"),
    (re.compile(r"llama-?_?3|llama4"), "<|start_header_id|>"),
    (re.compile(r"gemma"), "<start_of_turn>"),
    (re.compile(r"phi-?_?(3|4)"), "<|end|>"),
    (re.compile(r"zephyr"), "<|assistant|>"),
)


@check(
    "template.name_mismatch",
    title="A template of another model family",
    severity=Severity.WARNING,
    needs=(Need.SETTINGS, Need.BASE_TOKENIZER),
    explain="""
The configuration names a chat format (`template: qwen`, `chat_template: llama3`) whose control tokens are not
in the base model's vocabulary. They are split into pieces of text that the model has never seen as a
boundary; at inference another format is used.

LLaMA-Factory's `default` format with a model that was tuned for chat is reported too.

Sources: hiyouga/LLaMA-Factory#9392, #9092.
""",
)
def name_mismatch(context: AuditContext) -> Iterator[Observation]:
    run, tokenizer = context.run, context.base_tokenizer
    assert run is not None
    assert tokenizer is not None
    name = run.settings.text("template") or run.settings.text("chat_template")
    if name is None or len(name) > 40:
        raise NotApplicableError("no named template")
    where = run.settings.where("template") or run.settings.where("chat_template")
    locations = [where] if where else []
    marker = next((token for pattern, token in _FORMATS if pattern.search(name.lower())), None)
    if marker is not None and tokenizer.id_of(marker) is None:
        yield Observation(
            title=f"The template {name!r} writes {marker}, which is no token of {tokenizer.name_or_path}",
            message=f"It becomes {len(tokenizer.encode(marker, False))} ordinary tokens.",
            values={"template": name, "marker": marker},
            locations=locations,
            fix=Fix(text=f"template {name} -> the base model's own format", key="template"),
        )
    tuned = re.search(r"(?i)instruct|chat|-it\b", context.base_model_name or "")
    if name == "default" and tuned:
        yield Observation(
            title=f"The plain format `default` is used with {context.base_model_name}, a model tuned for "
            "chat",
            values={"template": name},
            locations=locations,
            fix=Fix(text=f"template {name} -> the base model's own format", key="template"),
        )
