"""Writes small Hugging Face folders with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def write_tiny_folder(path: Path, **fields: Any) -> Path:
    """`fields` of its LlamaConfig; no tokenizer."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **fields})).train(False)
    for parameter in model.parameters():  # far from the initial near-zeros, so that a wrong turn shows
        parameter.data = torch.randn_like(parameter) * 0.2 + (parameter.dim() == 1)
    model.save_pretrained(path)
    return path
