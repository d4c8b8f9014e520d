"""What trainers do to rows, by version: the table of the design, line by line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gradian.errors import ConfigError
from gradian.rows.profile import TrainerProfile
from gradian.run.folder import read_run
from gradian.run.profile import Evidence, FoundVersion, detect_profile, parse_trainer_override, profile_for
from gradian.run.settings import RunSettings, SettingsBuilder
from gradian.run.trl_profile import parse_version


def stated(**values: Any) -> RunSettings:
    builder = SettingsBuilder()
    builder.add("args", values)
    return builder.build()


def trl(version: str | None, **values: Any) -> TrainerProfile:
    return profile_for("trl", version, stated(**values))


@pytest.mark.parametrize(
    ("version", "end_of_text", "loss_on", "pad_masks_eos", "drops"),
    [
        ("0.9.6", "none", "everything", True, False),
        ("0.14.0", "none", "everything", True, False),
        ("0.15.2", "none", "everything", True, False),
        ("0.16.0", "append_id", "everything", True, False),
        ("0.16.1", "append_id", "everything", False, False),
        ("0.17.0", "append_text", "completion", False, False),
        ("0.18.2", "append_text", "completion", False, False),
        ("0.24.0", "append_text", "completion", False, False),
        ("1.8.0", "append_text", "completion", False, False),
        ("1.9.0", "append_text", "completion", False, True),
        ("1.16.0", "append_text", "completion", False, True),
        ("1.17.0.dev0", "append_text", "completion", False, True),
        (None, "append_text", "completion", False, True),
    ],
)
def test_trl_by_version(
    version: str | None, end_of_text: str, loss_on: str, pad_masks_eos: bool, drops: bool
) -> None:
    profile = trl(version, max_length=512, max_seq_length=512)
    assert profile.end_of_text == end_of_text
    assert profile.loss_on == loss_on
    assert profile.pad_masks_eos is pad_masks_eos
    assert profile.drops_fully_masked is drops
    assert profile.overflow == "truncate_end"
    assert profile.max_length == 512


@pytest.mark.parametrize(
    ("version", "settings", "max_length", "assumes"),
    [
        ("0.9.6", {"max_seq_length": 300}, 300, False),
        ("0.9.6", {"max_length": 300}, 1024, True),  # not a setting of that version
        ("0.9.6", {"max_seq_length": None}, 1024, True),
        ("0.17.0", {"max_length": 300}, 300, False),
        ("0.17.0", {"max_length": 1024, "max_seq_length": 300}, 300, False),  # deprecated, still wins
        ("0.20.0", {"max_length": 1024, "max_seq_length": 300}, 1024, False),
        ("1.16.0", {"max_length": None}, None, False),
        ("1.16.0", {}, 1024, True),
    ],
)
def test_trl_length(version: str, settings: dict[str, Any], max_length: int | None, assumes: bool) -> None:
    profile = trl(version, **settings)
    assert profile.max_length == max_length
    assert any("TRL's default" in text and "length" in text for text in profile.assumed) is assumes
    assert (profile.overflow == "keep") is (max_length is None)


@pytest.mark.parametrize(
    ("version", "strategy", "packing", "overflow", "isolates"),
    [
        ("0.15.2", None, "wrapped", "split", False),
        ("0.18.0", None, "wrapped", "split", False),
        ("0.19.0", None, "ffd", "truncate_end", True),
        ("0.20.0", None, "bfd", "truncate_end", True),
        ("0.26.0", "bfd", "bfd", "truncate_end", True),
        ("0.27.0", "bfd", "bfd", "split", True),
        ("0.28.0", "bfd", "bfd", "split", True),
        ("0.29.0", "bfd", "bfd", "truncate_end", True),
        ("1.16.0", "bfd_split", "bfd_split", "split", True),
        ("1.16.0", "wrapped", "wrapped", "split", False),
    ],
)
def test_trl_packing(version: str, strategy: str | None, packing: str, overflow: str, isolates: bool) -> None:
    flash = {"attn_implementation": "flash_attention_2"}
    settings = {"packing": True, "max_length": 512, "max_seq_length": 512, "model_init_kwargs": flash}
    if strategy:
        settings["packing_strategy"] = strategy
    profile = trl(version, **settings)
    assert (profile.packing, profile.overflow, profile.packing_isolates_rows) == (packing, overflow, isolates)
    settings["model_init_kwargs"] = {"attn_implementation": "sdpa"}
    assert trl(version, **settings).packing_isolates_rows is False
    settings["packing"] = False
    assert trl(version, **settings).packing is None


@pytest.mark.parametrize(
    ("version", "settings", "loss_on"),
    [
        ("1.16.0", {"assistant_only_loss": True}, "assistant"),
        ("0.18.0", {"assistant_only_loss": True}, "completion"),  # added in 0.19
        ("1.16.0", {"completion_only_loss": False}, "everything"),
        ("1.16.0", {"completion_only_loss": True}, "completion"),
        ("1.16.0", {"completion_only_loss": None}, "completion"),
        ("0.16.0", {"completion_only_loss": True}, "everything"),  # added in 0.17
    ],
)
def test_trl_loss(version: str, settings: dict[str, Any], loss_on: str) -> None:
    profile = trl(version, **settings)
    assert profile.loss_on == loss_on
    assert profile.assistant_mask == "markers"


def test_trl_truncation_at_the_start() -> None:
    assert trl("1.16.0", truncation_mode="keep_end").overflow == "truncate_start"


def test_sequential_sampling_is_no_shuffling() -> None:
    assert trl("1.16.0").shuffles is True
    assert trl("1.16.0", train_sampling_strategy="sequential").shuffles is False


def test_axolotl() -> None:
    chat = profile_for("axolotl", "0.12.2", stated(max_length=256, dataset_type="chat_template"))
    assert (chat.overflow, chat.loss_on, chat.max_length) == ("drop", "assistant", 256)
    cut = profile_for(
        "axolotl", None, stated(dataset_type="chat_template", excess_length_strategy="truncate")
    )
    assert (cut.overflow, cut.max_length) == ("truncate_end", 512)
    alpaca = profile_for("axolotl", None, stated(dataset_type="alpaca"))
    assert (alpaca.overflow, alpaca.end_of_text, alpaca.loss_on) == (
        "truncate_end",
        "append_if_room",
        "completion",
    )
    assert (
        profile_for("axolotl", None, stated(dataset_type="alpaca", train_on_inputs=True)).loss_on
        == "everything"
    )
    packed = profile_for("axolotl", None, stated(packing=True))
    assert packed.packing == "sample_packing"
    assert packed.packing_isolates_rows is False
    assert (
        profile_for("axolotl", None, stated(packing=True, flash_attention=True)).packing_isolates_rows is True
    )


def test_llama_factory() -> None:
    plain = profile_for("llama_factory", None, stated())
    assert (plain.overflow, plain.max_length, plain.role_order) == ("truncate_proportional", 2048, "skip")
    assert plain.loss_on == "assistant"
    packed = profile_for("llama_factory", None, stated(packing=True, max_length=512))
    assert (packed.overflow, packed.packing_isolates_rows) == ("drop", False)
    assert profile_for("llama_factory", None, stated(neat_packing=True)).packing_isolates_rows is True
    assert profile_for("llama_factory", None, stated(train_on_inputs=True)).loss_on == "everything"


def test_torchtune() -> None:
    chat = profile_for("torchtune", None, stated(dataset_type="torchtune.datasets.chat_dataset"))
    assert (chat.overflow, chat.max_length, chat.role_order) == ("keep", None, "raise")
    assert chat.loss_on == "assistant"
    assert any("train_on_input" in text for text in chat.assumed)
    alpaca = profile_for(
        "torchtune", None, stated(dataset_type="torchtune.datasets.alpaca_dataset", max_length=99)
    )
    assert (alpaca.overflow, alpaca.loss_on) == ("truncate_end_keep_eos", "everything")


def test_unsloth() -> None:
    profile = profile_for("unsloth", None, stated(max_length=2048))
    assert (profile.end_of_text, profile.overflow, profile.max_length) == ("none", "truncate_end", 2048)
    assert profile.removes_double_bos is True
    assert profile_for("unsloth", None, stated(max_seq_length=512)).max_length == 512


def test_plain_trainer_and_unknown() -> None:
    plain = profile_for("transformers", "5.0.0", stated())
    assert (plain.overflow, plain.pad_masks_eos, plain.max_length) == ("keep", True, None)
    assert plain.assumed
    unknown = profile_for("unknown")
    assert unknown.trainer == "unknown"
    assert unknown.end_of_text == "append_text"
    assert "latest TRL" in unknown.assumed[0]


@pytest.mark.parametrize(
    ("fixture", "trainer", "version", "reason"),
    [
        ("trl-0.15.2", "trl", "0.15.2", "README.md"),
        ("trl-0.19.1", "trl", "0.19.1", "README.md"),
        ("trl-0.24.0", "trl", "0.24.0", "README.md"),
        ("trl-1.16.0", "trl", "1.16.0", "README.md"),
        ("transformers-4.49.0", "transformers", "4.49.0", "training_args.bin"),
        ("transformers-5.24.0", "transformers", "5.24.0", "training_args.bin"),
        ("axolotl-card", "axolotl", "0.12.2", "README.md"),
        ("axolotl-yaml", "axolotl", None, "config.yml"),
        ("llama-factory", "llama_factory", None, "train.yaml"),
        ("torchtune", "torchtune", None, "torchtune_config.yaml"),
        ("unsloth", "unsloth", None, "README.md"),
        ("wandb-only", "trl", "0.24.0", "requirements.txt"),
        ("trl-yaml", "trl", None, "sft.yaml"),
    ],
)
def test_detection(runs: Path, fixture: str, trainer: str, version: str | None, reason: str) -> None:
    profile = read_run(runs / fixture).profile
    assert (profile.trainer, profile.version) == (trainer, version)
    assert reason in profile.reason


@pytest.mark.parametrize("fixture", ["trl-0.15.2", "trl-0.19.1", "trl-0.24.0", "trl-1.16.0"])
def test_the_fields_of_the_pickle_date_a_run_without_card(runs: Path, fixture: str) -> None:
    """A run whose README is lost behaves as the one that has it."""
    run = read_run(runs / fixture)
    args = {setting.name: setting.value for setting in run.settings if setting.file == "training_args.bin"}
    evidence = Evidence(args_class=run.args_class, args_file="training_args.bin", args_fields=args)
    profile = detect_profile(evidence, run.settings)
    for name in ("end_of_text", "loss_on", "max_length", "pad_masks_eos", "overflow", "drops_fully_masked"):
        assert getattr(profile, name) == getattr(run.profile, name), name


def test_installed_is_not_used() -> None:
    """A requirements.txt that lists TRL does not make a plain Trainer run a TRL run."""
    versions = {
        "trl": FoundVersion("0.24.0", "wandb/requirements.txt", installed=True),
        "transformers": FoundVersion("4.57.1", "README.md"),
    }
    evidence = Evidence(
        versions=versions, args_class="transformers.training_args.TrainingArguments", args_file="a"
    )
    assert detect_profile(evidence, stated()).trainer == "transformers"


@pytest.mark.parametrize(
    ("tags", "args_class", "trainer"),
    [
        (("trl", "unsloth"), "trl.trainer.sft_config.SFTConfig", "unsloth"),
        (
            ("llama-factory", "lora"),
            "transformers.training_args_seq2seq.Seq2SeqTrainingArguments",
            "llama_factory",
        ),
        ((), "llamafactory.hparams.training_args.TrainingArguments", "llama_factory"),
        ((), "axolotl.core.training_args.AxolotlTrainingArguments", "axolotl"),
        ((), "UnslothSFTTrainer.UnslothSFTConfig", "unsloth"),
    ],
)
def test_a_wrapper_is_found_before_what_it_wraps(
    tags: tuple[str, ...], args_class: str, trainer: str
) -> None:
    evidence = Evidence(
        versions={"trl": FoundVersion("0.24.0", "README.md")}, tags=tags, tags_file="README.md",
        args_class=args_class, args_file="training_args.bin",
    )  # fmt: skip
    assert detect_profile(evidence, stated()).trainer == trainer


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("trl==0.16.0", ("trl", "0.16.0")),
        ("TRL", ("trl", None)),
        (" llama-factory ", ("llama_factory", None)),
        ("LLaMA Factory", ("llama_factory", None)),
        ("LLaMAFactory==0.9", ("llama_factory", "0.9")),
    ],
)
def test_override(text: str, wanted: tuple[str, str | None]) -> None:
    assert parse_trainer_override(text) == wanted


@pytest.mark.parametrize("text", ["", "==1.0", "mlx", "trl==new", "trl=="])
def test_a_wrong_override_says_what_is_right(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_trainer_override(text)
    assert caught.value.fix is not None
    assert "trl==0.16.0" in caught.value.fix


def test_an_override_wins_over_every_file(runs: Path) -> None:
    profile = read_run(runs / "trl-1.16.0", trainer="trl==0.9.6").profile
    assert (profile.version, profile.pad_masks_eos) == ("0.9.6", True)
    assert "--trainer" in profile.reason
    kept = read_run(runs / "trl-1.16.0", trainer="trl").profile
    assert kept.version == "1.16.0"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("0.16.0", (0, 16, 0)), ("v0.19", (0, 19, 0)), ("2.13.0+cpu", (2, 13, 0)), ("1.0.0rc1", (1, 0, 0)),
     ("main", None), (None, None)],
)  # fmt: skip
def test_versions(text: str | None, wanted: tuple[int, int, int] | None) -> None:
    assert parse_version(text) == wanted


def test_a_log_alone_names_its_trainer(tmp_path: Path, runs: Path) -> None:
    shutil.copy(runs / "llama-factory" / "trainer_log.jsonl", tmp_path / "trainer_log.jsonl")
    profile = read_run(tmp_path).profile
    assert (profile.trainer, profile.max_length) == ("llama_factory", 2048)
    assert "trainer_log.jsonl" in profile.reason
    assert any("cutoff_len" in text for text in profile.assumed)


def test_chat_rows_get_special_tokens_only_in_the_versions_that_add_them() -> None:
    flags = {
        v: profile_for("trl", v).chat_adds_special_tokens
        for v in ("0.14.0", "0.15.2", "0.16.1", "0.17.0", "1.16.0")
    }
    assert flags == {"0.14.0": False, "0.15.2": True, "0.16.1": True, "0.17.0": False, "1.16.0": False}


@pytest.mark.parametrize(("version", "normalizes"), [("4.49.0", False), ("5.23.1", False), ("5.24.0", True)])
def test_messages_are_prepared_as_the_version_of_transformers_does(version: str, normalizes: bool) -> None:
    evidence = Evidence(versions={"transformers": FoundVersion(version, "README.md")})
    assert detect_profile(evidence, RunSettings()).normalizes_messages is normalizes
    assert not detect_profile(Evidence(), RunSettings()).normalizes_messages
