"""Both arms end to end on a tiny model: what is measured, kept on disk, and taken up again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradian.errors import ConfigError, InputError
from gradian.evaluation.answer_cache import AnswerCache, header_of
from gradian.evaluation.generate import generate, teacher_forced
from gradian.evaluation.generation import Generation
from gradian.evaluation.items import read_items
from gradian.evaluation.metrics import get_metric
from gradian.evaluation.plan import token_limit
from gradian.evaluation.result import EvaluationResult
from gradian.evaluation.run import evaluate_arms
from gradian.rows.items import prompt_ids
from support.evaluation import END, PAD, TinyArms, chat, tiny_lora

Write = Callable[..., Path]
LIMIT = 6


@pytest.fixture
def eval_path(arms: TinyArms, write_items: Write) -> Path:
    """Eight items: the base says what items 0-5 want, the tuned model what 6 wants, neither what 7 wants."""
    questions = [f"question {'x' * n}" for n in (3, 9, 1, 7, 5, 2, 8, 4)]
    prompts = read_items(write_items([chat(question, "?") for question in questions], "prompts.jsonl")).items
    said = {}
    for arm in ("base", "tuned"):
        with arms.arm(arm) as model:
            answers = generate(
                model,
                [prompt_ids(item.conversation, arms.tokenizer) for item in prompts],
                max_new_tokens=LIMIT,
                batch_size=20,
                stop_ids={END, PAD},
                pad_id=PAD,
            )
        said[arm] = [arms.tokenizer.decode(answer.ids, skip_special_tokens=True) for answer in answers]
    assert all(base != tuned and base.strip() for base, tuned in zip(*said.values(), strict=True))
    wanted = [*said["base"][:6], said["tuned"][6], "neither"]
    return write_items(
        [chat(q, w, cluster=f"c{n // 2}") for n, (q, w) in enumerate(zip(questions, wanted, strict=True))]
    )


def run(arms: TinyArms, path: Path, metric: str = "exact", **options: Any) -> EvaluationResult:
    options = {"max_new_tokens": LIMIT, "resamples": 1000, **options}
    return evaluate_arms(arms, read_items(path), get_metric(metric), **options)


def test_what_became_of_each_item(arms: TinyArms, eval_path: Path) -> None:
    result = run(arms, eval_path)
    assert [item.outcome for item in result.items] == ["lost"] * 6 + ["gained", "both_wrong"]
    assert (result.comparison.base, result.comparison.tuned) == (0.75, 0.125)
    assert result.comparison.delta == -0.625
    assert [item.line for item in result.items] == list(range(1, 9))
    assert result.base_fails == 2
    assert result.base_counts.answered == result.tuned_counts.answered == 8
    for item in result.items:
        assert item.base is not None
        assert (item.base.text == item.wanted) == (item.base_score == 1)


def test_losses_and_margins_of_the_lost_items(arms: TinyArms, eval_path: Path) -> None:
    result = run(arms, eval_path)
    item = result.lost[2]
    assert item.tuned is not None
    for arm, wanted, said in (
        ("base", item.base_wanted_nll, item.base_said_nll),
        ("tuned", item.tuned_wanted_nll, item.tuned_said_nll),
    ):
        with arms.arm(arm) as model:
            alone = [
                teacher_forced(model, [item.prompt_ids], [answer], batch_size=1)[0]
                for answer in (item.wanted_ids, item.tuned.ids_with_stop)
            ]
        assert (wanted, said) == pytest.approx(alone, rel=1e-5)
    assert result.items[6].base_said_nll is None  # only lost items are contrasted
    margins = sorted(item.base_margin for item in result.lost if item.base_margin is not None)
    assert len(margins) == 6
    assert result.base_margin == pytest.approx(sum(margins) / 6)
    assert result.base_margin_median == pytest.approx((margins[2] + margins[3]) / 2)
    assert result.tuned_margin is not None
    assert result.base_nll == pytest.approx(sum(item.base_wanted_nll for item in result.items) / 8)


def test_the_same_run_gives_the_same_bytes(arms: TinyArms, eval_path: Path, tmp_path: Path) -> None:
    run(arms, eval_path).save(tmp_path / "one.json")
    run(arms, eval_path).save(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_scores_do_not_depend_on_the_batch_size(tokenizer: Any, eval_path: Path) -> None:
    arms = TinyArms(tiny_lora(dtype=torch.float64), tokenizer)
    one, all_at_once = run(arms, eval_path, batch_size=1), run(arms, eval_path, batch_size=20)
    assert one.comparison == all_at_once.comparison
    assert [item.tuned for item in one.items] == [item.tuned for item in all_at_once.items]


def test_a_saved_result_is_read_back_equal_and_without_torch(
    arms: TinyArms, eval_path: Path, tmp_path: Path
) -> None:
    result = run(arms, eval_path, noise_items=3)
    path = tmp_path / "deep" / "evaluation.json"
    result.save(path)
    assert EvaluationResult.load(path) == result
    assert [entry.name for entry in path.parent.iterdir()] == ["evaluation.json"]
    code = (
        "import sys; from gradian.evaluation.result import EvaluationResult as E; import gradian.evaluation.run;"
        f"E.load({str(path)!r}); sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "not JSON"),
        (b"[]", "this version"),
        (b'{"schema_version": 2}', "this version"),
        (b"\xff", "not JSON"),
    ],
)
def test_files_that_are_no_result(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "e.json").write_bytes(content)
    with pytest.raises(InputError, match=why):
        EvaluationResult.load(tmp_path / "e.json")
    with pytest.raises(InputError, match="cannot be read"):
        EvaluationResult.load(tmp_path)


def test_a_text_that_is_no_unicode_is_saved(arms: TinyArms, eval_path: Path, tmp_path: Path) -> None:
    result = run(arms, eval_path)
    broken = result.model_copy(update={"notes": ("\ud83d half a pair",)})
    broken.save(tmp_path / "e.json")
    assert json.loads((tmp_path / "e.json").read_bytes())["notes"] == ["\ud83d half a pair"]


def test_limit_is_stamped(arms: TinyArms, eval_path: Path) -> None:
    result = run(arms, eval_path, limit=3)
    assert result.partial
    assert len(result.items) == 3
    assert result.notes[0].startswith("Partial: only the first 3 of 8")
    assert not run(arms, eval_path, limit=8).partial


@pytest.mark.parametrize(("longest", "limit"), [(1, 32), (21, 32), (22, 48), (32, 48), (33, 64), (100, 160)])
def test_token_limit_by_hand(longest: int, limit: int) -> None:
    """1.5 x 21 = 31.5 -> 32; 1.5 x 22 = 33 -> 48; 1.5 x 33 = 49.5 -> 64; 1.5 x 100 = 150 -> 160."""
    assert token_limit([[0] * longest, [0]]) == limit


def test_the_default_limit_is_stated(arms: TinyArms, eval_path: Path) -> None:
    result = run(arms, eval_path, max_new_tokens=None, limit=2)
    assert result.max_new_tokens == token_limit([item.wanted_ids for item in result.items])
    assert "longest wanted answer" in result.token_limit_from


def test_answers_that_never_stop_are_the_headline(arms: TinyArms, eval_path: Path) -> None:
    result = run(arms, eval_path)
    said = [item.tuned for item in result.items if item.tuned is not None]
    assert result.tuned_counts.hit_token_limit == sum(answer.stop_id is None for answer in said) > 0
    assert result.tuned_counts.not_extracted == sum(answer.extracted is None for answer in said)


def test_nll_needs_no_generation_but_lost_items_are_answered(arms: TinyArms, eval_path: Path) -> None:
    result = run(arms, eval_path, "nll")
    for item in result.items:
        assert item.base_score == pytest.approx(-item.base_wanted_nll / len(item.wanted_ids))
        assert item.base is None
        assert (item.tuned is not None) == (item.outcome == "lost") == (item.tuned_said_nll is not None)
    assert result.graded
    assert result.base_counts.answered == 0
    assert result.base_fails is None
    assert result.comparison.margin is None
    assert result.lost


def test_clusters_of_the_items(arms: TinyArms, eval_path: Path) -> None:
    result = run(arms, eval_path, by_cluster=True)
    assert result.comparison.clusters == 4
    assert "clusters" in result.comparison.ci_method


def test_noise_floor_of_a_batch_invariant_model_is_zero(tokenizer: Any, eval_path: Path) -> None:
    result = run(TinyArms(tiny_lora(dtype=torch.float64), tokenizer), eval_path, noise_items=5)
    assert result.noise is not None
    assert (result.noise.items, result.noise.text_changed, result.noise.score_changed) == (5, 0, 0)
    assert any(note.startswith("Noise floor") for note in result.notes)


def test_noise_is_counted(tokenizer: Any, eval_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradian.evaluation import generate as module

    plain = module.generate

    def noisy(model: Any, prompts: Any, **options: Any) -> list[Generation]:
        answers = plain(model, prompts, **options)
        return [Generation((65,), None) for _ in answers] if options["batch_size"] == 1 else answers

    monkeypatch.setattr(module, "generate", noisy)
    result = run(TinyArms(tiny_lora(dtype=torch.float64), tokenizer), eval_path, noise_items=99)
    assert result.noise is not None
    assert (result.noise.items, result.noise.text_changed) == (8, 8)
    assert result.noise.score_changed == round(8 * result.comparison.base)


class TestWhatUsersDoWrong:
    def test_an_item_that_does_not_fit(self, arms: TinyArms, write_items: Write) -> None:
        path = write_items([chat("a", "b"), chat("x" * 300, "b")])
        with pytest.raises(InputError, match=r"eval\.jsonl:2: the prompt .* do not fit"):
            run(arms, path)

    def test_an_item_that_the_chat_template_refuses(self, arms: TinyArms, write_items: Write) -> None:
        arms.tokenizer = arms.tokenizer.with_template("{{ raise_exception('no question ends so') }}")
        with pytest.raises(InputError, match=r"eval\.jsonl:1: .*"):
            run(arms, write_items([chat("a", "b")]))

    @pytest.mark.parametrize("option", ["max_new_tokens", "batch_size", "limit", "noise_items"])
    def test_numbers(self, arms: TinyArms, eval_path: Path, option: str) -> None:
        with pytest.raises(ConfigError, match=option):
            run(arms, eval_path, **{option: -1})

    def test_a_wanted_answer_that_cannot_be_scored_stops_before_the_model(
        self, arms: TinyArms, write_items: Write
    ) -> None:
        with pytest.raises(InputError, match=r"eval\.jsonl:1"):
            run(arms, write_items([chat("a", "no json")]), "json_fields")
        assert arms.entered == []

    def test_the_users_metric_that_fails_names_the_item(
        self, arms: TinyArms, eval_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "failing_metric_of_tests.py").write_text(
            "def f(said, wanted, item):\n    return item['none']\n"
        )
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ConfigError, match=r"eval\.jsonl:1: the metric .* failed") as caught:
            run(arms, eval_path, "failing_metric_of_tests:f")
        assert "KeyError" in (caught.value.why or "")

    def test_a_limit_that_no_wanted_answer_fits_is_said(self, arms: TinyArms, eval_path: Path) -> None:
        assert any("longer than the limit" in note for note in run(arms, eval_path, max_new_tokens=1).notes)


def test_scores_of_a_users_metric_that_are_all_zero_or_one_get_mcnemar(
    arms: TinyArms, eval_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_metric_of_tests.py").write_text(
        "def f(said, wanted, item):\n    return said == wanted\n"
    )
    monkeypatch.chdir(tmp_path)
    result = run(arms, eval_path, "plain_metric_of_tests:f")
    assert (
        result.comparison.mcnemar_p == run(arms, eval_path).comparison.mcnemar_p == 0.125
    )  # 6 lost, 1 gained


class TestCache:
    def test_a_killed_run_goes_on(
        self, arms: TinyArms, eval_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = tmp_path / "answers.jsonl"
        options: dict[str, Any] = {"batch_size": 3, "cache_path": cache, "arms_id": "a"}
        whole = run(arms, eval_path, batch_size=3, arms_id="a")
        add, calls = AnswerCache.add, []

        def killed(self: AnswerCache, arm: str, answers: Any) -> None:
            if len(calls) == 4:
                raise KeyboardInterrupt
            calls.append(arm)
            add(self, arm, answers)

        monkeypatch.setattr(AnswerCache, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            run(arms, eval_path, **options)
        with cache.open("a") as file:
            file.write('{"arm": "tuned", "answ')  # what a kill in the middle of a write leaves
        calls.clear()
        assert run(arms, eval_path, **options) == whole
        assert calls == ["tuned", "tuned"]  # base (3 batches) and the first of tuned were there
        calls.clear()
        assert run(arms, eval_path, **options) == whole
        assert calls == []

    @pytest.mark.parametrize(
        "other", [{"arms_id": "b"}, {"max_new_tokens": 5}, {"batch_size": 4}, {"limit": 7}]
    )
    def test_answers_of_another_run_are_not_used(
        self, arms: TinyArms, eval_path: Path, tmp_path: Path, other: dict[str, Any]
    ) -> None:
        options: dict[str, Any] = {"batch_size": 3, "cache_path": tmp_path / "c", "arms_id": "a"}
        run(arms, eval_path, **options)
        header = (tmp_path / "c").read_text().splitlines()[0]
        assert run(arms, eval_path, **{**options, **other}) == run(
            arms, eval_path, **{**options, **other, "cache_path": None}
        )
        assert (tmp_path / "c").read_text().splitlines()[0] != header

    @pytest.mark.parametrize("damage", [b"", b"not json\n", b'{"header": 3}\n', b"[]\n", b"\xff\xfe\n"])
    def test_a_damaged_header_starts_anew(self, tmp_path: Path, damage: bytes) -> None:
        (tmp_path / "c").write_bytes(damage)
        header = header_of([[1]], x=1)
        cache = AnswerCache(tmp_path / "c", header)
        cache.add("base", {0: Generation((1, 2), 3)})
        assert AnswerCache(tmp_path / "c", header).answers("base") == {0: Generation((1, 2), 3)}

    def test_a_damaged_line_ends_what_is_trusted(self, tmp_path: Path) -> None:
        cache = AnswerCache(tmp_path / "c", "h")
        cache.add("base", {0: Generation((1,), None)})
        with (tmp_path / "c").open("a") as file:
            file.write('{"arm": "base", "answers": [[1, "x"]]}\n')
        cache.add("base", {2: Generation((2,), None)})
        assert AnswerCache(tmp_path / "c", "h").answers("base") == {0: Generation((1,), None)}

    def test_a_place_that_cannot_be_used(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cache of answers"):
            AnswerCache(tmp_path, "h")

    def test_a_cache_needs_the_identity_of_the_arms(
        self, arms: TinyArms, eval_path: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(AssertionError, match="identity"):
            run(arms, eval_path, cache_path=tmp_path / "c")
