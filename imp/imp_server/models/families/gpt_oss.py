"""gpt-oss: experts in MXFP4 with biases, sinks, a window in every other layer."""

from __future__ import annotations

from dataclasses import replace

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.feed_forwards import Experts
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("gpt-oss",)
HF_MODEL_TYPES = ("gpt_oss",)
GGUF_NAMES = {"ffn_norm": "post_attention_norm", "post_attn_norm": ""}
CHECKPOINT_NAMES = {
    "sinks": "=self_attn.sinks",
    "router": "mlp.router",
    "experts_gate_up_by_turns": "=mlp.experts.gate_up_proj",
    "experts_gate_up_by_turns.bias": "=mlp.experts.gate_up_proj_bias",
    "experts_down": "=mlp.experts.down_proj",
    "experts_down.bias": "=mlp.experts.down_proj_bias",
}


def is_turned(name: str, scheme: str) -> bool:
    """Experts as plain numbers lie [count, in, out]; packed ones as everywhere."""
    return name.endswith(("experts.gate_up_proj", "experts.down_proj")) and scheme != "MXFP4"


def describe(reader: Reader) -> Architecture:
    reader.keys.note("experts_per_token", "initial_context_length")
    reader.keys.only("swiglu_alpha", 1.702)
    reader.keys.only("swiglu_limit", 7, 7.0)
    reader.keys.only("hidden_act", "silu")
    reader.keys.note("feed_forward_length", "intermediate_size")
    rope = reader.rope(reader.head_size())
    if reader.format == "gguf":  # OpenAI's own doesn't round, and GGUF has no key for it
        rope = replace(rope, scaling=replace(rope.scaling, truncate=False))
    attention = reader.attention(sinks=True, rope=rope)
    count = reader.integer("expert_count", "num_local_experts", high=4096)
    experts = Experts(
        count,
        reader.integer("expert_used_count", "num_experts_per_tok", high=count),
        reader.integer("expert_feed_forward_length", "intermediate_size"),
        bias=True,
        activation="swiglu_clamped",
    )
    layers = [Layer(attention.seeing(window), experts) for window in reader.windows(2)]
    return reader.architecture("gpt-oss", layers)
