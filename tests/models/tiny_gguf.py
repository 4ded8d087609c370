"""Writes small llama GGUF files with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    loud_rows: range = range(0),
) -> Path:
    """`drop`: tensors left out; `reshape`: wrong shapes; `keys`: overrides of hyperparameters.

    `tokenizer`: `tokenizer.ggml.*` keys, usually with as many tokens as `vocab`; one of bytes if there is none.
    `keys` may hold texts and booleans, too. `loud_rows`: of the head, with logits larger than all others.
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
    _add_tokenizer(writer, vocab, tokenizer)
    if template:
        writer.add_string("tokenizer.chat_template", template)
    tensors = {
        **_outer(vocab, width, head, tied=tied, rope_factors=rope_factors),
        **{name: entry for i in range(n_layers) for name, entry in _layer(i, width, n_kv_heads * head, hidden).items()},
    }
    rng = np.random.default_rng(seed)
    for name, (shape, kind) in tensors.items():
        if name in drop:
            continue
        values = _values(rng, (reshape or {}).get(name, shape))
        if name == "output.weight" and loud_rows:
            values[loud_rows] *= 8
        _add_tensor(writer, name, values, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tiny_lora(path: Path, *, n_layers: int = 2, width: int = 64, kv_width: int = 32, rank: int = 4) -> Path:
    """A loud adapter of such a model's queries and values, as llama.cpp has them."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0 * rank)
    rng = np.random.default_rng(len(path.stem))
    for layer in range(n_layers):
        for name, n_out in (("attn_q", width), ("attn_v", kv_width)):
            for half, shape in (("a", (rank, width)), ("b", (n_out, rank))):
                values = rng.standard_normal(shape).astype(np.float32)
                writer.add_tensor(f"blk.{layer}.{name}.weight.lora_{half}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _outer(
    vocab: int, width: int, head: int, *, tied: bool, rope_factors: bool
) -> dict[str, tuple[tuple[int, ...], str]]:
    """The tensors outside layers."""
    return {
        "token_embd.weight": ((vocab, width), "Q8_0"),
        "output_norm.weight": ((width,), "F32"),
        **({} if tied else {"output.weight": ((vocab, width), "F16")}),
        **({"rope_freqs.weight": ((head // 2,), "F32")} if rope_factors else {}),
    }


def _add_hyperparameters(writer: gguf.GGUFWriter, values: Mapping[str, Any]) -> None:
    floats = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0}
    for name, value in {**floats, **values}.items():
        add_key(writer, name if name.startswith(("general.", "tokenizer.")) else f"llama.{name}", value)


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """With the type that the value's own has in files."""
    array: Callable[[str, Any], None] = writer.add_array
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    adders.get(type(value), array)(key, value)


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


def _add_tokenizer(writer: gguf.GGUFWriter, vocab: int, keys: Mapping[str, Any] | None) -> None:
    if keys is None:
        _add_byte_tokenizer(writer, vocab)
        return
    for name, value in keys.items():
        # A sequence of another kind than a list would be taken for a number.
        add_key(writer, f"tokenizer.ggml.{name}", value if isinstance(value, str | bool | int) else list(value))


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
