"""Makes the run folders under tests/fixtures/runs that real trainers wrote.

    python scripts/make_run_fixtures.py [--only trl-1.16.0 ...] [--venvs DIR]

For each version below it makes a virtual environment in DIR (kept, so that a second call is quick), and in it
trains LoRA on a random two-layer Llama with a byte tokenizer for a few steps on the CPU. What the trainer
wrote is copied, without optimizer states, full weights and anything that names the machine. It needs a
package index and some minutes; the tests only need the folders.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures" / "runs"
TOKENIZER = FIXTURES / "_tokenizer"

#: fixture -> (how it is trained, packages). Torch comes first, so that the CPU build is taken.
FIXTURE_PACKAGES: dict[str, tuple[str, list[str]]] = {
    "trl-0.15.2": ("sft", ["trl==0.15.2", "transformers==4.49.0", "peft==0.14.0", "rich"]),
    "trl-0.19.1": ("sft", ["trl==0.19.1", "transformers==4.53.2", "peft==0.16.0"]),
    "trl-0.24.0": ("sft", ["trl==0.24.0", "transformers==4.57.1", "peft==0.17.1"]),
    "trl-1.16.0": ("sft", ["trl==1.16.0", "transformers==5.24.0", "peft==0.21.2"]),
    "trl-1.16.0-nan": ("sft-nan", ["trl==1.16.0", "transformers==5.24.0", "peft==0.21.2"]),
    "trl-1.16.0-resumed": ("sft-resumed", ["trl==1.16.0", "transformers==5.24.0", "peft==0.21.2"]),
    "transformers-4.49.0": ("trainer", ["trl==0.15.2", "transformers==4.49.0", "peft==0.14.0", "rich"]),
    "transformers-5.24.0": ("trainer", ["trl==1.16.0", "transformers==5.24.0", "peft==0.21.2"]),
}
COMMON_PACKAGES = ["tensorboard", "accelerate", "datasets"]
KEPT = (
    "README.md",
    "adapter_config.json",
    "adapter_model.safetensors",
    "chat_template.jinja",
    "tokenizer_config.json",
    "trainer_state.json",
    "training_args.bin",
)
MAX_BYTES = 120_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=sorted(FIXTURE_PACKAGES), default=sorted(FIXTURE_PACKAGES)
    )
    parser.add_argument("--venvs", type=Path, default=None, help="where environments are kept")
    parser.add_argument("--train", metavar="KIND", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    with tempfile.TemporaryDirectory() as scratch:
        venvs = options.venvs or Path(scratch) / "venvs"
        for name in options.only:
            make(name, venvs.resolve(), Path(scratch) / name)


def make(name: str, venvs: Path, work: Path) -> None:
    """Makes one fixture."""
    kind, packages = FIXTURE_PACKAGES[name]
    python = environment(venvs / packages[0], packages)
    work.mkdir(parents=True)
    shutil.copytree(TOKENIZER, work / "tokenizer")
    subprocess.run([python, str(Path(__file__).resolve()), "--train", kind], cwd=work, check=True)
    target = FIXTURES / name
    shutil.rmtree(target, ignore_errors=True)
    for path in sorted((work / "out").rglob("*")):
        relative = path.relative_to(work / "out")
        if path.is_file() and (path.name in KEPT or path.name.startswith("events.out.tfevents")):
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / relative)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    assert size < MAX_BYTES, f"{name} is {size} bytes, too large to keep in the repository"
    print(f"{name}: {size} bytes")


def environment(folder: Path, packages: list[str]) -> str:
    """The Python of an environment with these packages; made when it is not there."""
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "torch"], check=True)
        subprocess.run([*install, *packages, *COMMON_PACKAGES], check=True)
    return str(python)


def train(kind: str) -> None:
    """Trains in the current folder, which holds `tokenizer/`. Runs in the fixture's environment."""
    import socket

    socket.gethostname = lambda: "host"  # TensorBoard writes it into file names
    os.environ["TENSORBOARD_LOGGING_DIR"] = "out/runs/first"
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=264, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained("tokenizer")
    LlamaForCausalLM(config).save_pretrained("base")
    tokenizer.save_pretrained("base")
    if kind == "trainer":
        train_plain()
    else:
        train_sft(kind)


def common_arguments(kind: str) -> dict[str, object]:
    """Training arguments that every version has."""
    arguments: dict[str, object] = {
        "output_dir": "out", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "num_train_epochs": 2, "learning_rate": 2e-4, "logging_steps": 1, "save_strategy": "epoch",
        "eval_strategy": "epoch", "save_total_limit": 1, "report_to": ["tensorboard"], "seed": 7,
        "warmup_steps": 1, "use_cpu": True,
    }  # fmt: skip
    import transformers

    if int(transformers.__version__.split(".")[0]) < 5:
        arguments["logging_dir"] = "out/runs/first"
    if kind == "sft-nan":
        arguments.update(learning_rate=1e30, max_grad_norm=0.0)
    return arguments


def lora() -> object:
    from peft import LoraConfig

    return LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def rows(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"What is {n} plus one? ", "completion": f"It is {n + 1}."} for n in range(count)]


def train_sft(kind: str) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import SFTConfig, SFTTrainer

    train_rows, eval_rows = Dataset.from_list(rows(16)), Dataset.from_list(rows(4))
    length = "max_length" if hasattr(SFTConfig, "max_length") else "max_seq_length"
    if length == "max_seq_length":  # before 0.16 a prompt and a completion were not joined

        def join(row: dict[str, str]) -> dict[str, str]:
            return {"text": row["prompt"] + row["completion"]}

        train_rows = train_rows.map(join, remove_columns=["prompt", "completion"])
        eval_rows = eval_rows.map(join, remove_columns=["prompt", "completion"])
    for attempt in (1, 2) if kind == "sft-resumed" else (1,):
        arguments = SFTConfig(**common_arguments(kind), **{length: 64}, bf16=False)
        trainer = SFTTrainer(
            model=AutoModelForCausalLM.from_pretrained("base"), args=arguments, train_dataset=train_rows,
            eval_dataset=eval_rows, peft_config=lora(),
        )  # fmt: skip
        if attempt == 2:
            back = sorted(Path("out").glob("checkpoint-*"))[-1]
            state = json.loads((back / "trainer_state.json").read_text())
            print("resuming from step", state["global_step"])
            arguments.num_train_epochs = 3
            trainer.train(resume_from_checkpoint=str(back))
        else:
            trainer.train()
        trainer.save_model("out")
        trainer.save_state()
    trainer.create_model_card()


def train_plain() -> None:
    from datasets import Dataset
    from peft import get_peft_model
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainingArguments,
    )

    tokenizer = AutoTokenizer.from_pretrained("base")
    tokens = [tokenizer(row["prompt"] + row["completion"]) for row in rows(16)]
    trainer = Trainer(
        model=get_peft_model(AutoModelForCausalLM.from_pretrained("base"), lora()),
        args=TrainingArguments(**common_arguments("trainer")),
        train_dataset=Dataset.from_list([{"input_ids": row["input_ids"]} for row in tokens]),
        eval_dataset=Dataset.from_list([{"input_ids": row["input_ids"]} for row in tokens[:4]]),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train()
    trainer.save_model("out")
    trainer.save_state()
    trainer.create_model_card(model_name="out")


if __name__ == "__main__":
    sys.exit(main())
