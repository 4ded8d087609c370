"""Tensor names of decoder models in Hugging Face checkpoints -> canonical names (models/source.py)."""

from __future__ import annotations

from imp_server.models.architecture import Architecture
from imp_server.weights.checkpoint import Checkpoint

_GLOBAL = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
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
_KINDS = (("", "weight"), (".bias", "bias"))


def decoder_checkpoint_names(architecture: Architecture, checkpoint: Checkpoint) -> dict[str, str]:
    """Canonical name -> name in the checkpoint, of the tensors that are there; the names most families share."""
    wanted = dict(_GLOBAL)
    for index in range(architecture.n_layers):
        wanted |= {f"layers.{index}.{ours}": f"model.layers.{index}.{theirs}" for ours, theirs in _LAYER.items()}
    pairs = ((f"{ours}{ending}", f"{theirs}.{kind}") for ours, theirs in wanted.items() for ending, kind in _KINDS)
    found = {ours: theirs for ours, theirs in pairs if theirs in checkpoint}
    if architecture.tied_head:
        found.pop("head", None)  # some tied checkpoints store the same matrix twice
    return found
