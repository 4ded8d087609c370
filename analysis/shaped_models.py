"""GGUF files of the true shapes of models that people run, filled with random weights: what speed depends on, without
the gigabytes of a download.

    python analysis/shaped_models.py 1b Q4_K_M FILE.gguf      (3b, olmoe, gpt-oss, gemma-3n, gemma-4; --layers N for
                                                               fewer of them)

Blocks are random bytes with scales of a sane size, so nothing is quantised and a file is written about as fast as the
disk takes it. Which tensor gets which type follows llama.cpp's own recipes. The vocabulary is one of bytes and fillers:
any id can be fed, no text means anything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from imp_server.weights.ggml_types import BY_NAME

from analysis import shaped_gemma
from analysis.shaped_gemma import Beside
from tests.backends.cpu.synthetic_models import random_tensor

RECIPES = (
    "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "IQ4_XS", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "MXFP4"
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """A model's sizes. `experts` 0: dense."""

    architecture: str
    n_layers: int
    width: int
    n_heads: int
    n_kv_heads: int
    head_size: int
    hidden: int
    vocab: int
    tied: bool
    experts: int = 0
    top_k: int = 0
    whole_qk_norm: bool = False
    oss: bool = False
    """Biases, sinks, a window in every other layer."""
    keys: dict[str, Any] = field(default_factory=dict)
    beside: Beside | None = None
    """Of Gemma 3n and 4."""
    recipes: tuple[str, ...] = ("Q4_K_M", "Q6_K", "Q8_0", "IQ4_XS", "Q5_K_M")
    """That a table has unless others are asked for."""

    @property
    def q_width(self) -> int:
        return self.n_heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.n_kv_heads * self.head_size


_LLAMA3 = {"rope.freq_base": 500000.0}
_FEWER_IDS = 65536
"""A quarter of Gemma's, as most of its file is what ids say to layers, of which a step reads a row per id."""
SHAPES = {
    "1b": Shape("llama", 16, 2048, 32, 8, 64, 8192, 128256, True, keys=_LLAMA3),
    "3b": Shape("llama", 28, 3072, 24, 8, 128, 8192, 128256, True, keys=_LLAMA3),
    "olmoe": Shape(
        "olmoe", 16, 2048, 16, 16, 128, 1024, 50304, False, 64, 8, whole_qk_norm=True, recipes=("Q4_K_M", "Q8_0")
    ),
    "gpt-oss": Shape(
        "gpt-oss", 24, 2880, 64, 8, 64, 2880, 201088, False, 32, 4, oss=True, recipes=("MXFP4",),
        keys={"rope.freq_base": 150000.0, "attention.sliding_window": 128, "expert_feed_forward_length": 2880},
    ),
    "gemma-3n": Shape(
        "gemma3n", 30, 2048, 8, 2, 256, 8192, _FEWER_IDS, True, recipes=("Q4_K_M", "Q8_0"),
        beside=Beside(said=256, n_shared=10, every=5, rank=64, streams=4, sparse=10, has_all_keys=True),
    ),
    "gemma-4": Shape(
        "gemma4", 35, 1536, 8, 1, 256, 6144, _FEWER_IDS, True, recipes=("Q4_K_M", "Q8_0"),
        beside=Beside(said=256, n_shared=20, every=5, global_head=512, wider=2),
    ),
}  # fmt: skip


