"""Tiny random models with adapters of every supported kind, made in milliseconds. No network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from gradian.gradients.batch import TokenSequence

ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def tiny_base(
    vocabulary: int = 64, layers: int = 2, hidden: int = 32, seed: int = 0, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """A random two-layer Llama."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def tiny_gpt2(vocabulary: int = 64, seed: int = 0) -> nn.Module:
    """A random GPT-2: fused projections held as Conv1D, dropout in its config."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=0
    )
    return AutoModelForCausalLM.from_config(config).eval()


def with_adapter(base: nn.Module, seed: int = 1, **lora: Any) -> nn.Module:
    """Put a LoRA adapter on, with random values in every trained tensor so that nothing is zero."""
    settings: dict[str, Any] = {
        "r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.1,
        "target_modules": ALL_LINEAR,
        "task_type": "CAUSAL_LM",
        **lora,
    }
    model = get_peft_model(base, LoraConfig(**settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name or "lora_B" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
            elif "lora_magnitude" in name:
                parameter.mul_(1 + 0.1 * torch.rand(parameter.shape, generator=generator))
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def random_sequences(
    count: int, vocabulary: int = 64, longest: int = 24, seed: int = 2, shortest: int = 3
) -> list[TokenSequence]:
    """Sequences of unequal length with random masks; every third has targets at its end only."""
    generator = np.random.default_rng(seed)
    sequences = []
    for index in range(count):
        length = int(generator.integers(shortest, longest + 1))
        mask = generator.random(length) < 0.6
        if index % 3 == 0:
            mask[:] = False
            mask[length // 2 :] = True
        mask[-1] = True
        sequences.append(TokenSequence(generator.integers(0, vocabulary, length).astype(np.int32), mask))
    return sequences
