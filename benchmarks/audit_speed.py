"""How long the audit takes, beside the floor: reading the JSON and tokenising every row once.

    python benchmarks/audit_speed.py 10000 100000 --tokenizer FOLDER [--eval-items 500]

Rows are generated (a chat of one exchange, about 600 bytes), so that any size can be had. The floor and the
audit run in one process, one after the other, on the same file. Nothing is asserted.
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

WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "it",
    "was",
    "for",
    "on",
    "are",
    "with",
    "as",
    "they",
    "be",
    "at",
    "one",
    "have",
    "this",
    "from",
    "by",
    "hot",
    "word",
    "but",
    "what",
    "some",
    "we",
    "can",
    "out",
    "other",
    "were",
    "all",
    "there",
    "when",
    "up",
    "use",
    "your",
    "how",
    "said",
    "an",
    "each",
    "she",
    "which",
    "do",
    "their",
    "time",
    "if",
    "will",
    "way",
    "about",
    "many",
    "then",
    "them",
    "write",
    "would",
    "like",
    "so",
    "these",
    "her",
    "long",
    "make",
    "thing",
    "see",
    "him",
    "two",
    "has",
    "look",
    "more",
    "day",
    "could",
    "go",
    "come",
    "did",
    "number",
    "sound",
    "no",
    "most",
    "people",
    "my",
    "over",
    "know",
    "water",
    "than",
    "call",
    "first",
    "who",
    "may",
    "down",
    "side",
    "been",
    "now",
    "find",
    "harbour",
    "lantern",
    "violin",
    "orchard",
]


def write_rows(path: Path, rows: int, seed: int) -> None:
    """Rows of random words: every prompt and answer is different."""
    generator = np.random.default_rng(seed)
    with path.open("w") as opened:
        for row in range(rows):
            question = " ".join(WORDS[word] for word in generator.integers(0, len(WORDS), 25))
            answer = " ".join(WORDS[word] for word in generator.integers(0, len(WORDS), 80))
            messages = [
                {"role": "user", "content": f"{question} {row}?"},
                {"role": "assistant", "content": f"{answer.capitalize()}."},
            ]
            opened.write(json.dumps({"messages": messages}) + "\n")


def floor_seconds(path: Path, tokenizer: Tokenizer) -> tuple[float, float]:
    """Seconds to read every row, and to render and tokenise it once."""
    start = time.perf_counter()
    rows = [record for record in iter_records(path) if isinstance(record, Row)]
    read = time.perf_counter() - start
    start = time.perf_counter()
    for first in range(0, len(rows), 1024):
        texts = [render(conversation_of(row), tokenizer) for row in rows[first : first + 1024]]
        tokenizer.encode_batch(texts, add_special_tokens=False)
    return read, time.perf_counter() - start


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
    print(
        f"{'rows':>9} {'MB':>7} {'read s':>8} {'tokens s':>9} {'floor s':>8} {'audit s':>8} {'ratio':>6} "
        f"{'peak MB':>8}"
    )
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.jsonl"
            write_rows(path, rows, arguments.seed)
            eval_path = None
            if arguments.eval_items:
                eval_path = Path(folder) / "eval.jsonl"
                write_rows(eval_path, arguments.eval_items, arguments.seed + 1)
            start = time.perf_counter()
            run_audit(
                AuditInputs(
                    dataset=str(path),
                    base_model=arguments.tokenizer,
                    eval_dataset=str(eval_path) if eval_path else None,
                )
            )
            audit = time.perf_counter() - start
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            read, tokens = floor_seconds(path, tokenizer)
            floor = read + tokens
            print(
                f"{rows:>9,} {path.stat().st_size / 1e6:>7.1f} {read:>8.2f} {tokens:>9.2f} {floor:>8.2f} "
                f"{audit:>8.2f} {audit / floor:>6.2f} {peak:>8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
