"""A tiny random Llama with a LoRA adapter, and what the tests of evaluation make of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig

from gradian.rows.tokenizer import Tokenizer

PAD, END = 256, 258  # <|endoftext|>, <|im_end|>


def tiny_lora(dtype: torch.dtype = torch.float32, seed: int = 0) -> PeftModel:
    """Two layers, hidden size 32, a LoRA adapter whose B is not zero, so that the arms differ."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,  # wide, so that greedy answers vary
        bos_token_id=None,
        eos_token_id=None,
    )
    lora = LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    model = get_peft_model(AutoModelForCausalLM.from_config(config, dtype=dtype), lora)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


class TinyArms:
    """What `evaluate_arms` needs of a loaded model."""

    def __init__(self, model: PeftModel, tokenizer: Tokenizer, max_positions: int | None = 256) -> None:
        self.model, self.tokenizer, self.max_positions = model, tokenizer, max_positions
        self.entered: list[str] = []

    @contextlib.contextmanager
    def arm(self, which: str) -> Iterator[Any]:
        self.entered.append(which)
        with self.model.disable_adapter() if which == "base" else contextlib.nullcontext():
            yield self.model


def chat(question: str, answer: str, **more: Any) -> dict[str, Any]:
    """A messages row."""
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **more}
