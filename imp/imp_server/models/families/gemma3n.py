"""gemma3n: the text side of Gemma 3n: several streams, a second way around attention, what ids say to each layer, keys
shared with earlier layers, gates of which few count."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.families.shared_keys import layer_sizes, layer_vocab_size, layers_with_keys, whose_keys
from imp_server.models.feed_forwards import Dense
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("gemma3n",)
HF_MODEL_TYPES = ("gemma3n_text",)
CHECKPOINT_NAMES = {
    "post_attn_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffn_norm": "post_feedforward_layernorm",
    "embedding_gate": "per_layer_input_gate",
    "embedding_up": "per_layer_projection",
    "post_embedding_norm": "post_per_layer_input_norm",
    "laurel_down": "laurel.linear_left",
    "laurel_up": "laurel.linear_right",
    "laurel_norm": "laurel.post_laurel_norm",
    "stream_router": "altup.modality_router",
    "stream_router_norm": "altup.router_norm",
    "stream_predict": "altup.prediction_coefs",
    "stream_correct": "altup.correction_coefs",
    "stream_scale": "=altup.correct_output_scale",
}
GGUF_NAMES = {
    "embedding_gate": "inp_gate",
    "embedding_up": "proj",
    "post_embedding_norm": "post_norm",
    "laurel_down": "laurel_l",
    "laurel_up": "laurel_r",
    "laurel_norm": "laurel_post_norm",
    "stream_router": "altup_router",
    "stream_router_norm": "altup_router_norm",
    "stream_predict": "altup_predict_coef",
    "stream_correct": "altup_correct_coef",
    "stream_scale": "altup_correct_scale",
}
_SOFTCAP = 30.0
_SPARSE_LAYERS, _SPARSITY = 10, 0.95
"""Where a config doesn't say: of a model with more layers the first ones are sparse."""


def describe(reader: Reader) -> Architecture:
    reader.keys.note("query_pre_attn_scalar", "altup_coef_clip", "altup_lr_multiplier")  # of training
    reader.keys.only("altup.active_idx" if reader.format == "gguf" else "altup_active_idx", 0)
    reader.keys.only("altup_correct_scale", True)
    attention = reader.attention(qk_norm="per_head", v_norm=True, scale=1.0)
    assert attention.rope is not None
    local = replace(attention, rope=reader.local_rope(attention.rope, 1e4))
    windows, n_own = reader.windows(5), layers_with_keys(reader)
    size = reader.integer("embedding_length_per_layer_input", "hidden_size_per_layer_input")
    rank = reader.rows("blk.0.laurel_l.weight") if reader.format == "gguf" else reader.integer("", "laurel_rank", 64)
    activation = reader.activation("gelu_tanh")
    halves = zip(layer_sizes(reader), _cutoffs(reader), strict=True)
    dense = [Dense(hidden, activation=activation, cutoff=cutoff) for hidden, cutoff in halves]
    layers = []
    for index, window in enumerate(windows):
        mixer = (local if window else attention).seeing(window)
        if index >= n_own:
            mixer = replace(mixer, shares=whose_keys(reader, windows[:n_own], windowed=bool(window)), v_norm=False)
        layers.append(Layer(mixer, dense[index], post_norm=True, embedding=size, laurel=rank))
    return reader.architecture(
        "gemma3n",
        layers,
        embedding_scale=math.sqrt(reader.width),
        layer_vocab_size=layer_vocab_size(reader),
        streams=reader.integer("altup.num_inputs", "altup_num_inputs", low=2, high=64),
        logit_softcap=reader.number("final_logit_softcapping", "final_logit_softcapping", _SOFTCAP),
    )


def _cutoffs(reader: Reader) -> list[float | None]:
    """Dense.cutoff of each layer. Checkpoints state the share of gates that don't count, GGUF files the deviations."""
    key = "activation_sparsity_scale" if reader.format == "gguf" else "activation_sparsity_pattern"
    if key not in reader.keys:
        n_sparse = _SPARSE_LAYERS if reader.n_layers > _SPARSE_LAYERS else 0
        return [NormalDist().inv_cdf(_SPARSITY) if index < n_sparse else None for index in range(reader.n_layers)]
    values = reader.keys.list_or_integer(key, 0)
    if isinstance(values, int) or len(values) != reader.n_layers or not all(_is_number(value) for value in values):
        raise reader.keys.wrong(key, values, f"a list of {reader.n_layers} numbers")
    if reader.format == "gguf":
        return [float(value) if math.isfinite(value) else None for value in values]
    if not all(0 <= value < 1 for value in values):
        raise reader.keys.wrong(key, values, "shares below 1")
    return [NormalDist().inv_cdf(value) if value else None for value in values]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
