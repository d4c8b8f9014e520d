"""Every row's gradient against one training step's summed gradient, on the same batches in the same run.

    python benchmarks/gradient_speed.py MODEL [--rows 48] [--rounds 3]

Prints the median seconds of a forward pass, of a LoRA training step (forward, backward, summed gradient of every A
and B) and of the capture of every row's own gradient, exact and projected, with the ratios to the step. The limit is 1:
per-row gradients take the same multiplications as their sum.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gradian.gradients.batch import collate, plan_batches, row_losses
from gradian.gradients.capture import GradientCapture
from gradian.gradients.layout import make_layout
from gradian.model.adapter import read_adapter
from gradian.model.loaded import load
from gradian.model.places import find_base
from gradian.rows.tokenizer import load_tokenizer
from gradian.rows.training_set import read_training_set
from gradian.run.folder import read_run
from gradian.verbs.index import as_sequences

EXAMPLE = Path(__file__).parent.parent / "examples" / "json_formatting"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens-per-batch", type=int, default=1024)
    arguments = parser.parse_args()

    run = read_run(EXAMPLE / "run")
    adapter = read_adapter(EXAMPLE / "run")
    tokenizer = load_tokenizer(str(adapter.path))
    subject = load(find_base(arguments.model), adapter, tokenizer)
    rows = read_training_set(EXAMPLE / "train.jsonl", tokenizer, run.profile)
    sequences = as_sequences(rows)[: arguments.rows]
    batches = [
        [sequences[index] for index in batch]
        for batch in plan_batches([len(s) for s in sequences], arguments.tokens_per_batch)
    ]
    tokens = sum(len(s) for s in sequences)
    weights = [w for site in subject.sites for w in (site.lora_a.weight, site.lora_b.weight)]

    def forward() -> None:
        with torch.no_grad():
            for batch in batches:
                row_losses(subject.model, collate(batch))

    def step() -> None:
        for weight in weights:
            weight.requires_grad_(True)
        for batch in batches:
            torch.autograd.grad(row_losses(subject.model, collate(batch)).sum(), weights)
        for weight in weights:
            weight.requires_grad_(False)

    def capture(k: int | None) -> Callable[[], None]:
        layout = make_layout(adapter.site_shapes, k)

        def go() -> None:
            with GradientCapture(subject.model, subject.sites, layout) as hooks:
                for batch in batches:
                    hooks.gradients(batch)

        return go

    jobs = {
        "forward": forward,
        "training step": step,
        "rows, exact": capture(None),
        "rows, projected to 128": capture(128),
    }
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(arguments.rounds + 1):
        for name, job in jobs.items():
            started = time.perf_counter()
            job()
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    reference = statistics.median(seconds["training step"])
    print(
        f"{len(sequences)} rows, {tokens} tokens, {torch.get_num_threads()} threads, {arguments.rounds} rounds"
    )
    for name, values in seconds.items():
        median = statistics.median(values)
        print(
            f"{name:<24}{median:8.2f} s  {tokens / median:7.1f} tokens/s  {median / reference:5.2f} x training step"
        )


if __name__ == "__main__":
    main()
