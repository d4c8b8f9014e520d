"""What both arms are asked, as tokens, and how: one set of prompts, limits and batches for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gradian.errors import InputError
from gradian.evaluation.answer_cache import AnswerCache
from gradian.evaluation.generation import Generation, Progress
from gradian.evaluation.items import EvalItem
from gradian.rows.items import answer_ids, prompt_ids
from gradian.rows.template import TemplateRenderError
from gradian.rows.tokenizer import Tokenizer

Arm = Literal["base", "tuned"]
# Called with what is being done (`base: answers`), the items done and all items.
StageProgress = Callable[[str, int, int], None]

# Room for an answer half as long again as the longest that is wanted, in round numbers.
_ROOM, _ROUND_TO, _LEAST_TOKENS = 1.5, 16, 32


class Arms(Protocol):
    """What is needed of a loaded model; `gradian.model.loaded.LoadedModel` is one."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def max_positions(self) -> int | None: ...

    def arm(self, which: Arm) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True)
class Plan:
    """What both arms are asked.

    Attributes:
        prompts: token ids of each item, the generation prompt included.
        wanted: token ids of each wanted answer, the stop token included.
        max_new_tokens: limit of an answer. token_limit_from: where it comes from, in words.
        stop_ids: tokens that end an answer, ascending. pad_id: fills batches, masked.
    """

    items: tuple[EvalItem, ...]
    tokenizer: Tokenizer
    prompts: list[list[int]]
    wanted: list[list[int]]
    max_new_tokens: int
    token_limit_from: str
    batch_size: int
    stop_ids: tuple[int, ...]
    pad_id: int
    progress: StageProgress | None

    def answers(self, model: Any, arm: Arm, cache: AnswerCache | None) -> list[Generation]:
        """What an arm says to every item."""
        return self._generate(
            model,
            self.prompts,
            f"{arm}: answers",
            done=None if cache is None else cache.answers(arm),
            on_batch=None if cache is None else lambda fresh: cache.add(arm, fresh),
        )

    def answers_to(
        self, model: Any, arm: Arm, items: Sequence[int], batch_size: int | None = None
    ) -> list[Generation]:
        """What an arm says to some of the items, in other batches than `answers`."""
        prompts = [self.prompts[item] for item in items]
        return self._generate(model, prompts, f"{arm}: answers to some", batch_size=batch_size)

    def losses(
        self, model: Any, stage: str, items: Sequence[int], answers: Sequence[Sequence[int]]
    ) -> list[float]:
        """Loss of one answer to each of `items`, summed over its tokens, nats."""
        from gradian.evaluation.generate import teacher_forced

        prompts = [self.prompts[item] for item in items]
        return teacher_forced(
            model, prompts, answers, batch_size=self.batch_size, progress=self._stage(stage)
        )

    def text(self, generation: Generation) -> str:
        """A generation as text, special tokens left out."""
        return self.tokenizer.decode(generation.ids, skip_special_tokens=True)

    def _generate(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        stage: str,
        *,
        batch_size: int | None = None,
        **more: Any,
    ) -> list[Generation]:
        from gradian.evaluation.generate import generate

        return generate(
            model,
            prompts,
            max_new_tokens=self.max_new_tokens,
            batch_size=batch_size or self.batch_size,
            stop_ids=self.stop_ids,
            pad_id=self.pad_id,
            progress=self._stage(stage),
            **more,
        )

    def _stage(self, name: str) -> Progress | None:
        progress = self.progress
        return None if progress is None else lambda done, of: progress(name, done, of)


def token_limit(wanted: Sequence[Sequence[int]]) -> int:
    """1.5 times the longest wanted answer (stop token included), up to a multiple of 16, at least 32."""
    room = -int(-_ROOM * max(map(len, wanted)) // 1)
    return max(_LEAST_TOKENS, -(-room // _ROUND_TO) * _ROUND_TO)


def make_plan(
    loaded: Arms,
    items: tuple[EvalItem, ...],
    *,
    max_new_tokens: int | None,
    batch_size: int,
    progress: StageProgress | None,
) -> Plan:
    """Tokenise every item and set the limit of an answer.

    Raises:
        InputError: an item has no prompt in tokens, is refused by the chat template, or does not fit the
            model's context.
    """
    tokenizer = loaded.tokenizer
    pairs = [_tokenise(item, tokenizer) for item in items]
    prompts, wanted = [prompt for prompt, _ in pairs], [answer for _, answer in pairs]
    limit = token_limit(wanted) if max_new_tokens is None else max_new_tokens
    for item, prompt, answer in zip(items, prompts, wanted, strict=True):
        _check_length(item, len(prompt), max(limit, len(answer)), loaded.max_positions)
    stop_ids = tuple(sorted(tokenizer.stop_ids))
    return Plan(
        items=items,
        tokenizer=tokenizer,
        prompts=prompts,
        wanted=wanted,
        max_new_tokens=limit,
        token_limit_from="1.5 x the longest wanted answer" if max_new_tokens is None else "as given",
        batch_size=batch_size,
        stop_ids=stop_ids,
        pad_id=next((token for token in (tokenizer.pad_token_id, *stop_ids) if token is not None), 0),
        progress=progress,
    )


def _tokenise(item: EvalItem, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids of the prompt and of the wanted answer; what the chat template refuses is named with its item."""
    try:
        talk = item.conversation
        return prompt_ids(talk, tokenizer), answer_ids(talk, tokenizer, item.wanted)
    except TemplateRenderError as error:
        if error.where is not None:  # the template itself is broken, not this item
            raise
        raise InputError(error.what, where=item.where, why=error.why, fix=error.fix) from None


def _check_length(item: EvalItem, prompt: int, answer: int, context: int | None) -> None:
    if prompt == 0:
        raise InputError("the prompt has no tokens", where=item.where, fix="mend or remove the item")
    if context is not None and prompt + answer > context:
        raise InputError(
            f"the prompt ({prompt} tokens) and its answer (up to {answer}) do not fit the model",
            where=item.where,
            why=f"the model's context is {context} tokens",
            fix="shorten or remove the item, or lower --max-new-tokens",
        )
