"""hunyuan_v1_dense: Hunyuan 0.5B to 7B: Llama with norms of q and k, which come when these have turned."""

from __future__ import annotations

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("hunyuan-dense",)
HF_MODEL_TYPES = ("hunyuan_v1_dense",)
CHECKPOINT_NAMES = {"q_norm": "self_attn.query_layernorm", "k_norm": "self_attn.key_layernorm"}


def describe(reader: Reader) -> Architecture:
    reader.keys.only("use_qk_norm", True)
    attention = reader.attention(qk_norm="per_head_after_rope")
    return reader.architecture("hunyuan_v1_dense", [Layer(attention, reader.dense())] * reader.n_layers)
