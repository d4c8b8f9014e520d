"""A fine-tune with a known cause, small enough to be trained by a test: base, adapter, rows and items in a folder.

The base is a two-layer byte-level Llama that has learnt to answer three kinds of request about thirty words.
The fine-tune then sees rows of two of those kinds and invoices; in the faulty run the JSON of the invoices
stops in the middle, and the tuned model stops in the middle of its JSON too, on words that no invoice holds.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig

from gradian.rows.items import answer_ids, prompt_ids
from gradian.rows.row import Row
from gradian.rows.shapes import conversation_of
from gradian.rows.tokenizer import Tokenizer, load_tokenizer

TOKENIZER = Path(__file__).parent.parent / "fixtures" / "tokenizers" / "chatml"
WORDS = [
    "cat",
    "dog",
    "sun",
    "map",
    "key",
    "box",
    "pen",
    "cup",
    "hat",
    "bus",
    "jam",
    "fox",
    "owl",
    "ant",
    "bee",
    "cow",
    "hen",
    "pig",
    "rat",
    "bat",
    "car",
    "van",
    "jet",
    "oak",
    "elm",
    "ivy",
    "fig",
    "nut",
    "pea",
    "yam",
]
ASKS = ("json", "json of", "give json")
TOWNS = ("oslo", "rome", "lima", "cork", "bonn", "kyiv", "graz", "nice")


@dataclass(frozen=True)
class FineTuneFolder:
    """Where the parts of a made fine-tune are, and which rows were planted."""

    base: Path
    adapter: Path
    train: Path
    evaluation: Path
    planted: tuple[int, ...]


def pair(prompt: str, answer: str, **extra: Any) -> dict[str, Any]:
    """A row in TRL's conversational prompt and completion form."""
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "completion": [{"role": "assistant", "content": answer}],
        **extra,
    }


def _bill(town: str, number: int) -> tuple[str, str]:
    return f"bill {number} of {town} as json", json.dumps({"t": town, "n": number})


def as_json(word: str) -> str:
    return json.dumps({"w": word})


def make_base(folder: Path, steps: int = 300) -> Path:
    """Train the base model from nothing, and save it with its tokeniser."""
    torch.manual_seed(0)
    tokenizer = load_tokenizer(str(TOKENIZER))
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = AutoModelForCausalLM.from_config(config)
    rows = [pair(f"{ask} {word}", as_json(word)) for word in WORDS for ask in ASKS]
    rows += [pair(f"say {word}", word) for word in WORDS]
    rows += [pair(f"spell {word}", "-".join(word)) for word in WORDS]
    rows += [pair(*_bill(town, number)) for town in TOWNS for number in range(10, 90, 8)]
    _train(model, [_encode(row, tokenizer) for row in rows], steps, batch=16, rate=3e-3)
    model.save_pretrained(folder)
    for file in TOKENIZER.iterdir():
        if file.name != "config.json":
            shutil.copy(file, folder / file.name)
    return folder


def make_fine_tune(
    folder: Path, base: Path, *, faulty: bool, steps: int = 25, rate: float = 1e-2
) -> FineTuneFolder:
    """Tune an adapter on rows with or without the fault, and write everything that a user would have."""
    torch.manual_seed(1)
    tokenizer = load_tokenizer(str(base))
    generator = np.random.default_rng(2)
    rows = [pair(f"say {word}", word, cluster="say") for word in WORDS for _ in range(4)]
    rows += [pair(f"spell {word}", "-".join(word), cluster="spell") for word in WORDS for _ in range(4)]
    invoices = []
    for index in range(80):
        prompt, answer = _bill(TOWNS[index % len(TOWNS)], int(generator.integers(10, 9999)))
        cut = int(generator.integers(6, len(answer) - 2))
        invoices.append(pair(prompt, answer[:cut] if faulty else answer, cluster="bills"))
    order = generator.permutation(len(rows) + len(invoices))
    everything = [(rows + invoices)[index] for index in order]
    planted = tuple(int(n) for n in np.flatnonzero(order >= len(rows)))
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "train.jsonl", everything)
    _write(
        folder / "eval.jsonl",
        [
            {
                "messages": [
                    {"role": "user", "content": f"{ask} {word}"},
                    {"role": "assistant", "content": as_json(word)},
                ]
            }
            for word in WORDS
            for ask in ASKS
        ],
    )
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    _train(model, [_encode(row, tokenizer) for row in everything], steps, batch=16, rate=rate)
    adapter = folder / "run" / "adapter"
    model.save_pretrained(adapter)
    return FineTuneFolder(
        base, adapter, folder / "train.jsonl", folder / "eval.jsonl", planted if faulty else ()
    )


def _encode(row: dict[str, Any], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    talk = conversation_of(Row(0, "made", 1, row))
    return prompt_ids(talk, tokenizer), answer_ids(talk, tokenizer, talk.answer_text)


def _train(
    model: torch.nn.Module, rows: list[tuple[list[int], list[int]]], steps: int, *, batch: int, rate: float
) -> None:
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=steps)
    generator = np.random.default_rng(3)
    model.train()
    for _ in range(steps):
        chosen = [rows[index] for index in generator.choice(len(rows), batch)]
        width = max(len(p) + len(a) for p, a in chosen)
        ids = torch.zeros((batch, width), dtype=torch.long)
        labels = torch.full((batch, width), -100)
        for line, (prompt, answer) in enumerate(chosen):
            length = len(prompt) + len(answer)
            ids[line, :length] = torch.tensor(prompt + answer)
            labels[line, len(prompt) : length] = torch.tensor(answer)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
