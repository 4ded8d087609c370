"""granitemoehybrid, granitemoeshared: Granite 4 in Hugging Face folders, where all layers are attention."""

from __future__ import annotations

from typing import Any

from imp_server.core import UnsupportedModel
from imp_server.models.architecture import Architecture, Layer
from imp_server.models.feed_forwards import Dense, Experts, FeedForward
from imp_server.models.reader import Reader

GGUF_ARCHITECTURES = ()
HF_MODEL_TYPES = ("granitemoehybrid", "granitemoeshared")
DENSE_NAMES = {"gate_up": "shared_mlp.input_linear", "down": "shared_mlp.output_linear"}
MIXTURE_NAMES = {
    "router": "block_sparse_moe.router.layer",
    "experts_gate_up": "block_sparse_moe.input_linear",
    "experts_down": "block_sparse_moe.output_linear",
    "shared_gate_up": "shared_mlp.input_linear",
    "shared_down": "shared_mlp.output_linear",
}
_ATTENTION = ("attention", "full_attention")


def checkpoint_names(_: str, architecture: Architecture) -> dict[str, str]:
    return MIXTURE_NAMES if isinstance(architecture.layers[0].feed_forward, Experts) else DENSE_NAMES


def describe(reader: Reader) -> Architecture:
    _refuse_states(reader)
    has_rope = reader.kind == "granitemoeshared" or reader.keys.text("position_embedding_type", "nope") == "rope"
    if not has_rope:
        reader.rope(reader.head_size())  # it is stated, and not used
    own: dict[str, Any] = {} if has_rope else {"rope": None}
    scale = reader.number("", "attention_multiplier", 0.0)
    layer = Layer(reader.attention(scale=scale, **own), _feed_forward(reader))
    return reader.architecture(
        reader.kind,
        [layer] * reader.n_layers,
        embedding_scale=reader.number("", "embedding_multiplier", 1.0),
        residual_scale=reader.number("", "residual_multiplier", 1.0),
        logit_scale=1.0 / reader.positive("", "logits_scaling", 1.0),
    )


def _refuse_states(reader: Reader) -> None:
    reader.keys.note("layer_types", "layers_block_type", "time_step_limit", "shared_intermediate_size")
    values = reader.header.hyperparameters
    reader.keys.note(*(name for name in values if name.startswith(("mamba_", "time_step"))))
    types = values.get("layer_types", values.get("layers_block_type"))
    if types is None and reader.kind == "granitemoeshared":
        return
    if not isinstance(types, list) or any(kind not in _ATTENTION for kind in types):
        raise UnsupportedModel(
            f"{reader.where}: the model type {reader.kind!r} isn't supported where layers keep a recurrent state"
        )


def _feed_forward(reader: Reader) -> FeedForward:
    count = reader.integer("", "num_local_experts", 0, low=0, high=4096)
    shared = reader.integer("", "shared_intermediate_size", 0, low=0)
    reader.keys.note("num_experts_per_tok", "intermediate_size")
    if not count:
        return Dense(shared, activation=reader.activation())
    return Experts(
        count,
        reader.integer("", "num_experts_per_tok", high=count),
        reader.integer("", "intermediate_size"),
        shared_hidden=shared,
        activation=reader.activation(),
    )
