"""arcee: Arcee's AFM: Llama whose feed-forward has no gate and squares a ReLU."""

from __future__ import annotations

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("arcee",)
HF_MODEL_TYPES = ("arcee",)


def describe(reader: Reader) -> Architecture:
    attention = reader.attention(rope=reader.rope(reader.head_size(), permuted=True))
    layer = Layer(attention, reader.dense(gated=False, activation=reader.activation("relu2")))
    return reader.architecture("arcee", [layer] * reader.n_layers)
