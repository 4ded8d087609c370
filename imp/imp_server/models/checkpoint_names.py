"""Tensor names of decoder models in Hugging Face checkpoints -> canonical names (models/source.py)."""

from __future__ import annotations

from imp_server.models.architecture import Architecture
from imp_server.models.tensor_names import present_names
from imp_server.weights.checkpoint import Checkpoint

_WHOLE = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def decoder_checkpoint_names(architecture: Architecture, checkpoint: Checkpoint) -> dict[str, str]:
    """Canonical name -> name in the checkpoint, of the tensors that are there; the names most families share."""
    found = present_names(_WHOLE, _LAYER, "model.layers.{}.", architecture.n_layers, checkpoint.__contains__)
    if architecture.tied_head:
        found.pop("head", None)  # some tied checkpoints store the same matrix twice
    return found
