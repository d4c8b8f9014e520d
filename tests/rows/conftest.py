"""Tokenizers as fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gradian.rows.tokenizer import Tokenizer, load_tokenizer
from support.rows_tokenizers import TOKENIZERS, write_tokenizer


@pytest.fixture
def family_tokenizer(tmp_path: Path) -> Callable[[str], Tokenizer]:
    """`family_tokenizer("llama3")`."""
    return lambda family: load_tokenizer(write_tokenizer(tmp_path / family, family))


@pytest.fixture
def fixture_tokenizer() -> Callable[[str], Tokenizer]:
    """`fixture_tokenizer("chatml")`: one of tests/fixtures/tokenizers."""
    return lambda name: load_tokenizer(TOKENIZERS / name)
