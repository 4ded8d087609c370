"""Mixtures whose router is a sigmoid with a correction of the choice: GLM-4.5 to 4.7, MiniMax M2, Ling and Ring 2."""

from __future__ import annotations

from typing import Any

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.mixture import experts_of, feed_forwards
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("glm4moe", "minimax-m2", "bailingmoe2")
HF_MODEL_TYPES = ("glm4_moe", "minimax_m2", "bailing_moe_v2")
MINIMAX_NAMES = {
    "router": "block_sparse_moe.gate",
    "selection_bias": "=block_sparse_moe.e_score_correction_bias",
    "experts_gate": "block_sparse_moe.experts.{e}.w1",
    "experts_up": "block_sparse_moe.experts.{e}.w3",
    "experts_down": "block_sparse_moe.experts.{e}.w2",
}
BAILING_NAMES = {
    "embedding": "model.word_embeddings",
    "qkv": "attention.query_key_value",
    "o": "attention.dense",
    "q_norm": "attention.query_layernorm",
    "k_norm": "attention.key_layernorm",
    "selection_bias": "=mlp.gate.expert_bias",
}
BAILING_CONFIG = {"count": "num_experts", "shared": "num_shared_experts"}
MINIMAX_CONFIG = {"count": "num_local_experts", "hidden": "intermediate_size", "shared": "", "scale": ""}
_SILENT = ("use_routing_bias", "num_mtp_modules", "mtp_transformer_layers", "shared_moe_mode", "attn_type_list")
"""MiniMax's: what the tensors say, too, or of layers that aren't read."""


def checkpoint_names(kind: str, _: Architecture) -> dict[str, str]:
    return {"minimax_m2": MINIMAX_NAMES, "bailing_moe_v2": BAILING_NAMES}.get(kind, {})


def gguf_names(kind: str) -> dict[str, str]:
    return {"ffn_norm": "post_attention_norm", "post_attn_norm": ""} if kind == "glm4moe" else {}


def describe(reader: Reader) -> Architecture:
    reader.leave_out_draft_layers()
    kind = {"glm4_moe": "glm4moe", "minimax_m2": "minimax-m2"}.get(reader.kind, reader.kind)
    describe_kind = {"glm4moe": _glm, "minimax-m2": _minimax}.get(kind, _bailing)
    layer_of, experts = describe_kind(reader)
    layers = [Layer(layer_of, feed_forward) for feed_forward in feed_forwards(reader, experts)]
    return reader.architecture(reader.kind, layers)


def _glm(reader: Reader) -> tuple[Any, Any]:
    has_norms = reader.has("q_norm")
    reader.keys.only("use_qk_norm", has_norms)
    reader.keys.note("attention_bias")  # of q, k and v alone
    attention = reader.attention(
        rope=reader.rope(reader.head_size(), turning=0.5),
        qk_norm="per_head" if has_norms else "none",
        qkv_bias=reader.has("q.bias"),
        out_bias=False,
    )
    return attention, experts_of(reader, gating="sigmoid", selection_bias=True)


def _minimax(reader: Reader) -> tuple[Any, Any]:
    reader.keys.only("use_qk_norm", True)
    reader.keys.only("qk_norm_type", "per_layer")
    reader.keys.only("shared_intermediate_size", 0)
    reader.keys.only("attn_type_list", [1] * reader.n_layers)
    reader.keys.note(*_SILENT)
    head_size = reader.head_size()
    turning = reader.integer("", "rotary_dim", head_size, low=2, high=head_size)
    rope = reader.rope(head_size, turning=turning / head_size)
    experts = experts_of(
        reader, names=MINIMAX_CONFIG, gating="sigmoid", selection_bias=True, normalise_top_k=True, scale=1.0
    )
    reader.keys.only("scoring_func", "sigmoid")
    return reader.attention(rope=rope, qk_norm="whole"), experts


def _bailing(reader: Reader) -> tuple[Any, Any]:
    reader.keys.only("use_qk_norm", True)
    reader.keys.only("score_function", "sigmoid")
    reader.keys.only("use_qkv_bias", False)
    reader.keys.only("use_bias", False)
    reader.keys.only("norm_head", False)
    reader.keys.note("moe_router_enable_expert_bias", "use_rmsnorm", "router_dtype", "mtp_loss_scaling_factor")
    head_size = reader.head_size()
    rope = reader.rope(head_size, turning=0.5)
    experts = experts_of(reader, names=BAILING_CONFIG, gating="sigmoid", selection_bias=True)
    reader.keys.note("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length")
    return reader.attention(rope=rope, qk_norm="per_head", qkv_bias=False, out_bias=False), experts
