"""Mixtures of experts of the Llama kind: mixtral, qwen2moe, qwen3moe, olmoe, granitemoe."""

from __future__ import annotations

from typing import Any

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.families.granite import HYBRID_KEYS
from imp_server.models.feed_forwards import Experts, FeedForward
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("qwen2moe", "qwen3moe", "olmoe", "granitemoe")
HF_MODEL_TYPES = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe")
CHECKPOINT_NAMES = {
    "shared_gate": "mlp.shared_expert.gate_proj",
    "shared_up": "mlp.shared_expert.up_proj",
    "shared_down": "mlp.shared_expert.down_proj",
    "shared_router": "mlp.shared_expert_gate",
}
MIXTRAL_NAMES = {
    "router": "block_sparse_moe.gate",
    "experts_gate": "block_sparse_moe.experts.{e}.w1",
    "experts_up": "block_sparse_moe.experts.{e}.w3",
    "experts_down": "block_sparse_moe.experts.{e}.w2",
}
GRANITE_NAMES = {
    "router": "block_sparse_moe.router.layer",
    "experts_gate_up": "block_sparse_moe.input_linear",
    "experts_down": "block_sparse_moe.output_linear",
}


def checkpoint_names(kind: str, _: Architecture) -> dict[str, str]:
    return {"mixtral": MIXTRAL_NAMES, "granitemoe": GRANITE_NAMES}.get(kind, CHECKPOINT_NAMES)


def describe(reader: Reader) -> Architecture:
    kind = reader.kind.replace("_", "")
    fields: dict[str, Any] = {}
    if kind == "granitemoe":
        reader.keys.note(*HYBRID_KEYS)
        fields = {
            "embedding_scale": reader.number("embedding_scale", "embedding_multiplier", 1.0),
            "residual_scale": reader.number("residual_scale", "residual_multiplier", 1.0),
            "logit_scale": 1.0 / reader.positive("logit_scale", "logits_scaling", 1.0),
        }
    attention = _attention(reader, kind)
    mixture = _experts(reader, kind)
    layers = [Layer(attention, _feed_forward(reader, mixture, index)) for index in range(reader.n_layers)]
    return reader.architecture(reader.kind, layers, **fields)


def _attention(reader: Reader, kind: str) -> Any:
    reader.keys.note("layer_types", "qkv_bias", "sliding_window")
    if kind == "granitemoe":
        scale = reader.number("attention.scale", "attention_multiplier", 0.0)
        return reader.attention(rope=reader.rope(reader.head_size(), permuted=True), scale=scale)
    if kind == "mixtral":
        return reader.attention(window=reader.window())
    if kind == "qwen3moe":
        reader.keys.only("use_qk_norm", True)
    return reader.attention(qk_norm={"qwen3moe": "per_head", "olmoe": "whole"}.get(kind, "none"))


def _experts(reader: Reader, kind: str) -> Experts:
    counts = "num_experts" if "num_experts" in reader.keys else "num_local_experts"
    count = reader.integer("expert_count", counts, high=4096)
    width = "intermediate_size" if kind in ("mixtral", "granitemoe", "olmoe") else "moe_intermediate_size"
    if reader.format == "gguf" and "expert_feed_forward_length" not in reader.keys:
        hidden = reader.integer("feed_forward_length", "")
    else:
        hidden = reader.integer("expert_feed_forward_length", width)
    shared = 0
    if kind in ("qwen2moe", "granitemoe"):
        shared = reader.integer("expert_shared_feed_forward_length", "shared_expert_intermediate_size", 0, low=0)
    return Experts(
        count,
        reader.integer("expert_used_count", "num_experts_per_tok", high=count),
        hidden,
        normalise_top_k=_normalises(reader, kind),
        shared_hidden=shared,
        shared_gate=kind == "qwen2moe" and shared > 0,
        activation=reader.activation(),
    )


def _normalises(reader: Reader, kind: str) -> bool:
    if kind in ("mixtral", "granitemoe"):
        return True
    reader.keys.note("norm_topk_prob")
    if reader.format == "gguf":
        return reader.keys.flag("expert_weights_norm", kind == "qwen3moe")
    return reader.keys.flag("norm_topk_prob", False)


def _feed_forward(reader: Reader, mixture: Experts, index: int) -> FeedForward:
    """Some layers of a checkpoint may be dense."""
    if reader.format == "checkpoint":
        reader.keys.note("mlp_only_layers", "intermediate_size")
        only = reader.header.hyperparameters.get("mlp_only_layers") or []
        if not isinstance(only, list):
            raise reader.keys.wrong("mlp_only_layers", only, "a list of layers")
        step = reader.integer("", "decoder_sparse_step", 1)
        if index in only or (index + 1) % step:
            return reader.dense(bias=False)
    reader.keys.note("feed_forward_length")
    return mixture
