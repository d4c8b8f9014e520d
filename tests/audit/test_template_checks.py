"""Template checks where they must fire, and where they must not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradian.audit.bundled import swaps_template
from gradian.audit.checks.template_content import lost_content
from gradian.rows.profile import TrainerProfile
from gradian.rows.row import Conversation, Shape, Turn
from gradian.rows.tokenizer import Tokenizer, load_tokenizer
from support.auditing import TOKENIZERS, TRL, audited, chat, finding, ids, pair

ASSISTANT = replace(TRL, loss_on="assistant")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}"
    "{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
UNTRAINED_STOP = MARKED.replace(
    "{{ m['content'] + '<|im_end|>' }}{% endgeneration %}",
    "{{ m['content'] }}{% endgeneration %}{{ '<|im_end|>' }}",
)


def with_template(source: str) -> Tokenizer:
    return load_tokenizer(str(TOKENIZERS / "chatml")).with_template(source)


def rows(count: int = 4, **extra: Any) -> list[dict[str, Any]]:
    return [chat(f"Is gate {i} open?", f"Gate {i} is open.", **extra) for i in range(count)]


def test_missing(tmp_path: Path) -> None:
    found = finding(audited(tmp_path, rows(), tokenizer="base-padeos"), "template.missing")
    assert found.count == 4
    assert "template.missing" not in ids(audited(tmp_path, rows()))
    assert "template.missing" not in ids(audited(tmp_path, [pair("a", "b")], tokenizer="base-padeos"))


def test_a_missing_template_has_one_headline(tmp_path: Path) -> None:
    result = audited(tmp_path, rows(), tokenizer="base-padeos")
    assert "template.missing" in {f.id for f in result.headlines}
    assert not {"template.render_error", "data.no_trainable_tokens"} & {f.id for f in result.headlines}


def test_render_error_by_share(tmp_path: Path) -> None:
    strict = with_template(
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
    )
    few = audited(tmp_path, [*rows(30), chat("Q?", "A.", system="s")], tokenizer=strict)
    found = finding(few, "template.render_error")
    assert found.rows == (30,)
    assert "no system role" in found.message
    assert found.severity.value == "warning"
    assert few.facts["dataset"]["not_tokenised"] == 1
    many = audited(tmp_path, [*rows(2), chat("Q?", "A.", system="s")], tokenizer=strict)
    assert finding(many, "template.render_error").severity.value == "error"


def test_no_generation_markers(tmp_path: Path) -> None:
    assert (
        finding(audited(tmp_path, rows(), profile=ASSISTANT), "template.no_generation_markers").severity.value
        == "error"
    )
    marked = audited(tmp_path, rows(), profile=ASSISTANT, tokenizer=with_template(MARKED))
    assert not {"template.no_generation_markers", "data.no_trainable_tokens"} & ids(marked)
    prefix = audited(tmp_path, rows(), profile=replace(ASSISTANT, assistant_mask="prefix"))
    assert "template.no_generation_markers" not in ids(prefix)
    assert "template.no_generation_markers" not in ids(audited(tmp_path, rows()))


def test_a_template_that_trl_swaps_is_known_by_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    from gradian.audit import bundled

    digest = hashlib.sha256(CHATML.encode()).hexdigest()
    monkeypatch.setattr(bundled, "_digests", lambda: frozenset({digest}))
    assert swaps_template(replace(TRL, version="1.1.0"), CHATML)
    assert not swaps_template(replace(TRL, version="1.0.2"), CHATML)
    assert not swaps_template(replace(TRL, version=None), CHATML)
    assert not swaps_template(replace(TRL, trainer="axolotl"), CHATML)
    assert swaps_template(TRL, f"{CHATML}\n")  # white space at the ends does not count
    assert not swaps_template(TRL, MARKED)


def test_the_digests_are_shipped() -> None:
    from gradian.audit import bundled

    assert len(bundled._digests()) >= 25
    assert all(len(digest) == 64 for digest in bundled._digests())


def test_a_stop_token_outside_the_generation_block(tmp_path: Path) -> None:
    found = finding(
        audited(tmp_path, rows(), profile=ASSISTANT, tokenizer=with_template(UNTRAINED_STOP)),
        "template.stop_token_not_trained",
    )
    assert "<|im_end|>" in found.title
    trained = audited(tmp_path, rows(), profile=ASSISTANT, tokenizer=with_template(MARKED))
    assert "template.stop_token_not_trained" not in ids(trained)
    prefix = audited(tmp_path, rows(), profile=replace(ASSISTANT, assistant_mask="prefix"))
    assert "template.stop_token_not_trained" not in ids(prefix)


def test_axolotl_without_turn_ends(tmp_path: Path) -> None:
    profile = TrainerProfile("axolotl", loss_on="assistant", train_on_turn_end=False)
    found = finding(audited(tmp_path, rows(), profile=profile), "template.stop_token_not_trained")
    assert found.fix is not None
    assert (found.fix.key, found.fix.to) == ("train_on_eos", "turn")


def test_loss_on_prompt(tmp_path: Path) -> None:
    even = [chat("A question of some length here?", "A short one.") for _ in range(3)]
    assert finding(audited(tmp_path, even), "template.loss_on_prompt").severity.value == "info"
    long = [chat("A question " * 30, "Yes.") for _ in range(3)]
    assert finding(audited(tmp_path, long), "template.loss_on_prompt").severity.value == "warning"
    assert "template.loss_on_prompt" not in ids(
        audited(tmp_path, long, profile=replace(ASSISTANT, assistant_mask="prefix"))
    )
    split = [pair("A question " * 30, " Yes.")]
    assert "template.loss_on_prompt" not in ids(audited(tmp_path, split))
    everything = audited(tmp_path, split, profile=replace(TRL, loss_on="everything"))
    found = finding(everything, "template.loss_on_prompt")
    assert found.fix is not None
    assert found.fix.key == "completion_only_loss"
    assert "template.loss_on_prompt" not in ids(audited(tmp_path, long, profile=None))


def test_response_marker(tmp_path: Path) -> None:
    data = [chat(f"Gate {i}?", f"It is open, number {i}.") for i in range(10)]
    good = audited(tmp_path, data, response_marker="<|im_start|>assistant\n")
    assert "template.response_marker_missing" not in ids(good)
    bad = finding(audited(tmp_path, data, response_marker="### Answer:"), "template.response_marker_missing")
    assert bad.rows == tuple(range(10))
    assert bad.fix is not None
    assert "assistant" in str(bad.fix.to)
    assert "template.response_marker_missing" not in ids(audited(tmp_path, data))


@pytest.mark.parametrize(
    ("name", "fires"),
    [("llama3", True), ("qwen", False), ("chatml", False), ("gemma", True), ("unheard_of", False)],
)
def test_named_template(tmp_path: Path, name: str, fires: bool) -> None:
    result = audited(tmp_path, rows(), settings={"template": name})
    assert ("template.name_mismatch" in ids(result)) is fires


# -- content ------------------------------------------------------------------------------------------------

THINKING = chat(
    "First?", "<think>\nRule one.\n</think>\n\nYes.", "Second?", "<think>\nRule two.\n</think>\n\nNo."
)


def test_content_dropped_only_where_it_is(tmp_path: Path) -> None:
    result = audited(tmp_path, [*rows(6), THINKING], tokenizer="thinkstrip")
    found = finding(result, "template.content_dropped")
    assert found.rows == (6,)
    assert found.values["message_index"] == 1
    assert "Rule one." in found.values["sample"]
    assert "template.content_dropped" not in ids(audited(tmp_path, [*rows(6), THINKING]))


def test_a_reasoning_key_that_the_template_ignores(tmp_path: Path) -> None:
    row = chat("First?", "Yes.")
    row["messages"][1]["thinking"] = "Rule one applies here."
    found = finding(audited(tmp_path, [row]), "template.content_dropped")
    assert found.values["field"] == "thinking"
    assert found.fix is not None
    assert "'reasoning_content'" in found.fix.text


def test_a_template_without_system_turns_drops_them(tmp_path: Path) -> None:
    silent = with_template(
        CHATML.replace("{% for m in messages %}", "{% for m in messages if m['role'] != 'system' %}")
    )
    found = finding(
        audited(tmp_path, rows(system="Be a clerk."), tokenizer=silent), "template.content_dropped"
    )
    assert found.values["role"] == "system"


def test_tool_calls_that_the_template_leaves_out(tmp_path: Path) -> None:
    call = {"id": "1", "function": {"name": "read_gauge", "arguments": "{}"}}
    row = chat("How high is the tide?", "")
    row["messages"][1]["tool_calls"] = [call]
    found = finding(audited(tmp_path, [row]), "template.content_dropped")
    assert found.values["field"] == "tool_calls"
    assert "read_gauge" in found.message
    writing = with_template(
        CHATML.replace(
            "m['content'] +", "m['content'] + (m['tool_calls']|tojson if 'tool_calls' in m else '') +"
        )
    )
    assert "template.content_dropped" not in ids(audited(tmp_path, [row], tokenizer=writing))


def test_trimming_and_escaping_are_no_loss() -> None:
    turns = (Turn("user", "  two   words \n"), Turn("assistant", 'say "hi"\nplease'))
    conversation = Conversation(Shape.MESSAGES, turns)
    assert lost_content(conversation, 'user: two words\nassistant: say "hi" please') == []
    assert lost_content(conversation, 'user: two words {"a": "say \\"hi\\" please"}') == []
    assert [piece.turn for piece in lost_content(conversation, "user: two words")] == [1]


def test_null_keys_that_are_written(tmp_path: Path) -> None:
    row = chat("First?", "Yes.")
    for message in row["messages"]:
        message["name"] = None
    writes = with_template(
        CHATML.replace("m['content'] +", "m['content'] + (m['name']|string if 'name' in m else '') +")
    )
    found = finding(audited(tmp_path, [row], tokenizer=writes), "template.renders_null")
    assert "'name'" in found.message
    assert "template.renders_null" not in ids(audited(tmp_path, [row]))
    says_none = chat("First?", "None of them.")
    assert "template.renders_null" not in ids(audited(tmp_path, [says_none], tokenizer=writes))


def test_an_injected_system_text(tmp_path: Path) -> None:
    turn = "<|im_start|>system\\nYou are a helpful clerk.<|im_end|>\\n"
    injecting = with_template(
        "{% if messages[0]['role'] != 'system' %}{{ '" + turn + "' }}{% endif %}" + CHATML
    )
    found = finding(audited(tmp_path, rows(), tokenizer=injecting), "template.default_system_injected")
    assert found.values["text"] == "You are a helpful clerk."
    assert "template.default_system_injected" not in ids(audited(tmp_path, rows()))
    given = audited(tmp_path, rows(system="Be a clerk."), tokenizer=injecting)
    assert "template.default_system_injected" not in ids(given)


def test_reasoning_templates(tmp_path: Path) -> None:
    thinking = with_template(CHATML + "{# enable_thinking #}")
    mixed = [*rows(5), *([chat("Q?", "<think>a</think> B.")] * 5)]
    assert (
        finding(audited(tmp_path, mixed, tokenizer=thinking), "template.think_mismatch").severity.value
        == "warning"
    )
    assert (
        finding(audited(tmp_path, rows(), tokenizer=thinking), "template.think_mismatch").severity.value
        == "info"
    )
    assert "template.think_mismatch" not in ids(audited(tmp_path, [THINKING], tokenizer=thinking))
    assert "template.think_mismatch" not in ids(audited(tmp_path, mixed))


def test_a_generation_prompt_that_the_rows_do_not_begin_with(tmp_path: Path) -> None:
    plain, opening = "assistant\\n' }}{% endif %}", "assistant\\n<think>\\n' }}{% endif %}"
    opens = with_template(CHATML.replace(plain, opening))
    assert opens.template is not None
    assert "<think>" in opens.template.source
    data = [
        {
            "prompt": [{"role": "user", "content": f"Q{i}?"}],
            "completion": [{"role": "assistant", "content": "A."}],
        }
        for i in range(5)
    ]
    found = finding(audited(tmp_path, data, tokenizer=opens), "template.generation_prompt_mismatch")
    assert found.count == 5
    assert found.values["prompt"].startswith("<think>")
    assert "template.generation_prompt_mismatch" not in ids(audited(tmp_path, data))


# -- run and base -------------------------------------------------------------------------------------------


def mismatch(tmp_path: Path, run_template: str) -> Any:
    from gradian.audit.runner import audit
    from support.auditing import context_for

    context, checks = context_for(tmp_path, rows(), select=["run.chat_template"])
    assert context.run is not None
    context.preset(run=replace(context.run, chat_template=run_template))
    return audit(context, checks)


def test_a_training_variant_renders_alike(tmp_path: Path) -> None:
    assert ids(mismatch(tmp_path, MARKED)) == set()


def test_another_opening_with_the_same_vocabulary_is_an_error(tmp_path: Path) -> None:
    result = mismatch(tmp_path, CHATML.replace("<|im_start|>assistant", "<|im_start|>bot"))
    assert finding(result, "run.chat_template_mismatch").severity.value == "error"


def test_another_text_before_the_same_opening_is_a_warning(tmp_path: Path) -> None:
    result = mismatch(tmp_path, "{{ 'Preface. ' }}" + CHATML)
    assert finding(result, "run.chat_template_mismatch").severity.value == "warning"
