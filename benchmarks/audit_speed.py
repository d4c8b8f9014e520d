"""How long the audit takes, beside the floor: reading the JSON and tokenising every row once.

    python benchmarks/audit_speed.py 10000 100000 --tokenizer FOLDER [--eval-items 500]

Rows are generated (a chat of one exchange, about 600 bytes, words by Zipf's law), so that any size can be
had. The floor and the audit run in one process, one after the other, on the same file. CPU seconds are of all
threads: they are what to compare on a machine that does other work. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from gradian.audit.context import AuditInputs
from gradian.audit.runner import run_audit
from gradian.rows.files import iter_records
from gradian.rows.row import Row
from gradian.rows.shapes import conversation_of
from gradian.rows.tokenizer import Tokenizer, load_tokenizer
from gradian.rows.tokens import render

SYLLABLES = [
    "ba",
    "ce",
    "di",
    "fo",
    "gu",
    "ha",
    "je",
    "ki",
    "lo",
    "mu",
    "na",
    "pe",
    "ri",
    "so",
    "tu",
    "va",
    "we",
    "xi",
    "yo",
    "za",
    "bre",
    "cli",
    "dro",
    "fla",
    "gre",
    "ple",
    "sta",
    "tri",
]
VOCABULARY = 20_000


def vocabulary(generator: np.random.Generator) -> list[str]:
    """Made-up words of one to four syllables, the frequent ones short."""
    words = []
    for rank in range(VOCABULARY):
        count = 1 + min(3, rank // 400 + int(generator.integers(0, 2)))
        words.append("".join(SYLLABLES[index] for index in generator.integers(0, len(SYLLABLES), count)))
    return words


def sentence(generator: np.random.Generator, words: list[str], count: int) -> str:
    """Words by Zipf's law, as in a natural text."""
    ranks = np.minimum(generator.zipf(1.3, count), VOCABULARY) - 1
    return " ".join(words[rank] for rank in ranks)


def write_rows(path: Path, rows: int, seed: int) -> None:
    """Rows whose prompts and answers are all different."""
    generator = np.random.default_rng(seed)
    words = vocabulary(np.random.default_rng(0))
    with path.open("w") as opened:
        for row in range(rows):
            question, answer = sentence(generator, words, 30), sentence(generator, words, 95)
            messages = [
                {"role": "user", "content": f"{question} {row}?"},
                {"role": "assistant", "content": f"{answer.capitalize()}."},
            ]
            opened.write(json.dumps({"messages": messages}) + "\n")


def floor(path: Path, tokenizer: Tokenizer) -> None:
    """Read every row, render and tokenise it once."""
    rows = (record for record in iter_records(path) if isinstance(record, Row))
    texts: list[str] = []
    for row in rows:
        texts.append(render(conversation_of(row), tokenizer))
        if len(texts) == 1024:
            tokenizer.encode_batch(texts, add_special_tokens=False)
            texts = []
    tokenizer.encode_batch(texts, add_special_tokens=False)


class Clock:
    """Wall and CPU seconds of a block."""

    def __enter__(self) -> Clock:
        self.wall, self.cpu = -time.perf_counter(), -time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall += time.perf_counter()
        self.cpu += time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=int, nargs="+")
    parser.add_argument("--tokenizer", required=True, help="folder of a tokenizer with a chat template")
    parser.add_argument("--eval-items", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(arguments.tokenizer)
    print("     rows      MB | floor s   CPU s | audit s   CPU s | ratio  CPU ratio | peak MB")
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.jsonl"
            write_rows(path, rows, arguments.seed)
            eval_path = None
            if arguments.eval_items:
                eval_path = Path(folder) / "eval.jsonl"
                write_rows(eval_path, arguments.eval_items, arguments.seed + 1)
            inputs = AuditInputs(
                dataset=str(path),
                base_model=arguments.tokenizer,
                eval_dataset=str(eval_path) if eval_path else None,
            )
            with Clock() as audit:
                run_audit(inputs)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            with Clock() as least:
                floor(path, tokenizer)
            print(
                f"{rows:>9,} {path.stat().st_size / 1e6:>7.1f} | {least.wall:>7.2f} {least.cpu:>7.2f} | "
                f"{audit.wall:>7.2f} "
                f"{audit.cpu:>7.2f} | {audit.wall / least.wall:>5.2f} {audit.cpu / least.cpu:>10.2f} | "
                f"{peak:>7.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
