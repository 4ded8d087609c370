"""phi3: Phi-3 mini and medium, Phi-4 and Phi-4 mini. q, k, v are one tensor, gate and up another."""

from __future__ import annotations

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("phi3",)
HF_MODEL_TYPES = ("phi3",)


def describe(reader: Reader) -> Architecture:
    """The window of the files counts, as in Microsoft's own code; llama.cpp leaves it out."""
    layer = Layer(reader.attention(window=reader.window()), reader.dense())
    return reader.architecture("phi3", [layer] * reader.n_layers)
