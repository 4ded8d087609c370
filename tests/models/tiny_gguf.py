"""Writes small llama GGUF files with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt


def write_tiny_llama(
    path: Path,
    *,
    n_layers: int = 2,
    width: int = 64,
    n_heads: int = 4,
    n_kv_heads: int = 2,
    hidden: int = 96,
    vocab: int = 288,
    context: int = 256,
    tied: bool = False,
    rope_factors: bool = False,
    seed: int = 0,
    drop: tuple[str, ...] = (),
    reshape: dict[str, tuple[int, ...]] | None = None,
    keys: dict[str, Any] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    template: str = "",
) -> Path:
    """`drop`: tensors left out; `reshape`: wrong shapes; `keys`: overrides of integer hyperparameters.

    `tokenizer`: `tokenizer.ggml.*` keys with as many tokens as `vocab`; one of bytes if there is none.
    """
    writer = gguf.GGUFWriter(str(path), "llama")
    head = width // n_heads
    numbers = {
        "block_count": n_layers,
        "context_length": context,
        "embedding_length": width,
        "feed_forward_length": hidden,
        "attention.head_count": n_heads,
        "attention.head_count_kv": n_kv_heads,
        "rope.dimension_count": head,
        **(keys or {}),
    }
    _add_hyperparameters(writer, numbers)
    if tokenizer is None:
        _add_byte_tokenizer(writer, vocab)
    else:
        _add_tokenizer(writer, tokenizer)
    if template:
        writer.add_string("tokenizer.chat_template", template)
    tensors = {
        "token_embd.weight": ((vocab, width), "Q8_0"),
        "output_norm.weight": ((width,), "F32"),
        **({} if tied else {"output.weight": ((vocab, width), "F16")}),
        **({"rope_freqs.weight": ((head // 2,), "F32")} if rope_factors else {}),
        **{name: entry for i in range(n_layers) for name, entry in _layer(i, width, n_kv_heads * head, hidden).items()},
    }
    rng = np.random.default_rng(seed)
    for name, (shape, kind) in tensors.items():
        if name not in drop:
            _add_tensor(writer, name, _values(rng, (reshape or {}).get(name, shape)), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_hyperparameters(writer: gguf.GGUFWriter, numbers: Mapping[str, int]) -> None:
    for name, value in numbers.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 10000.0)


def _layer(i: int, width: int, kv_width: int, hidden: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each tensor of layer i, by name."""
    return {
        f"blk.{i}.attn_norm.weight": ((width,), "F32"),
        f"blk.{i}.attn_q.weight": ((width, width), "Q4_1"),
        f"blk.{i}.attn_k.weight": ((kv_width, width), "Q8_0"),
        f"blk.{i}.attn_v.weight": ((kv_width, width), "F16"),
        f"blk.{i}.attn_output.weight": ((width, width), "F32"),
        f"blk.{i}.ffn_norm.weight": ((width,), "F32"),
        f"blk.{i}.ffn_gate.weight": ((hidden, width), "Q4_1"),
        f"blk.{i}.ffn_up.weight": ((hidden, width), "Q8_0"),
        f"blk.{i}.ffn_down.weight": ((width, hidden), "Q4_1"),
    }


def _values(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Norms near 1; matrices that keep the size of what they multiply."""
    values = rng.standard_normal(shape).astype(np.float32)
    return np.float32(1) + np.float32(0.1) * values if len(shape) == 1 else values * np.float32(shape[-1] ** -0.5)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: npt.NDArray[np.float32], kind: str) -> None:
    if kind == "F32":
        writer.add_tensor(name, values)
    elif kind == "F16":
        writer.add_tensor(name, values.astype(np.float16))
    else:
        quant = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(values, quant), raw_dtype=quant)


def _add_tokenizer(writer: gguf.GGUFWriter, keys: Mapping[str, Any]) -> None:
    for name, value in keys.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, list(value))


def _add_byte_tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    """Every byte is a token; then `<|end|>`; the rest is unused."""
    alphabet = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
    alphabet += [chr(256 + i) for i in range(256 - len(alphabet))]
    tokens = [*alphabet, "<|end|>", *(f"<unused{i}>" for i in range(vocab - 257))]
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "gpt-2")
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.token_type", [1] * 256 + [3] + [5] * (vocab - 257))
    writer.add_array("tokenizer.ggml.merges", ["a b"])
    writer.add_uint32("tokenizer.ggml.eos_token_id", 256)
