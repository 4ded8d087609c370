"""llama: Llama 1-3, Mistral, Ministral, Mixtral, SmolLM, Falcon 3 ...; mistral3: Mistral Small 3 and Ministral 3."""

from __future__ import annotations

from dataclasses import replace

from imp_server.core import UnsupportedModel
from imp_server.models.architecture import Architecture, Layer
from imp_server.models.feed_forwards import Experts, FeedForward
from imp_server.models.mixers import Temperature
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("llama", "mistral3")
HF_MODEL_TYPES = ("llama", "mistral", "ministral", "ministral3")


def describe(reader: Reader) -> Architecture:
    is_third = reader.kind in ("mistral3", "ministral3")
    rope = reader.rope(reader.head_size(), permuted=True, own=("llama_4_scaling_beta",) if is_third else ())
    attention = reader.attention(rope=rope)
    if is_third and (share := _temperature(reader)):
        attention = replace(attention, temperature=Temperature(share, max(1, rope.scaling.original_context)))
    feed_forward = _feed_forward(reader)
    layers = [Layer(attention.seeing(window), feed_forward) for window in _windows(reader)]
    return reader.architecture("llama", layers)


def _windows(reader: Reader) -> list[int]:
    if reader.format == "gguf":
        return [reader.window()] * reader.n_layers
    if reader.kind == "ministral":
        return reader.windows(0)
    window = 0 if reader.kind == "llama" else reader.window()
    _check_layer_types(reader, window)
    return [window] * reader.n_layers


def _temperature(reader: Reader) -> float:
    if reader.format == "gguf":
        return reader.number("attention.temperature_scale", "", 0.0)
    rope = reader.keys.mapping("rope_parameters" if "rope_parameters" in reader.keys else "rope_scaling")
    beta = rope.get("llama_4_scaling_beta") or 0.0
    if isinstance(beta, bool) or not isinstance(beta, int | float):
        raise reader.keys.wrong("llama_4_scaling_beta", beta, "a number")
    return float(beta)


def _feed_forward(reader: Reader) -> FeedForward:
    count = reader.integer("expert_count", "", 0, low=0, high=4096)
    if not count:
        return reader.dense()
    hidden = reader.integer("expert_feed_forward_length", "", reader.integer("feed_forward_length", ""))
    return Experts(count, reader.integer("expert_used_count", "", high=count), hidden)


def _check_layer_types(reader: Reader, window: int) -> None:
    """All layers are of one kind. Raises UnsupportedModel."""
    reader.keys.note("layer_types")
    types = reader.header.hyperparameters.get("layer_types")
    wanted = "sliding_attention" if window else "full_attention"
    if types and (not isinstance(types, list) or any(kind != wanted for kind in types)):
        raise UnsupportedModel(f"{reader.where}: 'layer_types' isn't {wanted} for every layer")
