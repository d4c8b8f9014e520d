"""What the files beside a tokenizer decide, and what is said when they are not right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradian.errors import ModelError
from gradian.rows.tokenizer import load_tokenizer
from support.rows_tokenizers import TOKENIZERS, write_tokenizer


def edit(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **values}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "model", "markers")


def test_limits_and_model_numbers(folder: Path) -> None:
    assert load_tokenizer(folder).model_max_length is None
    edit(folder, "tokenizer_config.json", model_max_length=int(1e30))
    edit(folder, "config.json", max_position_embeddings=2048, vocab_size=300)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.model_max_length is None, "1e30 is how transformers writes no limit"
    assert (tokenizer.max_position_embeddings, tokenizer.model_vocab_size) == (2048, 300)
    edit(folder, "tokenizer_config.json", model_max_length=4096)
    edit(folder, "config.json", max_position_embeddings=None, text_config={"max_position_embeddings": 99})
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.model_max_length, tokenizer.max_position_embeddings) == (4096, 99)


def test_where_the_template_comes_from(folder: Path) -> None:
    edit(folder, "tokenizer_config.json", chat_template="from the config")
    template = load_tokenizer(folder).template
    assert template is not None
    assert template.has_generation_markers, "chat_template.jinja wins"
    (folder / "chat_template.jinja").unlink()
    assert load_tokenizer(folder).template.source == "from the config"  # type: ignore[union-attr]
    named = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    edit(folder, "tokenizer_config.json", chat_template=named)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.template_for(None).source == "one"  # type: ignore[union-attr]
    assert tokenizer.template_for([]).source == "two"  # type: ignore[union-attr]
    extra = folder / "additional_chat_templates"
    extra.mkdir()
    (folder / "chat_template.jinja").write_text("file")
    (extra / "tool_use.jinja").write_text("file with tools")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.template_for(None).source == "file"  # type: ignore[union-attr]
    assert tokenizer.template_for([{}]).source == "file with tools"  # type: ignore[union-attr]
    assert load_tokenizer(TOKENIZERS / "base-padeos").template is None


def test_special_tokens_from_either_file(folder: Path) -> None:
    edit(
        folder,
        "special_tokens_map.json",
        eos_token="<|im_start|>",
        pad_token={"content": "<pad>", "lstrip": True},
    )
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_token == "<|im_end|>", "tokenizer_config.json wins"
    assert tokenizer.pad_token == "<pad>"
    assert tokenizer.pad_token_id == tokenizer.vocab_size - 1 == 258, "added, as transformers does"
    assert tokenizer.encode("a<pad>", False)[-1] == 258
    assert (tokenizer.bos_token, tokenizer.bos_token_id, tokenizer.unk_token_id) == (None, None, None)


def test_stop_ids(folder: Path) -> None:
    end = load_tokenizer(folder).id_of("<|im_end|>")
    assert load_tokenizer(folder).stop_ids == {end}
    edit(folder, "tokenizer_config.json", eos_token="<|endoftext|>")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.turn_end_id == end
    assert tokenizer.stop_ids == {end, tokenizer.eos_token_id}
    edit(folder, "generation_config.json", eos_token_id=[end, 7])
    assert load_tokenizer(folder).stop_ids == {end, 7, tokenizer.eos_token_id}
    edit(folder, "generation_config.json", eos_token_id=9)
    assert 9 in load_tokenizer(folder).stop_ids


@pytest.mark.parametrize(
    ("family", "token"),
    [
        ("llama3", "<|eot_id|>"),
        ("qwen", "<|im_end|>"),
        ("gemma", "<end_of_turn>"),
        ("mistral", "</s>"),
        ("phi", "<|end|>"),
    ],
)
def test_turn_end_of_each_family(tmp_path: Path, family: str, token: str) -> None:
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, family))
    assert tokenizer.turn_end_id == tokenizer.id_of(token)


def test_a_template_that_closes_no_turn_has_no_turn_end(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    assert load_tokenizer(folder).turn_end_id is None
    for source in ("{{ raise_exception('no') }}", "<|im_start|>{{ messages | length }}<|im_end|>"):
        (folder / "chat_template.jinja").write_text(source)
        assert load_tokenizer(folder).turn_end_id is None
    (folder / "chat_template.jinja").write_text("{{ messages[1].content | upper }}<|im_end|>")
    assert load_tokenizer(folder).turn_end_id is None


def test_sha256_follows_what_decides_ids(folder: Path) -> None:
    before = load_tokenizer(folder).sha256
    assert load_tokenizer(folder).sha256 == before
    edit(folder, "config.json", vocab_size=3)
    assert load_tokenizer(folder).sha256 == before
    (folder / "chat_template.jinja").write_text("other")
    template_changed = load_tokenizer(folder).sha256
    edit(folder, "tokenizer_config.json", eos_token="<|im_start|>")
    assert len({before, template_changed, load_tokenizer(folder).sha256}) == 3
    assert load_tokenizer(folder).with_template("third").sha256 not in {before, template_changed}


def test_decode_and_padding_saved_in_the_file(folder: Path) -> None:
    pipeline = json.loads((folder / "tokenizer.json").read_text())
    pipeline["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    pipeline["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
    pipeline["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<|im_start|>"}
    (folder / "tokenizer.json").write_text(json.dumps(pipeline))
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode("abc<|im_end|>", False)
    assert len(ids) == 4, "a length limit saved with the tokenizer cuts nothing here"
    assert tokenizer.decode(ids) == "abc<|im_end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "abc"
    assert tokenizer.encode_batch([], True) == []
    assert [item.offsets[-1] for item in tokenizer.encode_with_offsets(["abé"], False)] == [(2, 3)]


def test_errors_name_the_file_and_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ModelError, match="hf download org/model-not-there --revision v1"):
        load_tokenizer("org/model-not-there", revision="v1")
    with pytest.raises(ModelError, match="no such folder"):
        load_tokenizer("/no/such/place/at/all")
    model = write_tokenizer(tmp_path / "model", "markers")
    with pytest.raises(ModelError, match=r"did you mean .*model\?"):
        load_tokenizer(tmp_path / "modle")
    with pytest.raises(ModelError, match="a tokenizer is a folder"):
        load_tokenizer(model / "tokenizer.json")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelError, match="holds no tokenizer"):
        load_tokenizer(empty)
    for name, content in [
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b"[]"),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[1]"),
        ("generation_config.json", b"\xff\xfe"),
        ("chat_template.jinja", b"\xff\xfe"),
    ]:
        broken = write_tokenizer(tmp_path / "broken", "markers")
        (broken / name).write_bytes(content)
        with pytest.raises(ModelError, match=name.replace(".", r"\.")):
            load_tokenizer(broken)
        (broken / name).unlink()


def test_a_cached_hub_model_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "hub"
    commit = "0" * 40
    snapshot = cache / "models--org--name" / "snapshots" / commit
    write_tokenizer(snapshot, "markers")
    (cache / "models--org--name" / "refs").mkdir()
    (cache / "models--org--name" / "refs" / "main").write_text(commit)
    import huggingface_hub.constants
    import huggingface_hub.file_download

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    tokenizer = load_tokenizer("org/name")
    assert tokenizer.name_or_path == "org/name"
    assert tokenizer.eos_token == "<|im_end|>"


def test_a_tokenizer_without_tokenizer_json(tmp_path: Path) -> None:
    """vocab.json and merges.txt only: transformers converts them."""
    pipeline = json.loads((TOKENIZERS / "merge-space" / "tokenizer.json").read_text())
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in pipeline["model"]["merges"]]
    (tmp_path / "vocab.json").write_text(json.dumps(pipeline["model"]["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    edit(tmp_path, "tokenizer_config.json", tokenizer_class="GPT2Tokenizer", eos_token="<|endoftext|>")
    edit(tmp_path, "config.json", model_type="gpt2")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode("The end", False)) == "The end"
    assert tokenizer.eos_token_id is not None
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(ModelError, match="no usable tokenizer"):
        load_tokenizer(tmp_path)


def test_reading_rows_and_tokenising_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from gradian.rows import files, shapes, tokens\n"
        "from gradian.rows.tokenizer import load_tokenizer\n"
        f"load_tokenizer({str(TOKENIZERS / 'chatml')!r}).stop_ids\n"
        "print([name for name in ('torch', 'transformers', 'sklearn', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
