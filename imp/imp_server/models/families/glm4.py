"""glm4: GLM-4-0414 and GLM-Z1, the dense ones: norms before and behind each half, half of each head turns."""

from __future__ import annotations

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("glm4",)
HF_MODEL_TYPES = ("glm4",)
CHECKPOINT_NAMES = {
    "post_attn_norm": "post_self_attn_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_ffn_norm": "post_mlp_layernorm",
}


def describe(reader: Reader) -> Architecture:
    reader.keys.note("attention_bias")  # of q, k and v alone
    attention = reader.attention(
        rope=reader.rope(reader.head_size(), interleaved=True, turning=0.5),
        qkv_bias=reader.has("q.bias"),
        out_bias=False,
    )
    layer = Layer(attention, reader.dense(), post_norm=True)
    return reader.architecture("glm4", [layer] * reader.n_layers)
