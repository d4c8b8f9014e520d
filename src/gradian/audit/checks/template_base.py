"""Is the chat template of the run that of the base model?"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.rows.template import ChatTemplate, TemplateRenderError

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext

#: Conversations that bring out what templates do differently: system turns, several exchanges, reasoning.
_PROBES: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "First question"}],
    [{"role": "user", "content": "First question"}, {"role": "assistant", "content": "First answer"}],
    [
        {"role": "user", "content": "First question"},
        {"role": "assistant", "content": "First answer"},
        {"role": "user", "content": "Second question"},
        {"role": "assistant", "content": "Second answer"},
    ],
    [
        {"role": "system", "content": "A system text"},
        {"role": "user", "content": "First question"},
        {"role": "assistant", "content": "First answer"},
    ],
)


def _renders(template: ChatTemplate, *, generation: bool) -> list[str]:
    texts = []
    for messages in _PROBES:
        asked = messages[:-1] if generation and messages[-1]["role"] == "assistant" else messages
        try:
            texts.append(template.render(asked, add_generation_prompt=generation))
        except TemplateRenderError as error:
            texts.append(f"refused: {error.why}")
    return texts


@check(
    "run.chat_template_mismatch",
    title="The run's chat template is not the base model's",
    severity=Severity.WARNING,
    needs=(Need.RUN, Need.BASE_TOKENIZER),
    aliases=("template.run_base_mismatch",),
    explain="""
The template saved with the run renders conversations otherwise than the base model's. The adapter expects the
format it was tuned with; a server that takes the template of the base model asks in another.

**How.** Four conversations are rendered with both, with and without the generation prompt: training variants
of a template that render the same text are not reported.

**Severity.** Warning; error when the generation prompt differs although the vocabulary is the same, since
then every answer begins in the wrong place.

**Fix.** Serve the adapter with the run's template.

Sources: ggml-org/llama.cpp#7062, hiyouga/LLaMA-Factory#6020, ollama/ollama#6823.
""",
)
def chat_template_mismatch(context: AuditContext) -> Iterator[Observation]:
    run, base = context.run, context.base_tokenizer
    assert run is not None
    assert base is not None
    if run.chat_template is None:
        raise NotApplicableError("no chat template in the run")
    if base.template is None:
        raise NotApplicableError("no chat template in the base model")
    tokens = context.run_tokenizer or base
    ours = ChatTemplate(run.chat_template, tokens.special_tokens)
    whole = list(
        zip(_renders(base.template, generation=False), _renders(ours, generation=False), strict=True)
    )
    asked = list(zip(_renders(base.template, generation=True), _renders(ours, generation=True), strict=True))
    differing = [(theirs, mine) for theirs, mine in (*asked, *whole) if theirs != mine]
    if not differing:
        return
    same_vocabulary = tokens is base or tokens.vocab_size == base.vocab_size
    opening = any(theirs != mine for theirs, mine in asked)
    theirs, mine = differing[0]
    base_part, run_part = _first_difference(theirs, mine)
    yield Observation(
        title="The run's chat template renders conversations otherwise than the base model's",
        severity=Severity.ERROR
        if opening and same_vocabulary and _opens_otherwise(asked)
        else Severity.WARNING,
        message=f"Base: {base_part!r}; run: {run_part!r}.",
        values={"base": base_part, "run": run_part, "generation_prompt_differs": opening},
        locations=[run.chat_template_file] if run.chat_template_file else [],
        fix=Fix(text="serve the adapter with the run's chat template, or train with the base model's"),
    )


def _first_difference(left: str, right: str, size: int = 40) -> tuple[str, str]:
    for tag, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag != "equal":
            start = max(0, a - 12)
            return left[start : b + 12][:size], right[max(0, c - 12) : d + 12][:size]
    return left[:size], right[:size]


def _opens_otherwise(asked: list[tuple[str, str]]) -> bool:
    """The last line, which opens the answer, differs: a system text of its own at the front does not
    count."""
    return any(_last_line(theirs) != _last_line(mine) for theirs, mine in asked)


def _last_line(text: str) -> str:
    return text.rpartition("question")[2]
