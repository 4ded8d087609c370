"""Models with latent attention: DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash, Mistral 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.mixers import LatentAttention, Temperature
from imp_server.models.mixture import experts_of, feed_forwards, has_selection_bias
from imp_server.models.reader import Reader
from imp_server.models.rotation import Rope, yarn_magnitude

GGUF_ARCHITECTURES = ("deepseek2", "mistral4")
HF_MODEL_TYPES = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "mistral4")
MISTRAL_NAMES = {"experts_gate_up": "=mlp.experts.gate_up_proj", "experts_down": "=mlp.experts.down_proj"}


def checkpoint_names(kind: str, _: Architecture) -> dict[str, str]:
    return MISTRAL_NAMES if kind == "mistral4" else {}


def describe(reader: Reader) -> Architecture:
    reader.leave_out_draft_layers()
    reader.keys.only("moe_layer_freq", 1)
    reader.keys.note("aux_loss_alpha", "seq_aux", "ep_size", "head_dim", "qk_head_dim", "num_key_value_heads")
    reader.keys.note("attention.head_count_kv", "attention.key_length", "attention.value_length")
    experts = experts_of(reader, selection_bias=has_selection_bias(reader), **_groups(reader))
    attention = _attention(reader)
    layers = [Layer(attention, feed_forward) for feed_forward in feed_forwards(reader, experts, _n_dense(reader))]
    return reader.architecture(reader.kind, layers)


def _attention(reader: Reader) -> LatentAttention:
    head, value = _head_sizes(reader)
    turning = reader.integer("rope.dimension_count", "qk_rope_head_dim", low=2, high=head)
    rope, share = _rope(reader, head, turning)
    scale = head**-0.5 * yarn_magnitude(rope.scaling.factor, share) ** 2 if share else 0.0
    temperature = _temperature(reader, rope)
    return LatentAttention(
        n_heads=reader.integer("attention.head_count", "num_attention_heads", high=4096),
        rank=reader.integer("attention.kv_lora_rank", "kv_lora_rank"),
        still_size=head - turning,
        value_size=value,
        rope=rope,
        q_rank=reader.integer("attention.q_lora_rank", "q_lora_rank", 0, low=0),
        bias=reader.has_bias("o", "attention_bias"),
        scale=scale,
        temperature=temperature,
    )


def _head_sizes(reader: Reader) -> tuple[int, int]:
    """Of keys and values, as they would be if each head had its own. Files with `attn_kv_b` say just these."""
    if reader.format == "checkpoint":
        still = reader.keys.integer("qk_nope_head_dim")
        return still + reader.keys.integer("qk_rope_head_dim"), reader.keys.integer("v_head_dim")
    mla = "_mla" if "attention.key_length_mla" in reader.keys else ""
    sizes = [reader.keys.integer(f"attention.{kind}_length{mla}") for kind in ("key", "value")]
    return sizes[0], sizes[1]


def _rope(reader: Reader, head: int, turning: int) -> tuple[Rope, float]:
    """With yarn's share of what scores are multiplied with; 0 = none."""
    if reader.format == "gguf":
        share = 10 * reader.number("rope.scaling.yarn_log_multiplier", "", 0.0)  # the converter writes a tenth of it
        rope = reader.rope(turning, interleaved=True)
        if rope.scaling.kind == "yarn" and share:
            scaling = replace(rope.scaling, attention_factor=1 / yarn_magnitude(rope.scaling.factor))
            return replace(rope, scaling=scaling), share
        return rope, 0.0
    nested = _rope_values(reader)
    # Mistral's share of a head that turns is one of the whole head.
    size, part = (head, turning / head) if "partial_rotary_factor" in nested else (turning, 1.0)
    is_interleaved = reader.keys.flag("rope_interleave", True)
    rope = reader.rope(size, interleaved=is_interleaved, turning=part, own=("llama_4_scaling_beta",))
    share = nested.get("mscale_all_dim") or 0.0
    return rope, float(share) if rope.scaling.kind == "yarn" else 0.0


def _rope_values(reader: Reader) -> Mapping[str, Any]:
    return reader.keys.mapping("rope_parameters" if "rope_parameters" in reader.keys else "rope_scaling")


def _temperature(reader: Reader, rope: Rope) -> Temperature | None:
    if reader.format == "gguf":
        share = reader.number("attention.temperature_scale", "", 0.0)
        step = reader.integer("attention.temperature_length", "", rope.scaling.original_context, low=0, high=1 << 30)
        return Temperature(share, max(1, step)) if share else None
    share = _rope_values(reader).get("llama_4_scaling_beta") or 0.0
    if isinstance(share, bool) or not isinstance(share, int | float):
        raise reader.keys.wrong("llama_4_scaling_beta", share, "a number")
    return Temperature(float(share), max(1, rope.scaling.original_context)) if share else None


def _groups(reader: Reader) -> dict[str, Any]:
    """DeepSeek V2 counts a group's best expert, and its smaller model has no groups."""
    method = reader.keys.text("topk_method", "") if reader.format == "checkpoint" else ""
    if method == "greedy":
        reader.keys.note("n_group", "topk_group")
        return {"n_groups": 1}
    by_best = method == "group_limited_greedy" or (reader.kind == "deepseek2" and not has_selection_bias(reader))
    return {"group_strength": "best"} if by_best else {}


def _n_dense(reader: Reader) -> int | None:
    """GLM's config has a list."""
    kinds = reader.header.hyperparameters.get("mlp_layer_types")
    reader.keys.note("mlp_layer_types")
    if reader.format == "gguf" or kinds is None:
        return None
    reader.keys.note("first_k_dense_replace")
    n = kinds.count("dense") if isinstance(kinds, list) else -1
    if not isinstance(kinds, list) or kinds != ["dense"] * n + ["sparse"] * (reader.n_layers - n):
        raise reader.keys.wrong("mlp_layer_types", kinds, "'dense' for the first layers and 'sparse' for the rest")
    return n
