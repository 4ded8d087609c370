"""phimoe: Phi-3.5-MoE: layer norms, biases, and a router that mixes sparsely."""

from __future__ import annotations

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.mixture import experts_of
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("phimoe",)
HF_MODEL_TYPES = ("phimoe",)
CHECKPOINT_NAMES = {
    "router": "block_sparse_moe.gate",
    "experts_gate": "block_sparse_moe.experts.{e}.w1",
    "experts_up": "block_sparse_moe.experts.{e}.w3",
    "experts_down": "block_sparse_moe.experts.{e}.w2",
}
CONFIG = {"count": "num_local_experts", "hidden": "intermediate_size", "shared": "", "scale": ""}
JITTER = 0.01
"""GGUF files don't say it."""


def describe(reader: Reader) -> Architecture:
    reader.keys.note("router_jitter_noise", "input_jitter_noise")
    width = "expert_feed_forward_length" if "expert_feed_forward_length" in reader.keys else "feed_forward_length"
    reader.keys.note("expert_feed_forward_length", "feed_forward_length")
    experts = experts_of(
        reader,
        names=CONFIG,
        hidden=reader.integer(width, "intermediate_size"),
        gating="sparse_mixer",
        normalise_top_k=False,
        jitter=reader.number("", "router_jitter_noise", JITTER),
    )
    reader.keys.only("lm_head_bias", reader.has("head.bias"))
    return reader.architecture(
        "phimoe",
        [Layer(reader.attention(window=reader.window()), experts)] * reader.n_layers,
        norm="layer",
        norm_eps=reader.number("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        head_bias=reader.has("head.bias"),
    )
