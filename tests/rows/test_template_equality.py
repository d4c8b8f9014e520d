"""Text, ids and assistant masks are those of transformers' `apply_chat_template`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradian.rows.profile import TrainerProfile
from gradian.rows.row import Conversation, Row, Shape, Turn
from gradian.rows.shapes import conversation_of
from gradian.rows.template import TemplateRenderError
from gradian.rows.tokenizer import load_tokenizer
from gradian.rows.tokens import prompt_ids, render, tokenize
from support.rows_tokenizers import FAMILIES, TOKENIZERS, write_tokenizer

transformers = pytest.importorskip("transformers")

SMOLLM2 = Path(__file__).parents[3] / "shared" / "runs" / "json_formatting" / "run" / "adapter"

SYSTEM = {"role": "system", "content": "You are terse.\n"}
ASK = {"role": "user", "content": "  Where is Zürich? 🇨🇭 <|im_end|>\n"}
ANSWER = {"role": "assistant", "content": "In Switzerland."}
THINK = {"role": "assistant", "content": "<think>\nnear the lake\n</think>\n\nIn Switzerland."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "function": {"name": "where", "arguments": {"q": "Zürich", "n": None}}}
    ],
}
RESULT = {"role": "tool", "content": '{"at": "47.4°N"}'}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "where", "parameters": {"type": "object", "properties": {"q": {}}}},
    }
]

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [ASK, ANSWER]},
    "system": {"messages": [SYSTEM, ASK, ANSWER]},
    "two turns": {"messages": [ASK, ANSWER, ASK, THINK]},
    "think twice": {"messages": [ASK, THINK, ASK, THINK]},
    "tools": {"messages": [SYSTEM, ASK, CALL, RESULT, ANSWER], "tools": TOOLS},
    "two calls": {"messages": [ASK, CALL, RESULT, RESULT, ANSWER], "tools": TOOLS},
    "reasoning": {"messages": [ASK, {**ANSWER, "reasoning_content": "by the lake"}]},
    "older reasoning": {"messages": [ASK, {**ANSWER, "thinking": "by the lake", "name": None}]},
    "null content": {"messages": [ASK, {**CALL, "content": None}, RESULT, ANSWER]},
    "no content": {
        "messages": [ASK, {"role": "assistant", "tool_calls": CALL["tool_calls"]}, RESULT, ANSWER]
    },
    "kwargs": {"messages": [ASK, ANSWER], "chat_template_kwargs": {"enable_thinking": False}},
    "wrong order": {"messages": [ANSWER, ASK, ASK]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}, ANSWER]},
}


if not hasattr(transformers.utils.chat_template_utils, "_normalize_chat_messages"):
    # transformers filled `reasoning_content` from 5.21 and dropped null keys from 5.24.
    for label in ("older reasoning", "null content"):
        del CONVERSATIONS[label]


def _folders(tmp_path: Path) -> dict[str, Path]:
    folders = {family: write_tokenizer(tmp_path / family, family) for family in FAMILIES}
    for name in ("chatml", "headers-bos", "thinkstrip", "toolnone"):
        folders[name] = TOKENIZERS / name
    if SMOLLM2.is_dir():
        target = tmp_path / "smollm2"
        target.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(SMOLLM2 / name, target / name)
        folders["smollm2"] = target
    return folders


def _row(fields: dict[str, Any]) -> Row:
    return Row(0, "train.jsonl", 1, fields)


def test_ids_are_those_of_transformers(tmp_path: Path) -> None:
    compared = refused = 0
    for name, folder in _folders(tmp_path).items():
        ours = load_tokenizer(folder)
        theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
        for label, fields in CONVERSATIONS.items():
            conversation = conversation_of(_row(fields))
            kwargs = {"tools": fields.get("tools"), **fields.get("chat_template_kwargs", {})}
            for generation_prompt in (False, True):
                try:
                    text = theirs.apply_chat_template(
                        fields["messages"], tokenize=False, add_generation_prompt=generation_prompt, **kwargs
                    )
                except Exception:
                    with pytest.raises(TemplateRenderError):
                        render(
                            conversation,
                            ours,
                            add_generation_prompt=generation_prompt,
                            normalize_messages=True,
                        )
                    refused += 1
                    continue
                ids = theirs.apply_chat_template(
                    fields["messages"], add_generation_prompt=generation_prompt, **kwargs
                )["input_ids"]
                got = render(
                    conversation, ours, add_generation_prompt=generation_prompt, normalize_messages=True
                )
                assert got == text, (name, label)
                assert ours.encode(got, add_special_tokens=False) == ids, (name, label)
                compared += 1
    assert compared > 150, "most conversations render under most templates"
    assert refused > 10, "some templates refuse some conversations"


def test_plain_text_ids_are_those_of_transformers(tmp_path: Path) -> None:
    texts = ["", " ", "hello", "Q: Zürich?\nA: ", "<s>a</s>", "a<|im_end|>b", "\u200b é \U0001f600"]
    for name, folder in {**_folders(tmp_path), "base": TOKENIZERS / "base-padeos"}.items():
        ours = load_tokenizer(folder)
        theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
        for text in texts:
            assert ours.encode(text, add_special_tokens=True) == theirs(text)["input_ids"], (name, text)
            assert (
                ours.encode(text, add_special_tokens=False)
                == (theirs(text, add_special_tokens=False)["input_ids"])
            ), (name, text)
        assert ours.vocab_size == len(theirs), name
        assert ours.eos_token_id == theirs.eos_token_id, name
        assert ours.bos_token_id == theirs.bos_token_id, name
        assert ours.pad_token_id == theirs.pad_token_id, name
        assert dict(ours.special_tokens) == theirs.special_tokens_map, name


def test_the_post_processor_decides_about_bos_and_the_configuration_adds_tokens(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "mistral", "mistral")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"add_bos_token": True, "add_eos_token": True, "additional_special_tokens": ["<extra>"]}
    config["added_tokens_decoder"] = {
        "258": {"content": "<new>", "lstrip": True, "rstrip": False, "normalized": False, "special": False}
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ours = load_tokenizer(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    text = "a <new> b<extra>c"
    assert ours.encode(text, add_special_tokens=True) == theirs(text)["input_ids"]
    assert ours.encode("<new>", add_special_tokens=False) == [258]
    assert (ours.adds_bos, ours.adds_eos) == (False, False)
    assert ours.vocab_size == len(theirs) == 260
    headers = load_tokenizer(TOKENIZERS / "headers-bos")
    assert (headers.adds_bos, headers.adds_eos) == (True, False)


def test_assistant_mask_is_that_of_transformers(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "markers", "markers")
    ours = load_tokenizer(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    profile = TrainerProfile("trl", loss_on="assistant", assistant_mask="markers")
    for label in ("one turn", "system", "two turns", "wrong order", "think twice"):
        messages = CONVERSATIONS[label]["messages"]
        want = theirs.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        got = tokenize(conversation_of(_row(CONVERSATIONS[label])), ours, profile)
        assert got.ids.tolist() == want["input_ids"]
        assert got.loss_mask.tolist() == [bool(bit) for bit in want["assistant_masks"]], label
        assert got.loss_mask.any()


def test_prefix_mask_covers_the_marked_one(tmp_path: Path) -> None:
    """With markers around content and end of turn, prefixes add only the line break after the turn."""
    ours = load_tokenizer(write_tokenizer(tmp_path / "markers", "markers"))
    conversation = conversation_of(_row(CONVERSATIONS["two turns"]))
    marked = tokenize(conversation, ours, TrainerProfile("trl", assistant_mask="markers"))
    by_prefix = tokenize(conversation, ours, TrainerProfile("trl", assistant_mask="prefix"))
    extra = np.flatnonzero(by_prefix.loss_mask & ~marked.loss_mask)
    assert ours.decode(by_prefix.ids[extra].tolist()) == "\n\n"
    assert not (marked.loss_mask & ~by_prefix.loss_mask).any()


def test_prompt_ids_are_the_generation_prompt(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "qwen", "qwen")
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    conversation = Conversation(Shape.QUESTION_ANSWER, (Turn("user", "a?"), Turn("assistant", "b")), 1)
    assert (
        prompt_ids(conversation, load_tokenizer(folder))
        == (
            theirs.apply_chat_template([{"role": "user", "content": "a?"}], add_generation_prompt=True)[
                "input_ids"
            ]
        )
    )
