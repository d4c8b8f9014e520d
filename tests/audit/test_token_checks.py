"""Token checks where they must fire, and where they must not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from gradian.rows.profile import TrainerProfile
from gradian.rows.tokenizer import Tokenizer, load_tokenizer
from support.auditing import TOKENIZERS, TRL, audited, chat, finding, ids, pair

UNSLOTH = TrainerProfile("unsloth", reason="unsloth", end_of_text="none", loss_on="everything")


def texts(count: int, end: str = "") -> list[dict[str, Any]]:
    return [{"text": f"Q: gate {i}?\nA: It is open.{end}"} for i in range(count)]


def word_tokenizer(**special: str) -> Tokenizer:
    """A tokenizer of whole words that maps the rest to `<unk>`."""
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", "a", "b", "c", "d", "e"])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer("words", backend, {"unk_token": "<unk>", "eos_token": "</s>", **special})


def test_missing_eos_by_share_and_trainer(tmp_path: Path) -> None:
    found = finding(
        audited(tmp_path, texts(20), profile=UNSLOTH, tokenizer="base-padeos"), "token.missing_eos"
    )
    assert (found.severity.value, found.count) == ("error", 20)
    some = [*texts(18, "<|endoftext|>"), *texts(2)]
    assert finding(
        audited(tmp_path, some, profile=UNSLOTH, tokenizer="base-padeos"), "token.missing_eos"
    ).rows == (18, 19)
    own = replace(UNSLOTH, trainer="transformers")
    assert (
        finding(
            audited(tmp_path, texts(20), profile=own, tokenizer="base-padeos"), "token.missing_eos"
        ).severity.value
        == "warning"
    )


@pytest.mark.parametrize("profile", [TRL, replace(UNSLOTH, end_of_text="append_id")])
def test_trainers_that_append_eos(tmp_path: Path, profile: TrainerProfile) -> None:
    assert "token.missing_eos" not in ids(
        audited(tmp_path, texts(20), profile=profile, tokenizer="base-padeos")
    )


def test_the_end_of_a_turn_is_a_stop(tmp_path: Path) -> None:
    result = audited(tmp_path, [chat("Q?", "A.")] * 3, profile=UNSLOTH)
    assert "token.missing_eos" not in ids(result)


def test_pad_masks_eos_depends_on_the_collator(tmp_path: Path) -> None:
    old = replace(TRL, version="0.9.6", loss_on="everything", end_of_text="none", pad_masks_eos=True)
    found = finding(
        audited(tmp_path, texts(5, "<|endoftext|>"), profile=old, tokenizer="base-padeos"),
        "token.pad_masks_eos",
    )
    assert found.count == 5
    assert "token.pad_masks_eos" not in ids(
        audited(tmp_path, texts(5, "<|endoftext|>"), tokenizer="base-padeos")
    )
    assert "token.pad_masks_eos" not in ids(audited(tmp_path, [chat("Q?", "A.")], profile=old))


def test_without_a_pad_token_eos_pads(tmp_path: Path) -> None:
    old = replace(TRL, version="0.9.6", loss_on="everything", end_of_text="none", pad_masks_eos=True)
    result = audited(tmp_path, [{"text": "a b </s>"}], profile=old, tokenizer=word_tokenizer())
    assert "no pad token" in finding(result, "token.pad_masks_eos").title


def test_pad_in_content(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(pad_token="<unk>")
    found = finding(
        audited(tmp_path, [{"text": "a zebra b"}, {"text": "a b"}], tokenizer=tokenizer),
        "token.pad_in_content",
    )
    assert found.rows == (0,)
    assert "token.pad_in_content" not in ids(audited(tmp_path, [{"text": "a b"}], tokenizer=tokenizer))


def test_unknown_tokens(tmp_path: Path) -> None:
    found = finding(
        audited(tmp_path, [{"text": "a zebra"}, {"text": "a b c"}], tokenizer=word_tokenizer()),
        "token.unk_rate",
    )
    assert found.rows == (0,)
    assert "token.unk_rate" not in ids(audited(tmp_path, [{"text": "a b c"}], tokenizer=word_tokenizer()))


def test_double_bos(tmp_path: Path) -> None:
    rows = [{"text": "<|begin_of_text|>hello there."}] * 3
    found = finding(audited(tmp_path, rows, tokenizer="headers-bos"), "token.double_bos")
    assert (found.count, found.severity.value) == (3, "error")
    removing = audited(tmp_path, rows, tokenizer="headers-bos", profile=replace(TRL, removes_double_bos=True))
    assert "token.double_bos" not in ids(removing)
    assert "token.double_bos" not in ids(audited(tmp_path, [{"text": "hello."}], tokenizer="headers-bos"))


def test_prompt_boundary(tmp_path: Path) -> None:
    rows = [pair(f"Q: gate {i}?\nA: ", "Open it now.") for i in range(10)]
    found = finding(audited(tmp_path, rows, tokenizer="merge-space"), "token.prompt_boundary_mismatch")
    assert found.count == 10
    moved = [pair(f"Q: gate {i}?\nA:", " Open it now.") for i in range(10)]
    assert "token.prompt_boundary_mismatch" not in ids(audited(tmp_path, moved, tokenizer="merge-space"))


def test_eos_that_turns_do_not_end_with(tmp_path: Path) -> None:
    base = load_tokenizer(str(TOKENIZERS / "chatml"))
    other = Tokenizer(
        "base", base.backend, {**base.special_tokens, "eos_token": "<|endoftext|>"}, base.templates
    )
    found = finding(audited(tmp_path, [chat("Q?", "A.")], tokenizer=other), "token.eos_not_turn_end")
    assert found.fix is not None
    assert found.fix.to == "<|im_end|>"
    listed = replace_ids(other, (base.id_of("<|im_end|>") or 0,))
    assert "token.eos_not_turn_end" not in ids(audited(tmp_path, [chat("Q?", "A.")], tokenizer=listed))
    assert "token.eos_not_turn_end" not in ids(audited(tmp_path, [chat("Q?", "A.")]))
    told = audited(
        tmp_path, [chat("Q?", "A.")], tokenizer=other, profile=replace(TRL, eos_token="<|im_end|>")
    )
    assert "token.eos_not_turn_end" not in ids(told)


def replace_ids(tokenizer: Tokenizer, stop: tuple[int, ...]) -> Tokenizer:
    return Tokenizer(
        tokenizer.name_or_path,
        tokenizer.backend,
        tokenizer.special_tokens,
        tokenizer.templates,
        generation_eos_ids=stop,
    )


@pytest.mark.parametrize(
    ("name", "fires"),
    [
        ("meta-llama/Llama-3.2-1B", True),
        ("meta-llama/Llama-3.2-1B-Instruct", False),
        ("Qwen/Qwen2.5-7B", False),
    ],
)
def test_untrained_control_tokens(tmp_path: Path, name: str, fires: bool) -> None:
    result = audited(tmp_path, [chat("Q?", "A.")], tokenizer="headers-bos", base_model=name)
    assert ("token.untrained_special" in ids(result)) is fires


def test_rows_beyond_the_model(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    long = [pair("Q?", " " + "x" * 100)]
    found = finding(audited(tmp_path, long, base_model=str(base)), "token.over_model_context")
    assert found.fix is not None
    assert found.fix.to == 64
    assert "token.over_model_context" not in ids(
        audited(tmp_path, [pair("Q?", " yes.")], base_model=str(base))
    )
    (base / "config.json").write_text(
        json.dumps({"max_position_embeddings": 64, "rope_scaling": {"factor": 4}})
    )
    assert "token.over_model_context" not in ids(audited(tmp_path, long, base_model=str(base)))
