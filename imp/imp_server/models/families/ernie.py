"""ernie4_5: ERNIE 4.5, the dense ones: Llama whose neighbouring pairs turn."""

from __future__ import annotations

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("ernie4_5",)
HF_MODEL_TYPES = ("ernie4_5",)


def describe(reader: Reader) -> Architecture:
    rope = reader.rope(reader.head_size(), interleaved=True)
    attention = reader.attention(
        rope=rope, qkv_bias=reader.has_bias("q", "use_bias"), out_bias=reader.has_bias("o", "use_bias")
    )
    layer = Layer(attention, reader.dense(bias=reader.has_bias("up", "use_bias")))
    return reader.architecture("ernie4_5", [layer] * reader.n_layers)
