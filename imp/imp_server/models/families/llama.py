"""llama: Llama 1-3, Mistral, Mixtral, SmolLM ... as GGUF's architecture `llama` or as a checkpoint."""

from __future__ import annotations

from imp_server.core import UnsupportedModel
from imp_server.models.architecture import Architecture, Layer
from imp_server.models.feed_forwards import Experts, FeedForward
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("llama",)
HF_MODEL_TYPES = ("llama", "mistral")


def describe(reader: Reader) -> Architecture:
    window = 0 if reader.kind == "llama" and reader.format == "checkpoint" else reader.window()
    attention = reader.attention(window=window, rope=reader.rope(reader.head_size(), permuted=True))
    layer = Layer(attention, _feed_forward(reader))
    _check_layer_types(reader, window)
    return reader.architecture("llama", [layer] * reader.n_layers)


def _feed_forward(reader: Reader) -> FeedForward:
    count = reader.integer("expert_count", "", 0, low=0, high=4096)
    if not count:
        return reader.dense()
    hidden = reader.integer("expert_feed_forward_length", "", reader.integer("feed_forward_length", ""))
    return Experts(count, reader.integer("expert_used_count", "", high=count), hidden, gating="softmax_of_top_k")


def _check_layer_types(reader: Reader, window: int) -> None:
    """All layers are of one kind. Raises UnsupportedModel."""
    reader.keys.note("layer_types")
    types = reader.header.hyperparameters.get("layer_types")
    wanted = "sliding_attention" if window else "full_attention"
    if types and (not isinstance(types, list) or any(kind != wanted for kind in types)):
        raise UnsupportedModel(f"{reader.where}: 'layer_types' isn't {wanted} for every layer")
