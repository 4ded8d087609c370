"""nemotron: Nemotron-4 and Minitron, the dense ones: layer norms, half of each head turns, squared ReLU, no gate."""

from __future__ import annotations

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("nemotron",)
HF_MODEL_TYPES = ("nemotron",)


def describe(reader: Reader) -> Architecture:
    reader.keys.note("attention.layer_norm_rms_epsilon")  # the converter writes the eps twice
    reader.keys.only("rope_percent", 0.5)
    attention = reader.attention(rope=reader.rope(reader.head_size(), turning=0.5))
    layer = Layer(attention, reader.dense(gated=False, activation=reader.activation("relu2")))
    return reader.architecture(
        "nemotron",
        [layer] * reader.n_layers,
        norm="layer" if reader.format == "gguf" else "layer_plus_one",  # GGUF's converter adds the one
        norm_eps=reader.number("attention.layer_norm_epsilon", "norm_eps"),
    )
