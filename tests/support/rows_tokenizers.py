"""Tokenizers for the tests of rows: byte-level, so that the ids of plain text are known by heart."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

TOKENIZERS = Path(__file__).parents[1] / "fixtures" / "tokenizers"
TEMPLATES = Path(__file__).parents[1] / "rows" / "templates"

#: Template name to (added tokens, special tokens): what a model of that family has.
FAMILIES = {
    "llama3": (
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    ),
    "qwen": (
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"],
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    ),
    "gemma": (
        ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
        {"bos_token": "<bos>", "eos_token": "<eos>"},
    ),
    "mistral": (["<s>", "</s>"], {"bos_token": "<s>", "eos_token": "</s>"}),
    "phi": (
        ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
        {"eos_token": "<|endoftext|>"},
    ),
    "markers": (["<|im_start|>", "<|im_end|>"], {"eos_token": "<|im_end|>"}),
}


def write_tokenizer(folder: Path, family: str) -> Path:
    """A byte-level tokenizer with the tokens and the template of a family."""
    tokens, special = FAMILIES[family]
    pipeline = json.loads((TOKENIZERS / "base-padeos" / "tokenizer.json").read_text(encoding="utf-8"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    pipeline["added_tokens"] = [
        {"id": 256 + index, "content": token, **flags} for index, token in enumerate(tokens)
    ]
    pipeline["post_processor"] = None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(pipeline), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    shutil.copyfile(TEMPLATES / f"{family}.jinja", folder / "chat_template.jinja")
    return folder
