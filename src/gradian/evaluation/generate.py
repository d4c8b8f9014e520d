"""What a model says, and how probable it holds an answer. Knows token ids: no text, no metric.

Both arms must be treated alike for their difference to mean anything: one explicit greedy configuration of
our own (what the base and the tuned checkpoint ship as theirs may differ), and batches that depend on the
prompts only.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from gradian.errors import ModelError
from gradian.evaluation.generation import Generation, Progress

# Logits of one teacher-forced batch: at most 1 GiB in float32. A single item may exceed it.
_MOST_LOGITS = 268_435_456


def generation_config(*, max_new_tokens: int, stop_ids: Collection[int], pad_id: int) -> GenerationConfig:
    """Greedy decoding and nothing else: no sampling, no beams, no penalty, no forced or suppressed token."""
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(stop_ids) or None,
        pad_token_id=pad_id,
        use_cache=True,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
    )


def batches_of(prompts: Sequence[Sequence[int]], batch_size: int) -> list[list[int]]:
    """Item numbers by descending prompt length, ties by number, in batches.

    The widest batch comes first, so that memory runs out at once or not at all.
    """
    order = sorted(range(len(prompts)), key=lambda item: (-len(prompts[item]), item))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


@torch.inference_mode()
def generate(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    batch_size: int,
    stop_ids: Collection[int],
    pad_id: int,
    done: Mapping[int, Generation] | None = None,
    on_batch: Callable[[Mapping[int, Generation]], None] | None = None,
    progress: Progress | None = None,
) -> list[Generation]:
    """Greedy answers, in the order of the prompts.

    Args:
        model: a transformers causal language model in eval mode, with or without PEFT's wrapper.
        prompts: token ids, at least one each.
        max_new_tokens: limit of each answer.
        batch_size: prompts at once. Rounding differs with it, and with it now and then an answer: use one for
            both arms.
        stop_ids: tokens that end an answer. pad_id: fills the batch on the left; any token, it is masked.
        done: answers of an earlier run. A batch is skipped when all its answers are known.
        on_batch: called with the answers of each new batch, by item.
        progress: called with the number of answered items and of all.

    Raises:
        ModelError: out of memory.
    """
    assert not model.training, "dropout would make two greedy runs differ: call model.eval()"
    assert all(prompts), "an empty prompt leaves the model nothing to go on"
    config = generation_config(max_new_tokens=max_new_tokens, stop_ids=stop_ids, pad_id=pad_id)
    answers: dict[int, Generation] = dict(done or {})
    finished = 0
    with _own_configuration(model):
        for batch in batches_of(prompts, batch_size):
            if not all(item in answers for item in batch):
                ids, mask = _pad_left([prompts[item] for item in batch], pad_id, _device(model))
                with _memory(batch_size):
                    said = _continue(model, ids, mask, config)
                fresh = {
                    item: _until_stop(tokens, stop_ids) for item, tokens in zip(batch, said, strict=True)
                }
                answers.update(fresh)
                if on_batch is not None:
                    on_batch(fresh)
            finished += len(batch)
            if progress is not None:
                progress(finished, len(prompts))
    return [answers[item] for item in range(len(prompts))]


@torch.inference_mode()
def teacher_forced(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    *,
    batch_size: int,
    progress: Progress | None = None,
) -> list[float]:
    """Loss of each answer after its prompt: summed negative log-probability of its tokens, nats, at least 0.

    Log-probabilities are float32 (float64 for a float64 model) whatever the model computes in. An answer
    without tokens has loss 0.

    Raises:
        ModelError: out of memory, or the model returns NaN or infinity.
    """
    assert not model.training, "dropout would make the loss random: call model.eval()"
    assert all(prompts), "nothing predicts the first token of an answer without a prompt"
    losses = [0.0] * len(prompts)
    finished = 0
    for batch in _teacher_batches(prompts, answers, batch_size, _vocabulary(model)):
        with _memory(batch_size):
            batch_losses = _batch_losses(model, [prompts[i] for i in batch], [answers[i] for i in batch])
        for item, loss in zip(batch, batch_losses, strict=True):
            if not math.isfinite(loss):
                raise ModelError(
                    f"the model gives an answer the loss {loss}",
                    where=f"item {item}",
                    why="its weights hold NaN or infinity, or its dtype overflows",
                    fix="--dtype float32 tells the two apart",
                )
            losses[item] = loss
        finished += len(batch)
        if progress is not None:
            progress(finished, len(prompts))
    return losses


def _teacher_batches(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], batch_size: int, vocabulary: int
) -> Iterator[list[int]]:
    """Item numbers by descending prompt length, in batches of bounded logits that share answer positions."""
    order = sorted(range(len(prompts)), key=lambda item: (-len(prompts[item]), -len(answers[item]), item))
    batch: list[int] = []
    positions: set[int] = set()
    for item in order:
        if not answers[item]:
            continue  # nothing to predict: its loss is 0
        start = len(prompts[item]) - 1
        wider = positions | set(range(start, start + len(answers[item])))
        if batch and (len(batch) == batch_size or (len(batch) + 1) * len(wider) * vocabulary > _MOST_LOGITS):
            yield batch
            batch, wider = [], set(range(start, start + len(answers[item])))
        batch.append(item)
        positions = wider
    if batch:
        yield batch


def _batch_losses(
    model: nn.Module, prompts: list[Sequence[int]], answers: list[Sequence[int]]
) -> list[float]:
    """Summed loss of each answer of one batch, padded on the right; a row's last token predicts nothing."""
    rows = [[*prompt, *answer[:-1]] for prompt, answer in zip(prompts, answers, strict=True)]
    width, device = max(map(len, rows)), _device(model)
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        mask[index, : len(row)] = 1
    kept = sorted(
        {at for p, a in zip(prompts, answers, strict=True) for at in range(len(p) - 1, len(p) - 1 + len(a))}
    )
    place = {position: index for index, position in enumerate(kept)}
    arguments: dict[str, Any] = {
        "input_ids": ids.to(device),
        "attention_mask": mask.to(device),
        "use_cache": False,
    }
    sliced = _takes_logits_to_keep(model)
    if sliced:
        arguments["logits_to_keep"] = torch.tensor(kept, device=device)
    logits: Tensor = model(**arguments).logits  # [rows, kept, vocabulary]
    if not sliced:
        logits = logits[:, torch.tensor(kept, device=device)]
    losses = []
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        first = place[len(prompt) - 1]
        scores = logits[index, first : first + len(answer)]  # [answer, vocabulary]
        scores = scores if scores.dtype == torch.float64 else scores.float()
        targets = torch.tensor(answer, device=scores.device)
        chosen = scores.log_softmax(dim=-1).gather(1, targets[:, None])
        losses.append(-float(chosen.double().sum()))
    return losses


