"""starcoder2: layer norms and biases, a feed-forward without a gate."""

from __future__ import annotations

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("starcoder2",)
HF_MODEL_TYPES = ("starcoder2",)
CHECKPOINT_NAMES = {"up": "mlp.c_fc", "down": "mlp.c_proj"}


def describe(reader: Reader) -> Architecture:
    """The window of the files counts, as in BigCode's own; GGUF files don't have it."""
    reader.keys.note("use_bias")
    reader.keys.only("norm_type", "layer_norm")
    layer = Layer(
        reader.attention(window=reader.window()),
        reader.dense(
            gated=False,
            bias=reader.has("q.bias"),
            activation=reader.activation("gelu_tanh"),
        ),
    )
    eps = reader.number("attention.layer_norm_epsilon", "norm_epsilon")
    return reader.architecture(
        "starcoder2",
        [layer] * reader.n_layers,
        norm="layer" if reader.has("attn_norm.bias") else "layer_without_bias",
        norm_eps=eps,
    )
