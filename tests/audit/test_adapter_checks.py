"""Each check on the adapter's files where it must fire, and where it must not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from gradian.audit.finding import Finding
from support.auditing import TOKENIZERS, finding, ids, pair
from support.run_folders import (
    MODULES,
    base_folder,
    diagnosed,
    log_lines,
    sound_tensors,
    write_adapter,
    write_run,
    write_safetensors,
    write_state,
)

PREFIX = "base_model.model."


def found(tmp_path: Path, id: str, **run: Any) -> Finding | None:
    given = {name: run.pop(name) for name in ("rows", "base") if name in run}
    result = diagnosed(write_run(tmp_path / "run", **run), id, **given)
    return finding(result, id) if ids(result) else None


def renamed(old: str, new: str) -> dict[str, np.ndarray]:
    return {name.replace(old, new): array for name, array in sound_tensors().items()}


# There, and readable


def test_missing_weights(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "adapter_model.safetensors").unlink()
    raised = finding(diagnosed(run, "adapter."), "adapter.missing")
    assert raised.severity.value == "error"
    assert ids(diagnosed(run, "adapter.")) == {"adapter.missing"}


def test_a_pickled_adapter_is_info_and_not_opened(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "adapter_model.safetensors").unlink()
    (run / "adapter_model.bin").write_bytes(b"cposix\nmkdir\n(S'GRADIAN_CANARY_DIR'\ntR.")
    raised = finding(diagnosed(run, "adapter.", "run."), "adapter.missing")
    assert raised.severity.value == "info"
    assert "pickle" in raised.title
    assert ids(diagnosed(run, "adapter.", "run.")) == {"adapter.missing"}


def test_before_training_nothing_is_missing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", with_adapter=False, lines=[])
    result = diagnosed(run, "adapter.", "logs.")
    assert ids(result) == set()
    assert result.checks_run == ()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"<html>not found</html>", "copy"),
        (b"", "copy"),
    ],
)
def test_unreadable(tmp_path: Path, content: bytes, says: str) -> None:
    run = write_run(tmp_path / "run")
    (run / "adapter_model.safetensors").write_bytes(content)
    raised = finding(diagnosed(run, "adapter.", "run.unreadable"), "adapter.unreadable")
    assert raised.severity.value == "error"
    assert raised.fix is not None
    assert says in raised.fix.text
    assert ids(diagnosed(run, "adapter.", "run.unreadable")) == {"adapter.unreadable"}


def test_cut_short(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    path = run / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "cut short" in finding(diagnosed(run, "adapter."), "adapter.unreadable").title


def test_no_tensors(tmp_path: Path) -> None:
    raised = found(tmp_path, "adapter.no_tensors", tensors={})
    assert raised is not None
    assert "0 tensors (10 bytes); adapter_config.json expects 7 target modules" in raised.title


def test_empty_shards_of_zero_3(tmp_path: Path) -> None:
    tensors = {name: np.zeros((0,), np.float32) for name in sound_tensors()}
    raised = found(tmp_path, "adapter.no_tensors", tensors=tensors)
    assert raised is not None
    assert raised.fix is not None
    assert "stage3_gather" in raised.fix.text
    both = diagnosed(tmp_path / "run", "adapter.")
    assert {found.id for found in both.headlines} == {"adapter.no_tensors"}


# Values


def zero_b(tensors: dict[str, np.ndarray], which: str = "") -> dict[str, np.ndarray]:
    return {
        name: np.zeros_like(array) if "lora_B" in name and which in name else array
        for name, array in tensors.items()
    }


def test_all_b_zero(tmp_path: Path) -> None:
    raised = found(tmp_path, "adapter.zero_b", tensors=zero_b(sound_tensors()))
    assert raised is not None
    assert raised.severity.value == "error"
    assert "14 of 14" in raised.title
    assert "something else was saved" in raised.message  # the log's loss fell


def test_all_b_zero_in_half_precision(tmp_path: Path) -> None:
    tensors = {name: array.astype(np.float16) for name, array in zero_b(sound_tensors()).items()}
    assert found(tmp_path, "adapter.zero_b", tensors=tensors) is not None


@pytest.mark.parametrize("init", [True, "gaussian", "pissa", "olora", False])
def test_trained_b_is_silent_for_every_initialisation(tmp_path: Path, init: object) -> None:
    assert found(tmp_path, "adapter.zero_b", adapter={"init_lora_weights": init}) is None


def test_some_b_zero(tmp_path: Path) -> None:
    raised = found(tmp_path / "a", "adapter.zero_b", tensors=zero_b(sound_tensors(), "layers.1."))
    assert raised is not None
    assert raised.severity.value == "warning"
    assert "7 of 14" in raised.title
    assert "layers 1" in raised.title
    experts = {name.replace("mlp.up_proj", "mlp.experts.3.up_proj"): a for name, a in sound_tensors().items()}
    idle = found(tmp_path / "b", "adapter.zero_b", tensors=zero_b(experts, "experts"))
    assert idle is not None
    assert idle.severity.value == "info"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("matrix", ["lora_A", "lora_B"])
def test_nan(tmp_path: Path, value: float, matrix: str) -> None:
    tensors = sound_tensors()
    name = f"{PREFIX}model.layers.1.mlp.up_proj.{matrix}.weight"
    tensors[name] = tensors[name].copy()
    tensors[name].flat[3] = value
    raised = found(tmp_path, "adapter.nan", tensors=tensors)
    assert raised is not None
    assert raised.severity.value == "error"
    assert raised.title.startswith("1 NaN or infinite values in 1 of 28")


def test_nan_names_a_sound_checkpoint(tmp_path: Path) -> None:
    tensors = {name: np.full_like(array, np.nan) for name, array in sound_tensors().items()}
    run = write_run(tmp_path / "run", tensors=tensors)
    write_adapter(run / "checkpoint-10")
    write_adapter(run / "checkpoint-20", tensors)
    raised = finding(diagnosed(run, "adapter.nan"), "adapter.nan")
    assert raised.fix is not None
    assert raised.fix.text == "go on from checkpoint-10, in bf16"
    assert found(tmp_path / "sound", "adapter.nan") is None


@pytest.mark.parametrize(
    ("factor", "steps", "fires"), [(1e-4, 40, True), (1e-4, 10, False), (1.0, 40, False), (1e-2, 40, False)]
)
def test_tiny_update(tmp_path: Path, factor: float, steps: int, fires: bool) -> None:
    tensors = {n: a * factor if "lora_B" in n else a for n, a in sound_tensors().items()}
    tensors = {n: a.astype(np.float32) for n, a in tensors.items()}
    raised = found(tmp_path, "adapter.tiny_update", tensors=tensors, lines=log_lines([1.0] * steps))
    assert (raised is not None) is fires


@pytest.mark.parametrize(
    ("factor", "which", "fires"), [(2000, "", True), (100, "layers.1.mlp.up", True), (3, "", False)]
)
def test_exploded(tmp_path: Path, factor: float, which: str, fires: bool) -> None:
    tensors = {
        n: (a * factor).astype(np.float32) if "lora_B" in n and which in n else a
        for n, a in sound_tensors(layers=5).items()
    }
    assert (found(tmp_path, "adapter.exploded", tensors=tensors) is not None) is fires


# Names


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("base_model.model.", "base_model.model._orig_mod.", "remove '._orig_mod'"),
        ("base_model.model.", "module.base_model.model.", "remove the prefix 'module.'"),
        ("base_model.model.", "", "add the prefix 'base_model.model.'"),
        ("lora_A.weight", "lora_A.default.weight", "remove '.default'"),
        (".self_attn.", ".inner.self_attn.", "remove '.inner'"),
        (".q_proj.", ".q_proj.base_layer.", "remove '.base_layer'"),
        ("lora_B.weight", "lora_B", "add the suffix '.weight'"),
    ],
)
def test_unexpected_keys(tmp_path: Path, old: str, new: str, rule: str) -> None:
    raised = found(tmp_path, "adapter.unexpected_keys", tensors=renamed(old, new))
    assert raised is not None
    assert raised.severity.value == "error"
    assert raised.fix is not None
    assert raised.fix.text == f"rename: {rule}"


def test_names_that_are_no_lora(tmp_path: Path) -> None:
    tensors = {**sound_tensors(), f"{PREFIX}model.layers.0.mystery.weight": np.ones((2, 2), np.float32)}
    raised = found(tmp_path, "adapter.unexpected_keys", tensors=tensors)
    assert raised is not None
    assert raised.count == 1


@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        ("lm_head.weight", {"modules_to_save": ["lm_head"]}),
        ("score.weight", {"modules_to_save": ["score"]}),
        ("model.embed_tokens.weight", {}),  # saved because the vocabulary grew
        ("model.embed_tokens.base_layer.weight", {"target_modules": ["embed_tokens", "q_proj"]}),
        (
            "model.embed_tokens.token_adapter.trainable_tokens_delta",
            {"trainable_token_indices": {"embed_tokens": [1]}},
        ),
        ("model.embed_tokens.lora_embedding_A", {}),
        ("model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight", {"use_dora": True}),
        ("model.layers.0.self_attn.q_proj.lora_B.bias", {"lora_bias": True}),
        (
            "model.layers.0.mlp.experts.base_layer.lora_A.weight",
            {"target_parameters": ["mlp.experts.down_proj"]},
        ),
    ],
)
def test_names_that_peft_writes(tmp_path: Path, name: str, adapter: dict[str, Any]) -> None:
    tensors = {**sound_tensors(), PREFIX + name: np.ones((2, 2), np.float32)}
    assert found(tmp_path, "adapter.unexpected_keys", tensors=tensors, adapter=adapter) is None


def test_task_type(tmp_path: Path) -> None:
    missing = found(tmp_path / "a", "adapter.task_type_missing", adapter={"task_type": None})
    assert missing is not None
    assert missing.severity.value == "info"
    unsloth = {
        "task_type": None,
        "auto_mapping": {"base_model_class": "LlamaForCausalLM", "unsloth_fixed": True},
    }
    assert found(tmp_path / "b", "adapter.task_type_missing", adapter=unsloth) is None
    assert found(tmp_path / "c", "adapter.task_type_missing") is None


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        (None, "warning"),
        ("", "warning"),
        ("/data/models/llama", "warning"),
        ("org/base", None),
        ("../base", None),
    ],
)
def test_base_unset(tmp_path: Path, name: str | None, severity: str | None) -> None:
    raised = found(tmp_path, "adapter.base_unset", adapter={"base_model_name_or_path": name})
    assert (raised and raised.severity.value) == severity


def test_base_unset_is_info_when_the_base_is_given(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    raised = found(tmp_path, "adapter.base_unset", adapter={"base_model_name_or_path": None}, base=base)
    assert raised is not None
    assert raised.severity.value == "info"


# Shapes and targets


def test_rank_mismatch(tmp_path: Path) -> None:
    raised = found(tmp_path / "a", "adapter.rank_mismatch", adapter={"r": 8})
    assert raised is not None
    assert raised.severity.value == "error"
    assert "14 of 14 modules do not have rank 8" in raised.title
    assert raised.fix is not None
    assert raised.fix.text == "r 8 -> 4"
    assert found(tmp_path / "b", "adapter.rank_mismatch") is None


def test_rank_pattern_is_obeyed(tmp_path: Path) -> None:
    tensors = {**sound_tensors(rank=4), **{n: a for n, a in sound_tensors(rank=2).items() if "q_proj" in n}}
    pattern = {"rank_pattern": {"q_proj": 2}}
    assert found(tmp_path / "a", "adapter.rank_mismatch", tensors=tensors, adapter=pattern) is None
    assert found(tmp_path / "b", "adapter.rank_mismatch", tensors=tensors) is not None


def test_a_missing_half(tmp_path: Path) -> None:
    tensors = {n: a for n, a in sound_tensors().items() if "layers.0.mlp.up_proj.lora_B" not in n}
    raised = found(tmp_path, "adapter.rank_mismatch", tensors=tensors)
    assert raised is not None
    assert "B missing" in raised.message


def test_another_width_than_the_base_model(tmp_path: Path) -> None:
    wide = base_folder(tmp_path / "wide", hidden_size=64)
    raised = found(tmp_path / "a", "adapter.rank_mismatch", base=wide)
    assert raised is not None
    assert "hidden_size 64" in raised.message
    assert found(tmp_path / "b", "adapter.rank_mismatch", base=base_folder(tmp_path / "base")) is None


def test_experts_that_no_target_reaches(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base", model_type="qwen3_moe", num_experts=4)
    attention = sound_tensors(modules=[name for name in MODULES if "self_attn" in name])
    raised = found(tmp_path / "a", "adapter.targets_unmatched", tensors=attention, base=base)
    assert raised is not None
    assert raised.severity.value == "warning"
    assert "down_proj, gate_proj, up_proj" in raised.title
    assert "0 of 2 layers" in raised.title
    assert raised.fix is not None
    assert raised.fix.text == "target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj]"
    dense = found(
        tmp_path / "b", "adapter.targets_unmatched", tensors=attention, base=base_folder(tmp_path / "dense")
    )
    assert dense is not None
    assert dense.fix is not None
    assert dense.fix.text.endswith("-> all-linear")


@pytest.mark.parametrize(
    "targets", ["all-linear", r".*\.(q|k)_proj", ["self_attn.q_proj", "mlp.up_proj"], ["q_proj"]]
)
def test_targets_that_match(tmp_path: Path, targets: object) -> None:
    assert found(tmp_path, "adapter.targets_unmatched", adapter={"target_modules": targets}) is None


def test_layers_without_an_adapter(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base", num_hidden_layers=4)
    raised = found(tmp_path / "a", "adapter.targets_unmatched", base=base)
    assert raised is not None
    assert "Layers 2, 3 have no adapter" in raised.title
    chosen = {"layers_to_transform": [0, 1]}
    assert found(tmp_path / "b", "adapter.targets_unmatched", base=base, adapter=chosen) is None


def test_modules_to_save_missing(tmp_path: Path) -> None:
    saved = {"modules_to_save": ["lm_head"]}
    base = base_folder(tmp_path / "base", tie_word_embeddings=False)
    raised = found(tmp_path / "a", "adapter.modules_to_save_missing", adapter=saved, base=base)
    assert raised is not None
    assert raised.severity.value == "error"
    there = {**sound_tensors(), f"{PREFIX}lm_head.weight": np.ones((4, 16), np.float32)}
    assert found(tmp_path / "b", "adapter.modules_to_save_missing", adapter=saved, tensors=there) is None
    head = found(tmp_path / "c", "adapter.modules_to_save_missing", adapter={"task_type": "SEQ_CLS"})
    assert head is not None
    assert "score or classifier" in head.title


def test_a_tied_head_need_not_be_saved_twice(tmp_path: Path) -> None:
    tensors = {**sound_tensors(), f"{PREFIX}model.embed_tokens.weight": np.ones((4, 16), np.float32)}
    adapter = {"modules_to_save": ["embed_tokens", "lm_head"]}
    base = base_folder(tmp_path / "base", tie_word_embeddings=True)
    assert (
        found(tmp_path, "adapter.modules_to_save_missing", adapter=adapter, tensors=tensors, base=base)
        is None
    )


def test_stale(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_adapter(run / "checkpoint-20")
    later = {n: (a * 2).astype(np.float32) for n, a in sound_tensors().items()}
    write_adapter(run / "checkpoint-40", later)
    raised = finding(diagnosed(run, "adapter.stale"), "adapter.stale")
    assert "checkpoint-20, not of checkpoint-40" in raised.title
    write_safetensors(run / "adapter_model.safetensors", later)
    assert ids(diagnosed(run, "adapter.stale")) == set()


def test_the_best_model_loaded_at_the_end_is_not_stale(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", settings={"load_best_model_at_end": True})
    write_adapter(run / "checkpoint-20")
    write_adapter(run / "checkpoint-40", {n: (a * 2).astype(np.float32) for n, a in sound_tensors().items()})
    assert ids(diagnosed(run, "adapter.stale")) == set()


# Added tokens


def extended(folder: Path, *tokens: str, pad: str | None = None) -> Path:
    """The chatml tokenizer with more tokens."""
    shutil.copytree(TOKENIZERS / "chatml", folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    if pad:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": pad}))
    return folder


PLANS = [pair(f"Plan {number}.", f" <plan>step {number}</plan>") for number in range(6)]


@pytest.mark.parametrize(
    ("adapter", "rows", "severity"),
    [
        ({}, PLANS, "error"),
        ({}, [pair("Hello.", " Hi.")], "warning"),
        ({}, None, "warning"),
        ({"trainable_token_indices": {"embed_tokens": [259, 260]}}, PLANS, None),
        ({"trainable_token_indices": [259, 260]}, PLANS, None),
        ({"trainable_token_indices": {"embed_tokens": [259]}}, PLANS, "error"),
        ({"modules_to_save": ["embed_tokens", "lm_head"]}, PLANS, None),
        ({"target_modules": ["embed_tokens", "q_proj"]}, PLANS, None),
    ],
)
def test_new_tokens_untrained(
    tmp_path: Path, adapter: dict[str, Any], rows: list[Any] | None, severity: str | None
) -> None:
    tokenizer = extended(tmp_path / "tokenizer", "<plan>", "</plan>")
    base = base_folder(tmp_path / "base")
    raised = found(
        tmp_path, "adapter.new_tokens_untrained", adapter=adapter, rows=rows, tokenizer=tokenizer, base=base
    )
    assert (raised and raised.severity.value) == severity


def test_new_tokens_are_named_with_their_ids(tmp_path: Path) -> None:
    tokenizer = extended(tmp_path / "tokenizer", "<plan>", "</plan>")
    raised = found(
        tmp_path,
        "adapter.new_tokens_untrained",
        rows=PLANS,
        tokenizer=tokenizer,
        base=base_folder(tmp_path / "base"),
    )
    assert raised is not None
    assert "`<plan>` and `</plan>`" in raised.title
    assert "6 of 6 rows" in raised.title
    assert raised.fix is not None
    assert raised.fix.text.startswith("trainable_token_indices: {embed_tokens: [259, 260]}")
    assert raised.rows == tuple(range(6))


def test_a_token_that_only_pads(tmp_path: Path) -> None:
    tokenizer = extended(tmp_path / "tokenizer", "<pad>", pad="<pad>")
    base = base_folder(tmp_path / "base")
    assert found(tmp_path, "adapter.new_tokens_untrained", rows=PLANS, tokenizer=tokenizer, base=base) is None


def test_another_vocabulary_is_not_an_extended_one(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base", tokenizer="headers-bos")
    tokenizer = extended(tmp_path / "tokenizer", "<plan>")
    assert found(tmp_path, "adapter.new_tokens_untrained", rows=PLANS, tokenizer=tokenizer, base=base) is None


@pytest.mark.parametrize(
    ("tied", "adapter", "fires"),
    [
        (False, {"modules_to_save": ["embed_tokens"]}, True),
        (False, {"trainable_token_indices": {"embed_tokens": [259, 260]}}, True),
        (True, {"modules_to_save": ["embed_tokens"]}, False),
        (False, {"modules_to_save": ["embed_tokens", "lm_head"]}, False),
        (False, {"trainable_token_indices": {"embed_tokens": [259], "lm_head": [259]}}, False),
        (False, {}, False),  # adapter.new_tokens_untrained says it
    ],
)
def test_lm_head_not_saved(tmp_path: Path, tied: bool, adapter: dict[str, Any], fires: bool) -> None:
    tokenizer = extended(tmp_path / "tokenizer", "<plan>", "</plan>")
    base = base_folder(tmp_path / "base", tie_word_embeddings=tied)
    raised = found(
        tmp_path, "adapter.lm_head_not_saved", adapter=adapter, rows=PLANS, tokenizer=tokenizer, base=base
    )
    assert (raised is not None) is fires


def test_a_checkpoint_is_looked_at_by_itself(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_adapter(run / "checkpoint-20", zero_b(sound_tensors()))
    write_state(run / "checkpoint-20", log_lines([1.0] * 20))
    assert ids(diagnosed(run / "checkpoint-20", "adapter.")) == {"adapter.zero_b"}
    assert ids(diagnosed(run, "adapter.")) == set()


def test_another_librarys_adapter_is_not_judged(tmp_path: Path) -> None:
    """MLX writes adapter_config.json and adapters.safetensors."""
    config = {"fine_tune_type": "lora", "model": "org/base", "lora_parameters": {"rank": 8, "scale": 20.0}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(tmp_path / "run" / "adapters.safetensors", sound_tensors())
    assert ids(diagnosed(tmp_path / "run", "adapter.")) == set()
