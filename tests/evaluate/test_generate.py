"""Generation and teacher forcing against slow references, one prompt at a time."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import GenerationConfig

from gradian.errors import ModelError
from gradian.evaluation.generate import batches_of, generate, teacher_forced
from gradian.evaluation.generation import Generation
from support.evaluation import END, PAD, tiny_lora

PROMPTS = [[10, 20], [30] * 9, [1, 2, 3, 4, 5], [30] * 9, [200], [7, 8, 9]]
ANSWERS = [[1, 2, END], [5], [], [9, 8, 7, 6, 5, 4, 3], [END], [100, 101, END]]


def slow_greedy(model: nn.Module, prompt: list[int], limit: int, stop_ids: set[int]) -> Generation:
    """One token at a time, without cache, padding or transformers' generation."""
    ids = list(prompt)
    for _ in range(limit):
        with torch.no_grad():
            token = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        if token in stop_ids:
            return Generation(tuple(ids[len(prompt) :]), token)
        ids.append(token)
    return Generation(tuple(ids[len(prompt) :]), None)


def slow_loss(model: nn.Module, prompt: list[int], answer: list[int]) -> float:
    """The definition: the sum of -log softmax at every answer token, one sequence, all logits, float64."""
    if not answer:
        return 0.0
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + answer])).logits[0].double()
    return -sum(float(logits[len(prompt) - 1 + j].log_softmax(0)[token]) for j, token in enumerate(answer))


@pytest.fixture(scope="module")
def double_model() -> PeftModel:
    return tiny_lora(dtype=torch.float64)


def stops_of(model: nn.Module) -> set[int]:
    """A token that this random model does say, so that some answers stop early and others do not."""
    said = slow_greedy(model, PROMPTS[2], 4, set())
    return {END, said.ids[2]}


@pytest.mark.parametrize("batch_size", [1, 2, 4, 100])
def test_generation_is_greedy_in_any_batch_and_in_item_order(
    double_model: PeftModel, batch_size: int
) -> None:
    stop_ids = stops_of(double_model)
    got = generate(
        double_model, PROMPTS, max_new_tokens=6, batch_size=batch_size, stop_ids=stop_ids, pad_id=PAD
    )
    assert got == [slow_greedy(double_model, prompt, 6, stop_ids) for prompt in PROMPTS]
    assert {answer.stopped for answer in got} == {True, False}  # the case holds both kinds of end


def test_a_stop_token_is_no_part_of_the_answer(double_model: PeftModel) -> None:
    stop_ids = stops_of(double_model)
    answer = generate(
        double_model, [PROMPTS[2]], max_new_tokens=6, batch_size=1, stop_ids=stop_ids, pad_id=PAD
    )[0]
    assert len(answer.ids) == 2
    assert answer.stop_id in stop_ids
    assert answer.ids_with_stop == (*answer.ids, answer.stop_id)


def test_a_pad_token_that_is_the_stop_token_changes_nothing(double_model: PeftModel) -> None:
    stop_ids = stops_of(double_model)
    one, other = (
        generate(double_model, PROMPTS, max_new_tokens=6, batch_size=3, stop_ids=stop_ids, pad_id=pad)
        for pad in (PAD, max(stop_ids))
    )
    assert one == other


def test_without_a_stop_token_every_answer_runs_to_the_limit(double_model: PeftModel) -> None:
    got = generate(double_model, PROMPTS, max_new_tokens=4, batch_size=3, stop_ids=(), pad_id=PAD)
    assert all(len(answer.ids) == 4 and not answer.stopped for answer in got)


def test_the_models_own_generation_settings_are_ignored_and_left_alone(double_model: PeftModel) -> None:
    plain = generate(double_model, PROMPTS, max_new_tokens=6, batch_size=3, stop_ids={END}, pad_id=PAD)
    inner = double_model.get_base_model()
    before = inner.generation_config
    hostile = GenerationConfig(
        do_sample=True,
        temperature=5.0,
        num_beams=2,
        repetition_penalty=3.0,
        no_repeat_ngram_size=1,
        min_new_tokens=5,
        max_length=3,
        suppress_tokens=[plain[0].ids[0]],
        eos_token_id=plain[0].ids[1],
    )
    inner.generation_config = hostile
    try:
        again = generate(double_model, PROMPTS, max_new_tokens=6, batch_size=3, stop_ids={END}, pad_id=PAD)
        assert inner.generation_config is hostile
    finally:
        inner.generation_config = before
    assert again == plain


