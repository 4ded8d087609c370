"""llama4: Llama 4's text side: chunks of the text in layers with rope, a temperature in those without, experts whose
input is weighted."""

from __future__ import annotations

from dataclasses import replace

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.feed_forwards import Dense, Experts
from imp_server.models.mixers import Attention, Temperature
from imp_server.models.mixture import experts_of
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("llama4",)
HF_MODEL_TYPES = ("llama4_text",)
CHECKPOINT_NAMES = {
    "gate": "feed_forward.gate_proj",
    "up": "feed_forward.up_proj",
    "down": "feed_forward.down_proj",
    "router": "feed_forward.router",
    "experts_gate_up": "=feed_forward.experts.gate_up_proj",
    "experts_down": "=feed_forward.experts.down_proj",
    "shared_gate": "feed_forward.shared_expert.gate_proj",
    "shared_up": "feed_forward.shared_expert.up_proj",
    "shared_down": "feed_forward.shared_expert.down_proj",
}
CONFIG = {"count": "num_local_experts", "hidden": "intermediate_size", "scale": ""}
CHUNK, TEMPERATURE = 8192, 0.1
"""GGUF files don't say them."""


def is_turned(name: str, _: str) -> bool:
    """Experts lie [count, in, out]."""
    return name.endswith(("experts.gate_up_proj", "experts.down_proj"))


def describe(reader: Reader) -> Architecture:
    attentions = _attentions(reader)
    hidden = reader.integer("expert_feed_forward_length", "intermediate_size")
    experts = experts_of(
        reader,
        names=CONFIG,
        gating="sigmoid",
        normalise_top_k=False,
        weights_on_input=True,
        shared_hidden=hidden,
        scale=1.0,
    )
    dense = Dense(reader.integer("feed_forward_length", "intermediate_size_mlp"), activation=reader.activation())
    layers = [
        Layer(attention, experts if mixed else dense)
        for attention, mixed in zip(attentions, _mixtures(reader, experts), strict=True)
    ]
    return reader.architecture("llama4", layers)


def _attentions(reader: Reader) -> list[Attention]:
    rope = reader.rope(reader.head_size(), interleaved=True)
    count = reader.integer("expert_count", "num_local_experts", 0, low=0, high=4096)
    if reader.format == "gguf":
        is_chunked = reader.integer("attention.sliding_window", "", CHUNK, low=0, high=1 << 30) > 0
        chunk, has_norm = CHUNK if is_chunked else 0, count != 128  # as llama.cpp tells the larger one
        share, step = (TEMPERATURE, CHUNK) if is_chunked else (0.0, 1)
        turns = [(index + 1) % 4 != 0 for index in range(reader.n_layers)]
    else:
        reader.keys.note("attention_chunk_size", "no_rope_layers", "no_rope_layer_interval", "layer_types")
        values = reader.header.hyperparameters
        chunk = reader.keys.integer("attention_chunk_size", 0, low=0, high=1 << 30)
        has_norm = reader.keys.flag("use_qk_norm", True)
        is_tuned = reader.keys.flag("attn_temperature_tuning", True) if _is_flag(reader) else True
        share = reader.keys.number("attn_scale", TEMPERATURE) if is_tuned else 0.0
        step = int(reader.keys.positive("floor_scale", CHUNK))
        listed = values.get("no_rope_layers") or []
        turns = [bool(turn) for turn in listed] if listed else [(i + 1) % 4 != 0 for i in range(reader.n_layers)]
        if len(turns) != reader.n_layers:
            raise reader.keys.wrong("no_rope_layers", listed, f"a list of {reader.n_layers}")
    reader.keys.note("floor_scale", "attn_scale")
    bare = reader.attention(rope=None)
    bare = replace(bare, temperature=Temperature(share, max(1, step), 1) if share else None)
    turning = replace(bare, rope=rope, temperature=None, chunk=chunk)
    if has_norm:
        turning = replace(turning, qk_norm="per_head_after_rope", bare_qk_norm=True)
    return [turning if turn else bare for turn in turns]


def _is_flag(reader: Reader) -> bool:
    """Some configs have a number there."""
    value = reader.header.hyperparameters.get("attn_temperature_tuning")
    reader.keys.note("attn_temperature_tuning")
    return value is None or isinstance(value, bool)


def _mixtures(reader: Reader, experts: Experts) -> list[bool]:
    """Of each layer, whether it has experts."""
    every = reader.integer("interleave_moe_layer_step", "interleave_moe_layer_step", 1)
    reader.keys.note("moe_layers", "feed_forward_length")
    listed = reader.header.hyperparameters.get("moe_layers") if reader.format == "checkpoint" else None
    if isinstance(listed, list):
        return [index in listed for index in range(reader.n_layers)]
    return [experts.count > 0 and (index + 1) % every == 0 for index in range(reader.n_layers)]
