"""Settings under one set of names, with every statement kept."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from gradian.run.artefact import ArtefactError, parse_yaml_object
from gradian.run.axolotl import add_axolotl_settings, is_axolotl_config
from gradian.run.config_files import classify, find_config_files
from gradian.run.llama_factory import add_llama_factory_settings
from gradian.run.model_card import parse_model_card, read_model_card
from gradian.run.settings import SettingsBuilder, normalise
from gradian.run.torchtune import add_torchtune_settings
from gradian.run.wandb import read_wandb_folder


def test_the_first_source_wins_and_all_are_kept() -> None:
    builder = SettingsBuilder()
    builder.add("training_args.bin", {"learning_rate": 2e-4, "seed": 1})
    builder.add("README.md", {"learning_rate": "0.0001", "seed": "1"})
    settings = builder.build()
    assert settings.number("learning_rate") == 2e-4
    assert settings.where("learning_rate") == "training_args.bin: learning_rate"
    setting = settings.setting("learning_rate")
    assert setting is not None
    assert [seen.value for seen in setting.disagreeing] == [2e-4, 1e-4]
    seed = settings.setting("seed")
    assert seed is not None
    assert seed.disagreeing == ()


def test_absent_is_not_null() -> None:
    builder = SettingsBuilder()
    builder.add("a", {"max_length": None})
    settings = builder.build()
    assert "max_length" in settings
    assert settings.get("max_length", 7) is None
    assert "packing" not in settings
    assert settings.get("packing", 7) == 7
    assert settings.where("packing") is None


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("learning_rate", "2e-4", 2e-4),
        ("num_train_epochs", "3", 3),
        ("warmup_steps", "0.03", 0.03),
        ("bf16", "true", True),
        ("bf16", "auto", "auto"),
        ("max_length", "None", None),
        ("output_dir", "2e-4", "2e-4"),
        ("learning_rate", "auto", "auto"),
    ],
)
def test_values_are_plain(name: str, value: object, wanted: object) -> None:
    assert normalise(name, value) == wanted


def test_typed_access_refuses_other_types() -> None:
    builder = SettingsBuilder()
    builder.add("a", {"learning_rate": "auto", "seed": 1.5, "packing": 1, "max_grad_norm": float("inf"),
                      "target_modules": ["q", 3]})  # fmt: skip
    settings = builder.build()
    assert settings.number("learning_rate") is None
    assert settings.integer("seed") is None
    assert settings.flag("packing") is None
    assert settings.number("max_grad_norm") is None
    assert settings.strings("target_modules") is None


def test_masked_tokens_state_nothing() -> None:
    builder = SettingsBuilder()
    builder.add("runs/events", {"eos_token": "<EOS_TOKEN>", "pad_token": "<pad>"})
    settings = builder.build()
    assert "eos_token" not in settings
    assert settings.text("pad_token") == "<pad>"


def test_axolotl_names(runs: Path) -> None:
    card = read_model_card(runs / "axolotl-card" / "README.md")
    assert card.axolotl_version == "0.12.2"
    assert card.axolotl is not None
    assert is_axolotl_config(card.axolotl)
    builder = SettingsBuilder()
    add_axolotl_settings(builder, "README.md", card.axolotl)
    settings = builder.build()
    assert settings.number("learning_rate") == 2e-4  # YAML 1.1 reads 2e-4 as a text
    assert settings.integer("max_length") == 4096
    assert settings.integer("per_device_train_batch_size") == 2
    assert settings.text("dataset_type") == "chat_template"
    assert settings.get("target_modules") == "all-linear"
    assert settings.flag("packing") is True
    assert settings.get("bf16") == "auto"


def test_llama_factory_names() -> None:
    builder = SettingsBuilder()
    add_llama_factory_settings(
        builder, "train.yaml",
        {"model_name_or_path": "m", "lora_rank": 8, "lora_target": "q_proj, v_proj", "template": "qwen",
         "cutoff_len": 512, "quantization_bit": 4, "additional_target": "embed_tokens"},
    )  # fmt: skip
    settings = builder.build()
    assert settings.strings("target_modules") == ("q_proj", "v_proj")
    assert settings.strings("modules_to_save") == ("embed_tokens",)
    assert settings.flag("load_in_4bit") is True
    assert settings.text("chat_template") == "qwen"
    assert settings.text("base_model") == "m"


def test_torchtune_names(runs: Path) -> None:
    config = parse_yaml_object((runs / "torchtune" / "torchtune_config.yaml").read_text())
    builder = SettingsBuilder()
    add_torchtune_settings(builder, "torchtune_config.yaml", config)
    settings = builder.build()
    assert settings.number("learning_rate") == 3e-4
    assert settings.integer("lora_r") == 64
    assert settings.integer("max_length") == 2048
    assert settings.strings("target_modules") == ("q_proj", "v_proj", "output_proj", "w1", "w2", "w3")
    assert settings.flag("bf16") is True
    assert settings.get("seed", 1) is None
    assert "checkpointer.output_dir" not in settings  # an interpolation


def test_model_card_of_transformers(runs: Path) -> None:
    card = read_model_card(runs / "transformers-5.24.0" / "README.md")
    assert card.versions["transformers"] == "5.24.0"
    assert card.versions["peft"] == "0.21.2"
    assert "trl" not in card.versions
    assert card.hyperparameters["learning_rate"] == "0.0002"
    assert card.hyperparameters["num_epochs"] == "2"
    assert card.base_model == "base"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "---\n",
        "---\ntags: [\n---\n",
        "---\ntags: 5\nbase_model: [1]\n---\n",
        "Framework versions\n- TRL: x",
        "<summary>See axolotl config</summary>\n```yaml\na: [\n```",
        "<summary>See axolotl config</summary>\n```yaml",
    ],
)
def test_a_strange_card_says_nothing(text: str) -> None:
    card = parse_model_card(text)
    assert card.versions == {}
    assert card.axolotl is None
    assert card.base_model is None


def test_wandb(runs: Path) -> None:
    run = read_wandb_folder(runs / "wandb-only" / "wandb")
    assert run is not None
    assert run.config["learning_rate"] == 2e-4
    assert "_wandb" not in run.config
    assert run.versions["trl"] == "0.24.0"
    assert run.history is not None
    assert run.history.global_step == 24
    assert run.history.eval_series("eval_loss")[1].tolist() == [1.4]


def test_yaml_that_would_build_an_object_is_refused() -> None:
    with pytest.raises(ArtefactError, match="is not YAML"):
        parse_yaml_object("a: !!python/object/apply:os.system ['true']")


def test_yaml_that_unfolds_without_end_is_read_in_little_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert len(parse_yaml_object("\n".join(lines))) == 12


def test_merge_keys_do_not_multiply_without_end() -> None:
    """PyYAML before 6.0.4 makes 9 to the power of 11 pairs of this, later ones two."""
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12)]
    with contextlib.suppress(ArtefactError):
        assert all(len(value) == 2 for value in parse_yaml_object("\n".join(lines)).values())


def test_a_merge_is_bounded() -> None:
    keys = ", ".join(f"k{number}: 1" for number in range(1200))
    with pytest.raises(ArtefactError, match="merge keys"):
        parse_yaml_object(f"a: &a {{{keys}}}\nb: {{<<: *a}}")
    assert len(parse_yaml_object(f"a: {{{keys}}}")["a"]) == 1200
    assert parse_yaml_object("a: &a {x: 1}\nb: {<<: *a, y: 2}")["b"] == {"x": 1, "y": 2}


def test_a_large_yaml_file_is_left_unread(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text("a: 1\n" * 100_000)
    configs, problems = find_config_files(tmp_path, ["large.yaml"])
    assert configs == []
    assert [(problem.path, problem.kind) for problem in problems] == [("large.yaml", "not_read")]


def test_other_json_and_yaml_files_are_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"accuracy": 0.5}')
    (tmp_path / "rows.json").write_text("[{}]")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "compose.yaml").write_text("services: {web: {image: x}}")
    (tmp_path / "broken.yaml").write_text("a: [")
    names = sorted(path.name for path in tmp_path.iterdir())
    configs, problems = find_config_files(tmp_path, names)
    assert configs == []
    assert [problem.path for problem in problems] == ["broken.yaml"]


def test_trl_and_llama_factory_files_are_told_apart() -> None:
    shared = {"model_name_or_path": "m", "learning_rate": 1e-4, "packing": True}
    trl = classify("a", {**shared, "use_peft": True, "max_length": 512})
    factory = classify("a", {**shared, "finetuning_type": "lora", "template": "qwen"})
    assert trl is not None
    assert trl.trainer == "trl"
    assert factory is not None
    assert factory.trainer == "llama_factory"