def test_both_arms_of_one_model(lora_model: PeftModel) -> None:
    tuned = teacher_forced(lora_model, PROMPTS, ANSWERS, batch_size=3)
    with lora_model.disable_adapter():
        base = teacher_forced(lora_model, PROMPTS, ANSWERS, batch_size=3)
    assert base != tuned
    assert base[2] == tuned[2] == 0


def test_known_batches_are_not_generated_again(lora_model: PeftModel) -> None:
    whole: dict[int, Generation] = {}
    arguments = {"max_new_tokens": 5, "batch_size": 2, "stop_ids": {END}, "pad_id": PAD}
    first = generate(lora_model, PROMPTS, on_batch=whole.update, **arguments)
    assert sorted(whole) == list(range(len(PROMPTS)))
    forged = {item: Generation((item,), None) for item in batches_of(PROMPTS, 2)[0]}
    fresh: dict[int, Generation] = {}
    again = generate(lora_model, PROMPTS, done=forged, on_batch=fresh.update, **arguments)
    assert [again[item] for item in forged] == list(forged.values())
    assert fresh == {item: first[item] for item in whole if item not in forged}


def test_batches_are_sorted_by_length_with_ties_by_number() -> None:
    assert batches_of(PROMPTS, 4) == [[1, 3, 2, 5], [0, 4]]


def test_progress_counts_items(lora_model: PeftModel) -> None:
    seen: list[tuple[int, int]] = []
    arguments = {"max_new_tokens": 2, "batch_size": 4, "stop_ids": {END}, "pad_id": PAD}
    generate(lora_model, PROMPTS, progress=lambda done, of: seen.append((done, of)), **arguments)
    assert seen == [(4, 6), (6, 6)]


@pytest.mark.parametrize("batch_size", [1, 2, 4, 100])
def test_loss_is_the_definition_in_any_batch(double_model: PeftModel, batch_size: int) -> None:
    got = teacher_forced(double_model, PROMPTS, ANSWERS, batch_size=batch_size)
    assert got == pytest.approx(
        [slow_loss(double_model, p, a) for p, a in zip(PROMPTS, ANSWERS, strict=True)], rel=1e-11
    )


def test_loss_of_a_float32_model_is_near_the_float64_one(
    lora_model: PeftModel, double_model: PeftModel
) -> None:
    double_model.load_state_dict({name: value.double() for name, value in lora_model.state_dict().items()})
    got = teacher_forced(lora_model, PROMPTS, ANSWERS, batch_size=4)
    assert got == pytest.approx(
        [slow_loss(double_model, p, a) for p, a in zip(PROMPTS, ANSWERS, strict=True)], rel=1e-5
    )


def test_loss_without_logits_to_keep_and_with_little_room(
    double_model: PeftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = teacher_forced(double_model, PROMPTS, ANSWERS, batch_size=100)
    monkeypatch.setattr("gradian.evaluation.generate._takes_logits_to_keep", lambda model: False)
    monkeypatch.setattr("gradian.evaluation.generate._MOST_LOGITS", 259)
    assert teacher_forced(double_model, PROMPTS, ANSWERS, batch_size=100) == pytest.approx(whole, rel=1e-11)


def test_a_model_that_returns_nan_is_refused() -> None:
    model = tiny_lora(seed=3)
    with torch.no_grad():
        model.get_base_model().lm_head.weight[0, 0] = float("nan")
    with pytest.raises(ModelError, match="NaN"):
        teacher_forced(model, [[1, 2]], [[3]], batch_size=1)


def test_dropout_and_empty_prompts_are_programmer_errors(lora_model: PeftModel) -> None:
    with pytest.raises(AssertionError, match="prompt"):
        teacher_forced(lora_model, [[]], [[3]], batch_size=1)
    model = tiny_lora().train()
    with pytest.raises(AssertionError, match="dropout"):
        generate(model, [[1]], max_new_tokens=1, batch_size=1, stop_ids=(), pad_id=0)


def test_running_out_of_memory_names_a_smaller_batch(
    lora_model: PeftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("gradian.evaluation.generate._continue", fail)
    with pytest.raises(ModelError, match="--batch-size 2"):
        generate(lora_model, PROMPTS, max_new_tokens=1, batch_size=4, stop_ids=(), pad_id=0)
