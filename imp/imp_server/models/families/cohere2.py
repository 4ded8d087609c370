"""cohere2: Command R7B and Command A: both halves side by side behind one norm, rope in layers with a window only."""

from __future__ import annotations

from dataclasses import replace

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("cohere2",)
HF_MODEL_TYPES = ("cohere2",)


def describe(reader: Reader) -> Architecture:
    reader.keys.note("rotary_pct")  # what isn't whole is said by partial_rotary_factor, too
    attention = reader.attention(rope=reader.rope(reader.head_size(), interleaved=True))
    dense = reader.dense()
    layers = [
        Layer(attention.seeing(window) if window else replace(attention, rope=None), dense, parallel=True)
        for window in reader.windows(4)
    ]
    return reader.architecture(
        "cohere2",
        layers,
        norm="layer_without_bias",
        norm_eps=reader.number("attention.layer_norm_epsilon", "layer_norm_eps"),
        logit_scale=reader.number("logit_scale", "logit_scale"),
    )
