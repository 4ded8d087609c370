"""olmo2, olmo3: OLMo 2 and 3. Norms stand behind attention and feed-forward; OLMo 3 has windows."""

from __future__ import annotations

from dataclasses import replace

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("olmo2",)
HF_MODEL_TYPES = ("olmo2", "olmo3")
CHECKPOINT_NAMES = {
    "post_attn_norm": "post_attention_layernorm",
    "post_ffn_norm": "post_feedforward_layernorm",
    "ffn_norm": "",
}


def describe(reader: Reader) -> Architecture:
    has_windows = reader.kind == "olmo3" or (reader.format == "gguf" and reader.window() > 0)
    windows = reader.windows(4) if has_windows else [0] * reader.n_layers
    attention = reader.attention(qk_norm="whole")
    assert attention.rope is not None
    local = replace(attention, rope=reader.local_rope(attention.rope)) if has_windows else attention
    layers = [
        Layer((local if window else attention).seeing(window), reader.dense(), pre_norm=False, post_norm=True)
        for window in windows
    ]
    return reader.architecture(reader.kind, layers)