def _continue(model: Any, ids: Tensor, mask: Tensor, config: GenerationConfig) -> list[list[int]]:
    """What the model adds to each row, the padding after a stop token included."""
    output: Tensor = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    added: list[list[int]] = output[:, ids.shape[1] :].tolist()
    return added


def _pad_left(prompts: list[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and attention mask `[prompts, tokens]`, the prompts flush right, where generation goes on."""
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(prompts), width), dtype=torch.long)
    for index, prompt in enumerate(prompts):
        ids[index, width - len(prompt) :] = torch.tensor(prompt)
        mask[index, width - len(prompt) :] = 1
    return ids.to(device), mask.to(device)


def _until_stop(tokens: list[int], stop_ids: Collection[int]) -> Generation:
    """The tokens up to the first stop token; what follows it is padding."""
    for at, token in enumerate(tokens):
        if token in stop_ids:
            return Generation(tuple(tokens[:at]), token)
    return Generation(tuple(tokens), None)


@contextlib.contextmanager
def _own_configuration(model: nn.Module) -> Iterator[None]:
    """Hide the model's own generation configuration for a while.

    transformers fills every value that ours leaves unset from it: a repetition penalty, a stop string, a
    minimum length. PEFT's wrapper has none of its own and hands on that of the model inside.
    """
    holder: Any = _unwrapped(model)
    before = holder.generation_config
    holder.generation_config = GenerationConfig()
    try:
        yield
    finally:
        holder.generation_config = before


@contextlib.contextmanager
def _memory(batch_size: int) -> Iterator[None]:
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise ModelError(
            f"out of memory at a batch size of {batch_size}",
            fix=f"--batch-size {batch_size // 2}" if batch_size > 1 else "--dtype bfloat16, or --device cpu",
        ) from None


def _unwrapped(model: nn.Module) -> nn.Module:
    """The transformers model inside PEFT's wrapper; the model itself without one."""
    get_base_model = getattr(model, "get_base_model", None)
    if get_base_model is None:
        return model
    inner: nn.Module = get_base_model()
    return inner


def _takes_logits_to_keep(model: nn.Module) -> bool:
    return "logits_to_keep" in inspect.signature(_unwrapped(model).forward).parameters


def _vocabulary(model: nn.Module) -> int:
    config: Any = _unwrapped(model).config
    return int(config.get_text_config().vocab_size)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
