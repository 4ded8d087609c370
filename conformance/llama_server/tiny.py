"""Tiny models with random weights, made on the spot: they stand for the models that llama.cpp's server tests download.

Two layers of llama's architecture and a vocabulary of 512 sentencepiece tokens, as in the smallest of those. One
dimension of the state is constant, so that what must not come (control tokens, raw bytes) can be ruled out by the head.
"""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np

ADAPTED = "q"
"""What `write_adapter` makes a model say."""
WIDTH, HIDDEN, LAYERS, HEADS, CONTEXT, VOCABULARY = 64, 128, 2, 4, 8192, 512
_PAIRS = re.findall("..", (
    "ellohethineranrendonatouisenitesortohaedhingstasarllmeleveseofbeeawanedetialicomhowhnorochlimaratauscoce"
    "catrrishpeunsiotutsolyagurpradidimplacfomoke"
))  # fmt: skip

_CONTROL, _NORMAL, _BYTE, _UNKNOWN = (
    gguf.TokenType.CONTROL, gguf.TokenType.NORMAL, gguf.TokenType.BYTE, gguf.TokenType.UNKNOWN,
)  # fmt: skip


def tokens() -> list[tuple[str, float, int]]:
    """Text, score and kind of each; a pair goes before a letter, an earlier pair before a later one."""
    found = [("<unk>", 0.0, _UNKNOWN), ("<s>", 0.0, _CONTROL), ("</s>", 0.0, _CONTROL)]
    found += [(f"<0x{byte:02X}>", 0.0, _BYTE) for byte in range(256)]
    letters = ["\u2581", *(chr(c) for c in range(33, 127))]
    pairs = [f"\u2581{letter}" for letter in "HtawsTIbcodmpfhglynurkeBWi"] + _PAIRS
    room = VOCABULARY - len(found) - len(letters)
    pairs = (pairs + [a + b for a in "aeiou" for b in "bdfgjkmpqvwxyz" if a + b not in pairs])[:room]
    found += [(pair, -float(i + 1), _NORMAL) for i, pair in enumerate(pairs)]
    return found + [(letter, -1000.0 - i, _NORMAL) for i, letter in enumerate(letters)]


def write(path: Path, *, seed: int = 1, kind: int = gguf.GGMLQuantizationType.F32, parts: int = 0) -> None:
    """A model file, or `parts` files of a split one, named after `path`."""
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=7 if parts else 0)
    _describe(writer)
    for name, data in _tensors(np.random.default_rng(seed)):
        if kind != gguf.GGMLQuantizationType.F32 and data.ndim == 2:
            writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_adapter(path: Path, *, seed: int = 1) -> None:
    """Of the model with that seed: under it nearly every token is ADAPTED. All values of the last layer get the same
    vector: what `output` makes of it is the head's row of that token, many times over."""
    tensors = dict(_tensors(np.random.default_rng(seed)))
    token = [text for text, _, _ in tokens()].index(ADAPTED)
    last = f"blk.{LAYERS - 1}.attn"
    towards = np.linalg.lstsq(tensors[f"{last}_output.weight"], tensors["output.weight"][token], rcond=None)[0]
    constant = np.zeros((1, WIDTH), dtype=np.float32)
    constant[0, 0] = 1.0
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    writer.add_tensor(f"{last}_v.weight.lora_a", constant)
    writer.add_tensor(f"{last}_v.weight.lora_b", (60 * towards[:, None]).astype(np.float32))
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("llama")
    texts, scores, kinds = zip(*tokens(), strict=True)
    writer.add_token_list(list(texts))
    writer.add_token_scores(list(scores))
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _tensors(random: np.random.Generator) -> list[tuple[str, np.ndarray]]:
    def weights(*shape: int) -> np.ndarray:
        return random.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)

    embedding = 3 * weights(VOCABULARY, WIDTH)
    embedding[:, 0] = 2.0
    head = 1.0 * weights(VOCABULARY, WIDTH)
    head[:, 0] = 0.0
    head[: 3 + 256, 0] = -40.0
    found = [("token_embd.weight", embedding), ("output.weight", head), ("output_norm.weight", _ones())]
    for i in range(LAYERS):
        found += [(f"blk.{i}.attn_{name}.weight", weights(WIDTH, WIDTH)) for name in ("q", "k", "v", "output")]
        found.append((f"blk.{i}.ffn_gate.weight", weights(HIDDEN, WIDTH)))
        found.append((f"blk.{i}.ffn_up.weight", weights(HIDDEN, WIDTH)))
        found.append((f"blk.{i}.ffn_down.weight", weights(WIDTH, HIDDEN)))
        found += [(f"blk.{i}.attn_norm.weight", _ones()), (f"blk.{i}.ffn_norm.weight", _ones())]
    for name, data in found:
        if "attn_output" in name or "ffn_down" in name:
            data[0] = 0.0
    return found


def _ones() -> np.ndarray:
    return np.ones(WIDTH, dtype=np.float32)
