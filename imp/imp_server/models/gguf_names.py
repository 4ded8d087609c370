"""Tensor names of decoder models in GGUF files -> canonical names (models/source.py)."""

from __future__ import annotations

from imp_server.models.architecture import Architecture
from imp_server.models.tensor_names import present_names
from imp_server.weights.gguf import GgufFile

_WHOLE = {
    "embedding": "token_embd",
    "position_embedding": "position_embd",
    "embedding_norm": "token_embd_norm",
    "final_norm": "output_norm",
    "head": "output",
}
_LAYER = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "sinks": "attn_sinks",
    "post_attn_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_ffn_norm": "post_ffw_norm",
    "router": "ffn_gate_inp",
    "experts_gate": "ffn_gate_exps",
    "experts_up": "ffn_up_exps",
    "experts_down": "ffn_down_exps",
    "shared_gate": "ffn_gate_shexp",
    "shared_up": "ffn_up_shexp",
    "shared_down": "ffn_down_shexp",
    "shared_router": "ffn_gate_inp_shexp",
}


def decoder_names(architecture: Architecture, file: GgufFile) -> dict[str, str]:
    """Canonical name -> name in the file, of the tensors that are there; the names most families share."""
    return present_names(_WHOLE, _LAYER, "blk.{}.", architecture.n_layers, file.tensors.__contains__)
