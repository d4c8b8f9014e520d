"""A real TRL 1.16 run counted the tokens that it saw: the rows as Gradian cuts them hold exactly as many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradian.rows.files import read_rows
from gradian.rows.profile import TrainerProfile
from gradian.rows.shapes import conversation_of
from gradian.rows.tokenizer import load_tokenizer
from gradian.rows.tokens import tokenize_many

RUN = Path(__file__).parents[3] / "shared" / "runs" / "json_formatting"


@pytest.mark.skipif(not RUN.is_dir(), reason="the real run lies outside the repository")
@pytest.mark.parametrize("arm", [".", "control"])
def test_as_many_tokens_as_the_trainer_counted(arm: str) -> None:
    state = json.loads((RUN / arm / "run" / "trainer_state.json").read_text())
    counted = max(entry.get("num_tokens", 0) for entry in state["log_history"])
    tokenizer = load_tokenizer(RUN / "run" / "adapter")
    profile = TrainerProfile(
        "trl",
        "1.16.0",
        max_length=256,
        overflow="truncate_end",
        loss_on="completion",
        drops_fully_masked=True,
    )
    conversations = [conversation_of(row) for row in read_rows(RUN / arm / "train.jsonl").rows]
    rows = tokenize_many(conversations, tokenizer, profile)
    assert all(row.dropped is None for row in rows)
    assert round(state["epoch"]) * sum(len(row.ids) for row in rows) == counted
