"""granite: Granite 3 and 4, the dense ones: Llama with four multipliers."""

from __future__ import annotations

from imp_server.models.architecture import Architecture, Layer
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ("granite",)
HF_MODEL_TYPES = ("granite",)


HYBRID_KEYS = tuple(
    f"ssm.{name}" for name in ("conv_kernel", "state_size", "group_count", "inner_size", "time_step_rank")
)
"""Granite 4's GGUF files have them in dense models, too, which hold no such tensors."""


def describe(reader: Reader) -> Architecture:
    reader.keys.note(*HYBRID_KEYS, "expert_shared_feed_forward_length")
    attention = reader.attention(
        rope=reader.rope(reader.head_size(), permuted=True),
        scale=reader.number("attention.scale", "attention_multiplier", 0.0),
    )
    return reader.architecture(
        "granite",
        [Layer(attention, reader.dense())] * reader.n_layers,
        embedding_scale=reader.number("embedding_scale", "embedding_multiplier", 1.0),
        residual_scale=reader.number("residual_scale", "residual_multiplier", 1.0),
        logit_scale=1.0 / reader.positive("logit_scale", "logits_scaling", 1.0),
    )
