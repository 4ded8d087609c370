"""seed_oss: ByteDance's Seed-OSS: Llama with biases on q, k and v."""

from __future__ import annotations

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("seed_oss",)
HF_MODEL_TYPES = ("seed_oss",)
GGUF_NAMES = {"ffn_norm": "post_attention_norm", "post_attn_norm": ""}


def describe(reader: Reader) -> Architecture:
    attention = reader.attention(out_bias=reader.has_bias("o", "attention_out_bias"))
    return reader.architecture("seed_oss", [Layer(attention, reader.dense())] * reader.n_layers)
