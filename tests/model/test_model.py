"""Base and adapter: found, checked against each other, loaded, and both arms given."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gradian.errors import AdapterError, InputError, ModelError
from gradian.model.adapter import not_attributed, read_adapter
from gradian.model.loaded import LoadedModel, choose_device, load
from gradian.model.places import find_base
from gradian.rows.tokenizer import load_tokenizer
from support.tiny import tiny_base, with_adapter

TOKENIZER = Path(__file__).parent.parent / "fixtures" / "tokenizers" / "chatml"
VOCABULARY = 260


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "base"
    tiny_base(VOCABULARY).save_pretrained(folder)
    for file in TOKENIZER.iterdir():
        if file.name != "config.json":
            shutil.copy(file, folder / file.name)
    return folder


def save_adapter(folder: Path, **lora: Any) -> Path:
    with_adapter(tiny_base(VOCABULARY), **lora).save_pretrained(folder)
    return folder


def loaded(base: Path, adapter: Path) -> LoadedModel:
    return load(find_base(str(base)), read_adapter(adapter), load_tokenizer(str(base)), device="cpu")


def logits(model: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.arange(12)[None]).logits.double().numpy()


@pytest.mark.parametrize(
    "lora",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 32}},
        {"modules_to_save": ["lm_head", "embed_tokens"]},
    ],
    ids=["plain", "rslora", "dora", "patterns", "modules_to_save"],
)
def test_both_arms_are_what_they_say(base: Path, tmp_path: Path, lora: dict[str, Any]) -> None:
    subject = loaded(base, save_adapter(tmp_path / "a", **lora))
    wanted = logits(with_adapter(tiny_base(VOCABULARY), **lora))
    with subject.arm("tuned") as model:
        np.testing.assert_allclose(logits(model), wanted, rtol=1e-4, atol=1e-5)
    with subject.arm("base") as model:
        np.testing.assert_allclose(logits(model), logits(tiny_base(VOCABULARY)), rtol=1e-4, atol=1e-5)
    with subject.arm("tuned") as model:
        np.testing.assert_allclose(logits(model), wanted, rtol=1e-4, atol=1e-5)
    assert not any(parameter.requires_grad for parameter in subject.model.parameters())
    assert not subject.model.training


def test_an_initialisation_that_changes_the_base_gets_a_base_of_its_own(base: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "a")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "init_lora_weights": "pissa"}))
    subject = loaded(base, adapter)
    assert subject.separate_base is not None
    with subject.arm("base") as model:
        assert model is not subject.model
        np.testing.assert_allclose(logits(model), logits(tiny_base(VOCABULARY)), rtol=1e-4, atol=1e-5)


def test_what_has_no_lora_block_is_named_with_its_share(base: Path, tmp_path: Path) -> None:
    adapter = read_adapter(
        save_adapter(tmp_path / "a", modules_to_save=["lm_head", "embed_tokens"], use_dora=True)
    )
    parts = not_attributed(adapter)
    assert [part.split(":")[0] for part in parts] == ["DoRA magnitudes", "modules_to_save", "modules_to_save"]
    shares = [float(part.rsplit(" of ", 1)[0].rsplit(" ", 1)[1].rstrip("%")) / 100 for part in parts]
    head = VOCABULARY * 32 / adapter.trained_parameters
    assert shares[1] == pytest.approx(head, abs=1e-3)
    assert not_attributed(read_adapter(save_adapter(tmp_path / "b"))) == ()


def test_the_adapter_is_found_in_the_places_where_trainers_put_it(tmp_path: Path) -> None:
    save_adapter(tmp_path / "run" / "checkpoint-9")
    save_adapter(tmp_path / "run" / "checkpoint-10")
    assert read_adapter(tmp_path / "run").path.name == "checkpoint-10"
    save_adapter(tmp_path / "run" / "adapter")
    assert read_adapter(tmp_path / "run").path.name == "adapter"
    assert read_adapter(tmp_path / "run" / "adapter" / "adapter_config.json").path.name == "adapter"


class TestRefusals:
    def test_another_base_is_refused_by_the_name_of_the_tensor(self, tmp_path: Path, base: Path) -> None:
        wide = tmp_path / "wide"
        tiny_base(VOCABULARY, hidden=64).save_pretrained(wide)
        with pytest.raises(AdapterError) as caught:
            load(
                find_base(str(wide)),
                read_adapter(save_adapter(tmp_path / "a")),
                load_tokenizer(str(base)),
                device="cpu",
            )
        assert str(caught.value).startswith("base_model.model.model.layers.0.")
        assert "takes 64 inputs, the module 128" in str(caught.value)

    def test_a_module_that_the_base_does_not_have(self, tmp_path: Path, base: Path) -> None:
        shallow = tmp_path / "shallow"
        tiny_base(VOCABULARY, layers=1).save_pretrained(shallow)
        with pytest.raises(AdapterError, match=r"layers\.1\..*(\n.*)*no such module"):
            load(
                find_base(str(shallow)),
                read_adapter(save_adapter(tmp_path / "a")),
                load_tokenizer(str(base)),
                device="cpu",
            )

    def test_a_pickle_is_never_opened(self, tmp_path: Path) -> None:
        adapter = save_adapter(tmp_path / "a")
        (adapter / "adapter_model.safetensors").unlink()
        (adapter / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'touch canary'\ntR.")
        with pytest.raises(AdapterError, match="pickled adapter") as caught:
            read_adapter(adapter)
        assert "save_file" in str(caught.value.fix)

    def test_half_a_block(self, tmp_path: Path) -> None:
        adapter = save_adapter(tmp_path / "a")
        tensors = load_file(adapter / "adapter_model.safetensors")
        del tensors["base_model.model.model.layers.0.mlp.down_proj.lora_B.weight"]
        save_file(tensors, adapter / "adapter_model.safetensors")
        with pytest.raises(AdapterError, match="half of a LoRA block"):
            read_adapter(adapter)

    @pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"{}"])
    def test_a_damaged_file(self, tmp_path: Path, content: bytes) -> None:
        adapter = save_adapter(tmp_path / "a")
        (adapter / "adapter_model.safetensors").write_bytes(content)
        with pytest.raises(AdapterError, match="damaged"):
            read_adapter(adapter)

    def test_another_method(self, tmp_path: Path) -> None:
        (tmp_path / "adapter_config.json").write_text('{"peft_type": "IA3"}')
        with pytest.raises(AdapterError, match="IA3"):
            read_adapter(tmp_path)

    def test_a_merged_model(self, base: Path) -> None:
        with pytest.raises(AdapterError, match="full model"):
            read_adapter(base)

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="not found"):
            read_adapter(tmp_path / "none")
        with pytest.raises(AdapterError, match=r"no adapter_config\.json"):
            read_adapter(tmp_path)

    def test_a_hub_id_offline_says_how_to_get_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(ModelError, match="hf download nobody/nothing") as caught:
            find_base("nobody/nothing", "v2")
        assert "nobody/nothing@v2" in str(caught.value)

    def test_a_base_of_pickles(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "pytorch_model.bin").write_bytes(b"")
        with pytest.raises(ModelError, match="pickled"):
            find_base(str(tmp_path))

    def test_a_device_that_is_not_there(self) -> None:
        with pytest.raises(ModelError, match="cannot be used"):
            choose_device("cuda:77")
        with pytest.raises(ModelError, match="cannot be used"):
            choose_device("toaster")
