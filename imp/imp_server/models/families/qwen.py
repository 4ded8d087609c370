"""qwen2, qwen3: Qwen 2, 2.5, QwQ and 3, the dense ones; DeepSeek's distills of them."""

from __future__ import annotations

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("qwen2", "qwen3")
HF_MODEL_TYPES = ("qwen2", "qwen3")


def describe(reader: Reader) -> Architecture:
    windows = [0] * reader.n_layers
    if reader.format == "checkpoint" and reader.keys.flag("use_sliding_window", False):
        first = reader.keys.integer("max_window_layers", 28, low=0)
        windows = reader.windowed([index >= first for index in range(reader.n_layers)])
    reader.keys.note("sliding_window", "layer_types")  # layer_types says the same once more
    if reader.kind == "qwen3":
        reader.keys.only("use_qk_norm", True)
        attention = reader.attention(qk_norm="per_head")
    else:
        reader.keys.note("attention_bias")  # some say it of queries, keys and values alone
        attention = reader.attention(qkv_bias=reader.has("q.bias"), out_bias=reader.has("o.bias"))
    layers = [Layer(attention.seeing(window), reader.dense()) for window in windows]
    return reader.architecture(reader.kind, layers)
