"""A tiny random Llama with a LoRA adapter and a byte-level chat tokenizer: both arms in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peft import PeftModel

from gradian.rows.tokenizer import Tokenizer, load_tokenizer
from support.evaluation import TinyArms, tiny_lora

CHATML = Path(__file__).parents[1] / "fixtures" / "tokenizers" / "chatml"


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(CHATML)


@pytest.fixture(scope="session")
def lora_model() -> PeftModel:
    return tiny_lora()


@pytest.fixture
def arms(lora_model: PeftModel, tokenizer: Tokenizer) -> TinyArms:
    return TinyArms(lora_model, tokenizer)


@pytest.fixture
def write_items(tmp_path: Path) -> Callable[..., Path]:
    """`write_items(rows)` writes them as JSON lines and gives the path."""

    def write(rows: list[Any], name: str = "eval.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return path

    return write
