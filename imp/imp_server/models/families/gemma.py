"""gemma2, gemma3: norms before and behind each half, windows in most layers, scaled embeddings; the text side."""

from __future__ import annotations

import math
from dataclasses import replace

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("gemma2", "gemma3")
HF_MODEL_TYPES = ("gemma2", "gemma3_text")
CHECKPOINT_NAMES = {
    "post_attn_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffn_norm": "post_feedforward_layernorm",
}

CONFIG_DEFAULTS = {
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "query_pre_attn_scalar": 256,
        "tie_word_embeddings": True,
    }
}
"""Of the models with images, whose configs state little of their text side."""


def describe(reader: Reader) -> Architecture:
    is_second = reader.kind == "gemma2"
    attention = reader.attention(
        qk_norm="none" if is_second else "per_head",
        softcap=reader.number("attn_logit_softcapping", "attn_logit_softcapping", 50.0) if is_second else 0.0,
        scale=_scale(reader),
    )
    assert attention.rope is not None
    local = attention if is_second else replace(attention, rope=reader.local_rope(attention.rope, 10000.0))
    dense = reader.dense(activation=reader.activation("gelu_tanh"))
    windows = reader.windows(2 if is_second else 6)
    layers = [Layer((local if w else attention).seeing(w), dense, post_norm=True) for w in windows]
    return reader.architecture(
        reader.kind,
        layers,
        norm="rms" if reader.format == "gguf" else "rms_plus_one",  # GGUF's converter adds the one
        embedding_scale=math.sqrt(reader.width),
        logit_softcap=reader.number("final_logit_softcapping", "final_logit_softcapping", 30.0 if is_second else 0.0),
    )


def _scale(reader: Reader) -> float:
    """GGUF files don't say it: it is the head's size, but in the largest model of each the width of a head's share."""
    if reader.format == "checkpoint":
        return 1 / math.sqrt(reader.positive("", "query_pre_attn_scalar"))
    if reader.n_layers != {"gemma2": 46, "gemma3": 62}[reader.kind]:
        return 0.0
    n_heads = reader.integer("attention.head_count", "", high=4096)
    return 1 / math.sqrt(reader.width // n_heads)
