"""Mixtures whose router is a softmax, with experts that are always active: ERNIE 4.5 and Hunyuan."""

from __future__ import annotations

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.feed_forwards import FeedForward
from imp_server.models.mixers import Attention
from imp_server.models.mixture import experts_of, has_selection_bias
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("ernie4_5-moe", "hunyuan-moe")
HF_MODEL_TYPES = ("ernie4_5_moe", "hunyuan_v1_moe")
ERNIE_NAMES = {"selection_bias": "=mlp.moe_statics.e_score_correction_bias"}
ERNIE_CONFIG = {"count": "moe_num_experts", "top_k": "moe_k", "shared": "moe_num_shared_experts", "scale": ""}
HUNYUAN_NAMES = {
    "q_norm": "self_attn.query_layernorm",
    "k_norm": "self_attn.key_layernorm",
    "router": "mlp.gate.wg",
    "shared_gate": "mlp.shared_mlp.gate_proj",
    "shared_up": "mlp.shared_mlp.up_proj",
    "shared_down": "mlp.shared_mlp.down_proj",
}
HUNYUAN_CONFIG = {"count": "num_experts", "top_k": "moe_topk", "hidden": "intermediate_size", "scale": ""}


def checkpoint_names(kind: str, _: Architecture) -> dict[str, str]:
    return ERNIE_NAMES if kind == "ernie4_5_moe" else HUNYUAN_NAMES


def describe(reader: Reader) -> Architecture:
    if reader.kind.startswith("hunyuan"):
        attention, layers = _hunyuan(reader)
    else:
        attention, layers = _ernie(reader)
    return reader.architecture(reader.kind, [Layer(attention, feed_forward) for feed_forward in layers])


def _ernie(reader: Reader) -> tuple[Attention, list[FeedForward]]:
    reader.leave_out_draft_layers("model.mtp_")
    bias = reader.has_bias("q", "use_bias")
    rope = reader.rope(reader.head_size(), interleaved=True)
    attention = reader.attention(rope=rope, qkv_bias=bias, out_bias=bias)
    reader.keys.note("expert_shared_feed_forward_length", "moe_norm_min", "moe_use_aux_free", "moe_capacity")
    experts = experts_of(
        reader,
        names=ERNIE_CONFIG,
        gating="softmax",
        normalise_top_k=True,
        scale=1.0,
        selection_bias=has_selection_bias(reader, "mlp.moe_statics.e_score_correction_bias"),
    )
    first = reader.integer("leading_dense_block_count", "moe_layer_start_index", 0, low=0)
    last = reader.integer("", "moe_layer_end_index", -1, low=-1)
    every = reader.integer("interleave_moe_layer_step", "moe_layer_interval", 1)
    is_mixture = [first <= i and (last < 0 or i <= last) and (i + 1) % every == 0 for i in range(reader.n_layers)]
    if all(is_mixture):
        reader.keys.note("feed_forward_length", "intermediate_size")
        return attention, [experts] * reader.n_layers
    dense = reader.dense(bias=reader.has_bias("up", "use_bias"))
    return attention, [experts if mixed else dense for mixed in is_mixture]


def _hunyuan(reader: Reader) -> tuple[Attention, list[FeedForward]]:
    reader.keys.only("use_qk_norm", True)
    reader.keys.only("use_cla", False)
    reader.keys.only("use_mla", False)
    reader.keys.only("use_mixed_mlp_moe", True)
    reader.keys.note("moe_intermediate_size", "feed_forward_length", "expert_shared_count")
    attention = reader.attention(qk_norm="per_head_after_rope")
    shared = reader.integer("expert_shared_feed_forward_length", "intermediate_size")
    times = reader.integer("", "num_shared_expert", 1) if reader.format == "checkpoint" else 1
    experts = experts_of(
        reader, names=HUNYUAN_CONFIG, gating="softmax", normalise_top_k=True, scale=1.0, shared_hidden=shared * times
    )
    return attention, [experts] * reader.n_layers
