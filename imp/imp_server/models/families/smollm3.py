"""smollm3: Llama whose every fourth layer has no rope."""

from __future__ import annotations

from dataclasses import replace

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("smollm3",)
HF_MODEL_TYPES = ("smollm3",)


def describe(reader: Reader) -> Architecture:
    attention = reader.attention(rope=reader.rope(reader.head_size(), permuted=True))
    bare = replace(attention, rope=None)
    dense = reader.dense()
    layers = [Layer(attention if turns else bare, dense) for turns in _turning(reader)]
    return reader.architecture("smollm3", layers)


def _turning(reader: Reader) -> list[bool]:
    """Of each layer, whether it has rope. GGUF files don't say: there it is every layer but each fourth."""
    every = reader.integer("", "no_rope_layer_interval", 4)
    reader.keys.note("no_rope_layers", "layer_types")
    listed = reader.header.hyperparameters.get("no_rope_layers")
    if listed is None:
        return [(index + 1) % every != 0 for index in range(reader.n_layers)]
    if not isinstance(listed, list) or len(listed) < reader.n_layers:
        raise reader.keys.wrong("no_rope_layers", listed, f"a list of {reader.n_layers}")
    return [bool(turns) for turns in listed[: reader.n_layers]]
