"""Ids, loss mask and cut as each trainer makes them, against rows worked by hand on byte-level tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradian.errors import GradianError, InputError, ModelError
from gradian.rows.profile import ASSUMED_PROFILE, TrainerProfile
from gradian.rows.row import Conversation, Row, Shape, TokenizedRow, Turn
from gradian.rows.shapes import conversation_of
from gradian.rows.template import TemplateRenderError
from gradian.rows.tokenizer import Tokenizer, load_tokenizer
from gradian.rows.tokens import answer_ids, prompt_ids, render, roles_alternate, tokenize, tokenize_many
from support.rows_tokenizers import TOKENIZERS

Load = Callable[[str], Tokenizer]
TRL = TrainerProfile("trl", loss_on="completion")


def conversation(**fields: Any) -> Conversation:
    return conversation_of(Row(0, "train.jsonl", 1, fields))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def targets(row: TokenizedRow, tokenizer: Tokenizer) -> str:
    """The text of the targets that remain."""
    return tokenizer.decode(row.ids[row.loss_mask].tolist())


def test_strings_are_concatenated_with_eos(fixture_tokenizer: Load) -> None:
    tokenizer = fixture_tokenizer("base-padeos")
    row = tokenize(conversation(prompt="Q: ab", completion=" c"), tokenizer, TRL)
    assert row.ids.tolist() == [*tokenizer.encode("Q: ab c", False), 256]
    assert tokenizer.decode(row.ids.tolist()) == "Q: ab c<|endoftext|>"
    assert row.loss_mask.tolist() == [False] * 5 + [True] * 3
    assert (row.full_tokens, row.full_loss_tokens, row.ends_with_stop) == (8, 3, True)
    assert not row.boundary_mismatch
    again = tokenize(conversation(prompt="Q: ab", completion=" c<|endoftext|>"), tokenizer, TRL)
    assert again.ids.tolist() == row.ids.tolist(), "EOS is not written twice"
    empty = tokenize(conversation(prompt="a<|endoftext|>", completion=""), tokenizer, TRL)
    assert tokenizer.decode(empty.ids.tolist()) == "a<|endoftext|><|endoftext|>", (
        "TRL looks at the completion"
    )


@pytest.mark.parametrize(
    ("rule", "text", "stops"),
    [
        ("none", "ab", False),
        ("append_text", "ab<|endoftext|>", True),
        ("append_id", "ab<|endoftext|>", True),
        ("append_if_room", "ab<|endoftext|>", True),
    ],
)
def test_end_of_text_rules_on_text_rows(fixture_tokenizer: Load, rule: Any, text: str, stops: bool) -> None:
    tokenizer = fixture_tokenizer("base-padeos")
    row = tokenize(conversation(text="ab"), tokenizer, replace(TRL, end_of_text=rule))
    assert tokenizer.decode(row.ids.tolist()) == text
    assert row.loss_mask.all()
    assert row.ends_with_stop is stops


def test_append_id_also_ends_chat_rows(fixture_tokenizer: Load) -> None:
    tokenizer = fixture_tokenizer("chatml")
    chat = conversation(messages=[user("a"), assistant("b")])
    profile = replace(TRL, loss_on="everything", end_of_text="append_id")
    row = tokenize(chat, tokenizer, profile)
    assert tokenizer.decode(row.ids.tolist()).endswith("b<|im_end|>\n<|im_end|>")
    assert (
        tokenize(chat, tokenizer, replace(profile, end_of_text="append_text")).ids.tolist()
        == row.ids.tolist()[:-1]
    )


def test_eos_if_room(fixture_tokenizer: Load) -> None:
    tokenizer = fixture_tokenizer("base-padeos")
    profile = replace(TRL, end_of_text="append_if_room", overflow="drop", max_length=4)
    fits = tokenize(conversation(text="abc"), tokenizer, profile)
    assert tokenizer.decode(fits.ids.tolist()) == "abc<|endoftext|>"
    full = tokenize(conversation(text="abcd"), tokenizer, profile)
    assert tokenizer.decode(full.ids.tolist()) == "abcd"
    assert full.cut
    assert full.dropped is None, "the tokenizer call has cut it before the length filter"


def test_the_profile_names_another_eos(fixture_tokenizer: Load) -> None:
    tokenizer = fixture_tokenizer("chatml")
    row = tokenize(conversation(text="a"), tokenizer, replace(TRL, eos_token="<|endoftext|>"))
    assert tokenizer.decode(row.ids.tolist()) == "a<|endoftext|>"
    assert row.ends_with_stop


def test_plain_text_gets_bos_and_chat_rows_the_templates(fixture_tokenizer: Load) -> None:
    tokenizer = fixture_tokenizer("headers-bos")
    bos = tokenizer.bos_token_id
    assert tokenize(conversation(text="a"), tokenizer, TRL).ids.tolist()[:2] == [
        bos,
        *tokenizer.encode("a", False),
    ]
    chat = conversation(messages=[user("a"), assistant("b")])
    one = tokenize(chat, tokenizer, TRL).ids.tolist()
    assert one.count(bos) == 1
    old = replace(TRL, chat_adds_special_tokens=True)
    assert tokenize(chat, tokenizer, old).ids.tolist() == [bos, *one]
    assert tokenize(chat, tokenizer, replace(old, removes_double_bos=True)).ids.tolist() == one
    text = conversation(text="<|begin_of_text|>a")
    assert tokenize(text, tokenizer, TRL).ids.tolist().count(bos) == 2
    assert tokenize(text, tokenizer, replace(TRL, removes_double_bos=True)).ids.tolist().count(bos) == 1


def test_conversational_completion_starts_after_the_generation_prompt(fixture_tokenizer: Load) -> None:
    tokenizer = fixture_tokenizer("chatml")
    row = tokenize(conversation(prompt=[user("a")], completion=[assistant("b")]), tokenizer, TRL)
    assert targets(row, tokenizer) == "b<|im_end|>\n"
    assert row.ends_with_stop
    whole = tokenize(conversation(messages=[user("a"), assistant("b")]), tokenizer, TRL)
    assert whole.ids.tolist() == row.ids.tolist()
    assert whole.loss_mask.all(), "messages are not split: TRL learns every token"


def test_a_token_that_merges_over_the_boundary(fixture_tokenizer: Load) -> None:
    tokenizer = fixture_tokenizer("merge-space")
    row = tokenize(conversation(prompt="A: ", completion="The end"), tokenizer, TRL)
    assert row.boundary_mismatch
    assert targets(row, tokenizer) == " The end<|endoftext|>", "the shared token belongs to the completion"
    moved = tokenize(conversation(prompt="A:", completion=" The end"), tokenizer, TRL)
    assert not moved.boundary_mismatch
    assert moved.ids.tolist() == row.ids.tolist()


def test_assistant_turns_by_prefix_and_by_markers(family_tokenizer: Load) -> None:
    tokenizer = family_tokenizer("markers")
    chat = conversation(messages=[user("a"), assistant("b"), user("c"), assistant("d")])
    by_prefix = tokenize(chat, tokenizer, ASSUMED_PROFILE)
    assert targets(by_prefix, tokenizer) == "b<|im_end|>\nd<|im_end|>\n"
    marked = tokenize(chat, tokenizer, replace(ASSUMED_PROFILE, assistant_mask="markers"))
    assert targets(marked, tokenizer) == "b<|im_end|>d<|im_end|>"
    for mask in ("prefix", "markers"):
        profile = replace(ASSUMED_PROFILE, assistant_mask=mask, train_on_turn_end=False)
        row = tokenize(chat, tokenizer, profile)
        assert targets(row, tokenizer) == "bd"
        assert not row.ends_with_stop


def test_markers_asked_of_a_template_without_any(fixture_tokenizer: Load) -> None:
    profile = replace(ASSUMED_PROFILE, assistant_mask="markers", drops_fully_masked=True)
    row = tokenize(conversation(messages=[user("a"), assistant("b")]), fixture_tokenizer("chatml"), profile)
    assert row.loss_tokens == row.full_loss_tokens == 0
    assert row.dropped == "no token to learn"


def test_split_rows_learn_only_the_completion_of_the_assistant(fixture_tokenizer: Load) -> None:
    """TRL joins completion_mask and assistant_masks with `and`."""
    tokenizer = fixture_tokenizer("chatml")
    shots = [user("a"), assistant("b"), user("c")]
    row = tokenize(conversation(prompt=shots, completion=[assistant("d")]), tokenizer, ASSUMED_PROFILE)
    assert targets(row, tokenizer) == "d<|im_end|>\n"


def test_a_template_that_renders_earlier_turns_otherwise(family_tokenizer: Load) -> None:
    tokenizer = family_tokenizer("qwen")
    chat = conversation(
        messages=[
            user("a"),
            assistant("<think>\nx\n</think>\n\nb"),
            user("c"),
            assistant("<think>\ny\n</think>\n\nd"),
        ]
    )
    row = tokenize(chat, tokenizer, ASSUMED_PROFILE)
    assert targets(row, tokenizer) == "b<|im_end|><think>\ny\n</think>\n\nd<|im_end|>\n"
    assert not row.boundary_mismatch


def test_a_template_that_closes_the_last_turn_otherwise(family_tokenizer: Load) -> None:
    """As gpt-oss: the last answer ends with one token, those before it with another."""
    tokenizer = family_tokenizer("phi").with_template(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        "{% if not loop.last %}<|end|>{% elif m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|end|><|assistant|>{% endif %}"
    )
    chat = conversation(messages=[user("a"), assistant("b"), user("c"), assistant("d")])
    row = tokenize(chat, tokenizer, ASSUMED_PROFILE)
    assert targets(row, tokenizer) == "b<|end|>d<|endoftext|>"
    phi = family_tokenizer("phi")
    assert targets(tokenize(chat, phi, ASSUMED_PROFILE), phi) == "b<|end|>d<|end|>\n<|endoftext|>"


def test_a_generation_prompt_that_the_row_does_not_have(family_tokenizer: Load) -> None:
    tokenizer = family_tokenizer("qwen")
    turns = (Turn("user", "a"), Turn("assistant", "<think>\ny\n</think>\n\nd"))
    chat = Conversation(Shape.MESSAGES, turns, template_kwargs={"enable_thinking": False})
    row = tokenize(chat, tokenizer, ASSUMED_PROFILE)
    assert row.boundary_mismatch
    assert targets(row, tokenizer) == "y\n</think>\n\nd<|im_end|>\n"


def test_tool_calls_are_targets(family_tokenizer: Load) -> None:
    tokenizer = family_tokenizer("qwen")
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}
    chat = conversation(
        messages=[user("a"), call, {"role": "tool", "content": "r"}, assistant("b")], tools='[{"name": "f"}]'
    )
    row = tokenize(chat, tokenizer, ASSUMED_PROFILE)
    text = targets(row, tokenizer)
    assert '{"name": "f", "arguments": {"x": 1}}' in text
    assert text.endswith("b<|im_end|>\n")
    assert "<tool_response>" not in text
    assert '{"name": "f"}\n</tools>' in tokenizer.decode(row.ids.tolist())


def test_a_fully_masked_row_is_dropped_only_where_the_trainer_does(fixture_tokenizer: Load) -> None:
    tokenizer = fixture_tokenizer("base-padeos")
    row = conversation(prompt="abcdef", completion="g")
    cut = replace(TRL, max_length=5, overflow="truncate_end")
    assert tokenize(row, tokenizer, cut).loss_tokens == 0
    assert tokenize(row, tokenizer, cut).lost_loss_tokens == 2
    assert tokenize(row, tokenizer, cut).dropped is None
    assert tokenize(row, tokenizer, replace(cut, drops_fully_masked=True)).dropped == "no token to learn"
    kept_end = replace(cut, drops_fully_masked=True, overflow="truncate_start")
    assert tokenize(row, tokenizer, kept_end).dropped is None


def test_too_long_rows_are_dropped_whole(fixture_tokenizer: Load) -> None:
    tokenizer = fixture_tokenizer("base-padeos")
    profile = replace(TRL, max_length=5, overflow="drop")
    row = tokenize(conversation(text="abcdef"), tokenizer, profile)
    assert (row.dropped, len(row.ids), row.cut) == ("too long", 7, False)
    assert tokenize(conversation(text="abcd"), tokenizer, profile).dropped is None


def test_torchtune_replaces_the_last_token(fixture_tokenizer: Load) -> None:
    tokenizer = fixture_tokenizer("chatml")
    profile = TrainerProfile("torchtune", max_length=30, overflow="truncate_end_keep_eos", end_of_text="none")
    row = tokenize(conversation(messages=[user("a"), assistant("b" * 50)]), tokenizer, profile)
    assert len(row.ids) == 30
    assert row.ids[-1] == tokenizer.eos_token_id
    assert bool(row.loss_mask[-1])


def test_llama_factory_cuts_in_proportion_and_templates_strings(fixture_tokenizer: Load) -> None:
    tokenizer = fixture_tokenizer("chatml")
    profile = TrainerProfile(
        "llama_factory", max_length=20, overflow="truncate_proportional", role_order="skip"
    )
    row = tokenize(conversation(prompt="a" * 40, completion="b" * 40), tokenizer, profile)
    # Prompt: 1 + "user\n" 5 + 40 + 1 + 1 + 1 + "assistant\n" 10 = 59 tokens. Answer: 40 + 1 + 1 = 42.
    assert (row.full_tokens, row.full_loss_tokens) == (101, 42)
    # Both are at least half the limit: int(20 * 42 / 101) = 8 answer tokens, 12 of the prompt.
    assert (len(row.ids), row.loss_tokens) == (20, 8)
    assert tokenizer.decode(row.ids.tolist()) == "<|im_start|>user\naaaaaabbbbbbbb"


@pytest.mark.parametrize(
    ("roles", "fine"),
    [
        ("ua", True),
        ("sua", True),
        ("uaua", True),
        ("uata", True),
        ("", True),
        ("u", False),
        ("uau", False),
        ("au", False),
        ("uuaa", False),
        ("usa", False),
        ("uattaa", False),
    ],
)
def test_role_order(fixture_tokenizer: Load, roles: str, fine: bool) -> None:
    names = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}
    turns = tuple(Turn(names[role], "x") for role in roles)
    assert roles_alternate(turns) is fine
    if roles:
        profile = TrainerProfile("llama_factory", role_order="skip")
        row = tokenize(Conversation(Shape.MESSAGES, turns), fixture_tokenizer("chatml"), profile)
        assert row.dropped == (None if fine else "role order")
        accepts = replace(profile, role_order="accept")
        assert (
            tokenize(Conversation(Shape.MESSAGES, turns), fixture_tokenizer("chatml"), accepts).dropped
            is None
        )


def test_without_a_template_chat_rows_are_refused(fixture_tokenizer: Load) -> None:
    tokenizer = fixture_tokenizer("base-padeos")
    with pytest.raises(ModelError, match="no chat template"):
        tokenize(conversation(question="a", answer="b"), tokenizer, TRL)
    with pytest.raises(ModelError, match="chat_template"):
        prompt_ids(conversation(messages=[user("a"), assistant("b")]), tokenizer)


def test_null_keys_and_reasoning_names(family_tokenizer: Load, fixture_tokenizer: Load) -> None:
    named = conversation(messages=[{**user("a"), "name": None}, assistant("b")])
    tokenizer = fixture_tokenizer("toolnone")
    assert "name: None" in render(named, tokenizer)
    assert "name: None" not in render(named, tokenizer, normalize_messages=True)
    profile = replace(TRL, normalizes_messages=True)
    assert "None" not in tokenizer.decode(tokenize(named, tokenizer, profile).ids.tolist())
    thinking = conversation(messages=[user("a"), {**assistant("b"), "thinking": "why"}])
    qwen = family_tokenizer("qwen")
    assert "why" not in render(thinking, qwen)
    assert "<think>\nwhy\n</think>" in render(thinking, qwen, normalize_messages=True)


def test_template_kwargs_of_a_row_cannot_replace_its_messages(fixture_tokenizer: Load) -> None:
    row = conversation(
        messages=[user("a"), assistant("b")],
        chat_template_kwargs={
            "messages": [user("other")],
            "tools": [{"name": "f"}],
            "add_generation_prompt": True,
        },
    )
    assert (
        render(row, fixture_tokenizer("chatml"))
        == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
    )


@pytest.mark.parametrize(
    "name", ["chatml", "headers-bos", "llama3", "qwen", "gemma", "mistral", "phi", "markers"]
)
def test_prompt_and_answer_of_an_item(family_tokenizer: Load, fixture_tokenizer: Load, name: str) -> None:
    tokenizer = (fixture_tokenizer if (TOKENIZERS / name).is_dir() else family_tokenizer)(name)
    item = conversation(question="What?", answer="wanted")
    prompt = prompt_ids(item, tokenizer)
    answer = answer_ids(item, tokenizer, "That.")
    text = tokenizer.decode(prompt + answer)
    assert tokenizer.decode(prompt).count("What?") == 1
    assert "wanted" not in text
    assert answer[-1] in tokenizer.stop_ids
    assert sum(token_id in tokenizer.stop_ids for token_id in answer) == 1
    assert tokenizer.decode(answer[:-1]).strip().endswith("That.")
    whole = tokenize(conversation(question="What?", answer="That."), tokenizer, ASSUMED_PROFILE)
    if prompt == whole.ids.tolist()[: len(prompt)]:
        assert (prompt + answer) == whole.ids.tolist()[: len(prompt) + len(answer)], "as it was trained"


def test_item_of_strings_and_of_messages(fixture_tokenizer: Load) -> None:
    base = fixture_tokenizer("base-padeos")
    item = conversation(prompt="Q: a\nA:", completion=" b")
    assert base.decode(prompt_ids(item, base)) == "Q: a\nA:"
    assert base.decode(answer_ids(item, base, " c")) == " c<|endoftext|>"
    assert base.decode(answer_ids(item, base, " c<|endoftext|>")) == " c<|endoftext|>"
    merged = fixture_tokenizer("merge-space")
    spaced = conversation(prompt="A: ", completion="The end")
    assert merged.decode(answer_ids(spaced, merged, "The end")) == "The end<|endoftext|>"
    chatml = fixture_tokenizer("chatml")
    chat = conversation(messages=[user("a"), assistant("b"), user("c"), assistant("d")])
    assert chatml.decode(prompt_ids(chat, chatml)).endswith("c<|im_end|>\n<|im_start|>assistant\n")
    open_chat = conversation(messages=[user("a")])
    assert chatml.decode(answer_ids(open_chat, chatml, "")) == "<|im_end|>"


@pytest.mark.parametrize("fields", [{"text": "a"}, {"messages": [assistant("a")]}, {"x": "y"}])
def test_an_item_needs_a_prompt(fixture_tokenizer: Load, fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no prompt"):
        prompt_ids(conversation(**fields), fixture_tokenizer("chatml"))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["<|im_end|>", "</think>", " ", "\n", "a<|im_start|>b"]
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool", "x"]), "content": TEXTS}
    ),
    min_size=1,
    max_size=5,
)
FIELDS = st.one_of(
    st.fixed_dictionaries({"messages": MESSAGES}),
    st.fixed_dictionaries({"prompt": MESSAGES, "completion": MESSAGES}),
    st.fixed_dictionaries({"prompt": TEXTS, "completion": TEXTS}),
    st.fixed_dictionaries({"text": TEXTS}),
    st.fixed_dictionaries({"question": TEXTS, "answer": TEXTS, "system": TEXTS}),
)
PROFILES = st.builds(
    TrainerProfile,
    st.sampled_from(["trl", "llama_factory"]),
    max_length=st.none() | st.integers(1, 60),
    overflow=st.sampled_from(
        [
            "keep",
            "truncate_end",
            "truncate_start",
            "truncate_end_keep_eos",
            "truncate_proportional",
            "drop",
            "split",
        ]
    ),
    end_of_text=st.sampled_from(["none", "append_text", "append_id", "append_if_room"]),
    loss_on=st.sampled_from(["everything", "completion", "assistant"]),
    assistant_mask=st.sampled_from(["markers", "prefix"]),
    train_on_turn_end=st.booleans(),
    drops_fully_masked=st.booleans(),
    removes_double_bos=st.booleans(),
    chat_adds_special_tokens=st.booleans(),
    normalizes_messages=st.booleans(),
    role_order=st.sampled_from(["accept", "skip"]),
)
LOADED = {name: load_tokenizer(TOKENIZERS / name) for name in ("chatml", "headers-bos", "thinkstrip")}


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    fields=st.lists(FIELDS, min_size=1, max_size=6), profile=PROFILES, name=st.sampled_from(sorted(LOADED))
)
def test_properties_of_tokenised_rows(
    fields: list[dict[str, Any]], profile: TrainerProfile, name: str
) -> None:
    tokenizer = LOADED[name]
    conversations = [conversation(**item) for item in fields]
    together = tokenize_many(conversations, tokenizer, profile)
    for item, row in zip(conversations, together, strict=True):
        alone = tokenize(item, tokenizer, profile)
        assert np.array_equal(alone.ids, row.ids)
        assert np.array_equal(alone.loss_mask, row.loss_mask)
        assert replace(alone, ids=row.ids, loss_mask=row.loss_mask) == row
        assert row.ids.dtype == np.int32
        assert row.loss_mask.dtype == np.bool_
        assert len(row.ids) == len(row.loss_mask) <= row.full_tokens
        assert row.loss_tokens <= row.full_loss_tokens
        if profile.max_length is not None and profile.overflow.startswith("truncate"):
            assert len(row.ids) <= profile.max_length
        if profile.overflow in ("keep", "split"):
            assert not row.cut
        if profile.loss_on == "everything":
            assert row.full_loss_tokens == row.full_tokens


def test_a_template_that_refuses_a_row_names_it(family_tokenizer: Load) -> None:
    tokenizer = family_tokenizer("gemma")
    rows = [
        conversation(question="a", answer="b"),
        conversation(messages=[{"role": "system", "content": "s"}]),
    ]
    with pytest.raises(TemplateRenderError, match=r"train\.jsonl:9: .*\n.*System role not supported"):
        tokenize_many(rows, tokenizer, TRL, wheres=["train.jsonl:7", "train.jsonl:9"])


def test_a_training_set_names_the_row_that_its_template_refuses(tmp_path: Path) -> None:
    from gradian.rows.training_set import read_training_set

    tokenizer = load_tokenizer(str(TOKENIZERS / "chatml")).with_template(
        "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "{{ m['content'] }}{% endfor %}"
    )
    talks = [
        [{"role": "user", "content": "a"}, {"role": role, "content": "b"}] for role in ("assistant", "tool")
    ]
    rows = [{"messages": talk} for talk in talks]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(GradianError, match=r"rows\.jsonl:2"):
        read_training_set(path, tokenizer, TrainerProfile(trainer="trl"))