def type_of(recipe: str, stem: str, layer: int, shape: Shape) -> str:
    """The type that llama.cpp's quantiser would give this matrix."""
    n = shape.n_layers
    more_bits = layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2
    is_down = stem.startswith("ffn_down")
    outer = stem == "output" or (stem == "token_embd" and shape.tied)
    if recipe == "MXFP4":
        return "MXFP4" if stem.endswith("_exps") else "Q8_0"
    if recipe in ("Q4_K_M", "Q5_K_M"):
        wide = outer or ((stem == "attn_v" or is_down) and more_bits)
        return "Q6_K" if wide else recipe[:4]
    if recipe == "IQ4_XS" and not outer:
        return "Q5_K" if stem == "attn_v" or (is_down and layer < n // 8) else recipe
    if recipe in ("IQ4_XS", "Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1") and outer:
        return "Q6_K"
    return recipe


def tensors(shape: Shape, recipe: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name in the file, shape (rows first) and type of each."""
    if shape.beside:
        yield from _gemma(shape, shape.beside, recipe)
        return
    w, experts = shape.width, shape.experts
    yield "token_embd.weight", (shape.vocab, w), type_of(recipe, "token_embd", 0, shape)
    yield "output_norm.weight", (w,), "F32"
    if not shape.tied:
        yield "output.weight", (shape.vocab, w), type_of(recipe, "output", 0, shape)
    matrices = {
        "attn_q": (shape.q_width, w),
        "attn_k": (shape.kv_width, w),
        "attn_v": (shape.kv_width, w),
        "attn_output": (w, shape.q_width),
    }
    feed: dict[str, tuple[int, ...]] = {
        "ffn_gate": (shape.hidden, w),
        "ffn_up": (shape.hidden, w),
        "ffn_down": (w, shape.hidden),
    }
    if experts:
        feed = {f"{stem}_exps": (experts, *size) for stem, size in feed.items()}
    second = "post_attention_norm" if shape.oss else "ffn_norm"
    for i in range(shape.n_layers):
        yield from ((f"blk.{i}.{norm}.weight", (w,), "F32") for norm in ("attn_norm", second))
        for stem, size in {**matrices, **feed}.items():
            yield f"blk.{i}.{stem}.weight", size, type_of(recipe, stem, i, shape)
            if shape.oss:
                yield f"blk.{i}.{stem}.bias", size[:-1], "F32"
        if experts:
            yield f"blk.{i}.ffn_gate_inp.weight", (experts, w), "F32"
        if shape.whole_qk_norm:
            yield f"blk.{i}.attn_q_norm.weight", (shape.q_width,), "F32"
            yield f"blk.{i}.attn_k_norm.weight", (shape.kv_width,), "F32"
        if shape.oss:
            yield f"blk.{i}.ffn_gate_inp.bias", (experts,), "F32"
            yield f"blk.{i}.attn_sinks.weight", (shape.n_heads,), "F32"


def _gemma(shape: Shape, beside: Beside, recipe: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    w = shape.width
    yield "token_embd.weight", (shape.vocab, w), type_of(recipe, "token_embd", 0, shape)
    yield "per_layer_token_embd.weight", (shape.vocab, shape.n_layers * beside.said), type_of(recipe, "", 0, shape)
    yield "output_norm.weight", (w,), "F32"
    for name, size in shaped_gemma.matrices(shape, beside):
        _, layer, stem = name.split(".")
        yield f"{name}.weight", size, type_of(recipe, stem, int(layer), shape)
    for name, size in shaped_gemma.plain(shape, beside):
        yield name, size, "F16" if name.split(".")[-2] in shaped_gemma.HALVES else "F32"


def write(path: Path, shape: Shape, recipe: str, seed: int = 0) -> Path:
    """Complete or not there: the file gets its name last."""
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(str(partial), shape.architecture)
    _add_keys(writer, shape)
    _add_vocabulary(writer, shape.vocab)
    wanted = list(tensors(shape, recipe))
    for name, size, kind in wanted:
        known = BY_NAME[kind]
        n_bytes = int(np.prod(size)) // known.block * known.block_bytes
        dtype = np.dtype(np.float32) if kind == "F32" else np.dtype(np.uint8)
        in_bytes = size if kind == "F32" else (*size[:-1], size[-1] // known.block * known.block_bytes)
        quant = None if kind == "F32" else gguf.GGMLQuantizationType[kind]
        writer.add_tensor_info(name, in_bytes, dtype, n_bytes, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(seed)
    for _, size, kind in wanted:
        writer.write_tensor_data(_data(size, kind, rng))
    writer.close()
    return partial.rename(path)


def _data(size: tuple[int, ...], kind: str, rng: np.random.Generator) -> np.ndarray:
    if len(size) == 1 or kind == "F32":
        spread = rng.standard_normal(size).astype(np.float32)
        return np.float32(1) + np.float32(0.1) * spread if len(size) == 1 else spread * np.float32(size[-1] ** -0.5)
    return np.asarray(random_tensor(kind, size, rng, size=size[-1] ** -0.5).data)


def _add_keys(writer: gguf.GGUFWriter, shape: Shape) -> None:
    keys: dict[str, Any] = {
        "block_count": shape.n_layers,
        "context_length": 131072,
        "embedding_length": shape.width,
        "feed_forward_length": shape.hidden,
        "attention.head_count": shape.n_heads,
        "attention.head_count_kv": shape.n_kv_heads,
        "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": shape.head_size,
        "vocab_size": shape.vocab,
        **({"expert_count": shape.experts, "expert_used_count": shape.top_k} if shape.experts else {}),
        **(shaped_gemma.keys(shape, shape.beside) if shape.beside else {}),
        **shape.keys,
    }
    for key, value in keys.items():
        adds: dict[type, Any] = {float: writer.add_float32, list: writer.add_array}
        adds.get(type(value), writer.add_uint32)(f"{shape.architecture}.{key}", value)


def _add_vocabulary(writer: gguf.GGUFWriter, n: int) -> None:
    alphabet = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
    alphabet += [chr(256 + i) for i in range(256 - len(alphabet))]
    tokens = [*alphabet, "<|end|>", *(f"<|filler{i}|>" for i in range(n - 257))]
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "gpt-2")
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.token_type", [1] * 256 + [3] + [5] * (n - 257))
    writer.add_array("tokenizer.ggml.merges", ["a b"])
    writer.add_uint32("tokenizer.ggml.eos_token_id", 256)
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int, default=0)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    if options.layers:
        shape = replace(shape, n_layers=options.layers)
    write(options.path, shape, options.recipe)
    print(f"{options.path}: {options.path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
