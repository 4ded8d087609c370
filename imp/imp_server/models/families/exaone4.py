"""exaone4: EXAONE 4.0: norms behind both halves and of q and k; where layers have windows, the others have no rope."""

from __future__ import annotations

from dataclasses import replace

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("exaone4",)
HF_MODEL_TYPES = ("exaone4",)
CHECKPOINT_NAMES = {
    "post_attn_norm": "post_attention_layernorm",
    "post_ffn_norm": "post_feedforward_layernorm",
    "ffn_norm": "",
}


def describe(reader: Reader) -> Architecture:
    """The windows of the files count; llama.cpp knows them in the model of 64 layers only."""
    attention = reader.attention(qk_norm="per_head")
    windows = reader.windows(4) if reader.has_window() else [0] * reader.n_layers
    reader.keys.note("sliding_window_pattern", "layer_types")
    everywhere = attention if not any(windows) else replace(attention, rope=None)
    layers = [
        Layer(attention.seeing(w) if w else everywhere, reader.dense(), pre_norm=False, post_norm=True) for w in windows
    ]
    return reader.architecture("exaone4", layers)
