"""cohere2, cohere2_moe: Command R7B, Command A and its mixtures: both halves side by side behind one norm, rope in
layers with a window, and in dense ones before a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.feed_forwards import Dense, FeedForward
from imp_server.models.mixture import experts_of, feed_forwards
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("cohere2", "cohere2moe")
HF_MODEL_TYPES = ("cohere2", "cohere2_moe")
CONFIG = {"count": "num_experts", "hidden": "intermediate_size", "shared": "num_shared_experts", "scale": ""}


def describe(reader: Reader) -> Architecture:
    reader.keys.note("rotary_pct")  # what isn't whole is said by partial_rotary_factor, too
    attention = reader.attention(rope=reader.rope(reader.head_size(), interleaved=True))
    halves: Sequence[FeedForward] = [reader.dense()] * reader.n_layers if reader.kind == "cohere2" else _mixture(reader)
    layers = []
    for window, half in zip(reader.windows(4), halves, strict=True):
        turns = window or (isinstance(half, Dense) and reader.kind != "cohere2" and _prefix_turns(reader))
        layers.append(Layer(attention.seeing(window) if turns else replace(attention, rope=None), half, parallel=True))
    is_layer_norm = not reader.number("attention.layer_norm_rms_epsilon", "rms_norm_eps", 0.0)
    eps = ("attention.layer_norm_epsilon", "layer_norm_eps") if is_layer_norm else ("", "")
    return reader.architecture(
        reader.kind,
        layers,
        norm="layer_without_bias" if is_layer_norm else "rms",
        norm_eps=reader.number(*eps) if is_layer_norm else _rms_eps(reader),
        logit_scale=reader.number("logit_scale", "logit_scale"),
    )


def _rms_eps(reader: Reader) -> float:
    reader.keys.note("layer_norm_eps", "attention.layer_norm_epsilon")
    return reader.number("attention.layer_norm_rms_epsilon", "rms_norm_eps")


def _prefix_turns(reader: Reader) -> bool:
    return reader.integer("", "prefix_dense_sliding_window_pattern", 1) == 1


def _mixture(reader: Reader) -> Sequence[FeedForward]:
    reader.leave_out_draft_layers()
    gating = "softmax"
    if reader.format == "checkpoint":
        gating = reader.keys.text("expert_selection_fn", "softmax")
    elif reader.keys.integer("expert_gating_func", 1, low=0) == 2:
        gating = "sigmoid"
    normalises = reader.keys.flag("expert_weights_norm" if reader.format == "gguf" else "norm_topk_prob", True)
    shared = reader.integer("expert_shared_count", "num_shared_experts", 0, low=0, high=64)
    strategy = reader.keys.text("shared_expert_combination_strategy", "average")
    reader.keys.only("shared_expert_combination_strategy", "average", "sum")
    part = 0.5 if shared and strategy == "average" else 1.0
    reader.keys.note("expert_shared_feed_forward_length")
    experts = experts_of(
        reader,
        names=CONFIG,
        gating=gating,
        normalise_top_k=normalises or gating == "softmax",
        scale=part,
        shared_scale=part,
    )
    return feed_forwards(reader, experts, _n_dense(reader), _prefix(reader))


def _n_dense(reader: Reader) -> int | None:
    kinds = reader.header.hyperparameters.get("mlp_layer_types")
    reader.keys.note("mlp_layer_types", "prefix_dense_sliding_window_pattern")
    if reader.format == "gguf" or not isinstance(kinds, list):
        return None
    reader.keys.note("first_k_dense_replace")
    n = kinds.count("dense")
    if kinds != ["dense"] * n + ["sparse"] * (reader.n_layers - n):
        raise reader.keys.wrong("mlp_layer_types", kinds, "'dense' for the first layers and 'sparse' for the rest")
    return n


def _prefix(reader: Reader) -> Dense:
    hidden = reader.integer("", "intermediate_size") if reader.format == "checkpoint" else 0
    return Dense(
        reader.integer("feed_forward_length", "prefix_dense_intermediate_size", hidden or None),
        activation=reader.activation(),
    )
