"""Decoders in Hugging Face checkpoints: names of tensors, and the values that are config.json's own."""

from __future__ import annotations

from collections.abc import Mapping

from imp_server.core import InvalidModel
from imp_server.models.checkpoint_rope import TOP_LEVEL, rope_of_config
from imp_server.models.config_keys import DECODER_CONFIG_KEYS
from imp_server.models.reader import Reader
from imp_server.models.rotation import Rope, RopeStyle
from imp_server.models.tensor_names import Name, present_names
from imp_server.weights.checkpoint import Checkpoint
from imp_server.weights.header import ModelHeader

_WHOLE = {
    "embedding": "model.embed_tokens",
    "layer_embedding": "model.embed_tokens_per_layer",
    "layer_projection": "model.per_layer_model_projection",
    "layer_projection_norm": "model.per_layer_projection_norm",
    "stream_projection": "model.altup_projections.{e}",
    "stream_merge": "model.altup_unembed_projections.{e}",
    "final_norm": "model.norm",
    "head": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "qkv": "self_attn.qkv_proj",
    "o": "self_attn.o_proj",
    "q_a": "self_attn.q_a_proj",
    "q_a_norm": "self_attn.q_a_layernorm",
    "q_b": "self_attn.q_b_proj",
    "kv_a": "self_attn.kv_a_proj_with_mqa",
    "kv_a_norm": "self_attn.kv_a_layernorm",
    "kv_b": "self_attn.kv_b_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "gate_up": "mlp.gate_up_proj",
    "down": "mlp.down_proj",
    "router": "mlp.gate",
    "experts_gate": "mlp.experts.{e}.gate_proj",
    "experts_up": "mlp.experts.{e}.up_proj",
    "experts_down": "mlp.experts.{e}.down_proj",
    "selection_bias": "=mlp.gate.e_score_correction_bias",
    "shared_gate": "mlp.shared_experts.gate_proj",
    "shared_up": "mlp.shared_experts.up_proj",
    "shared_down": "mlp.shared_experts.down_proj",
}


def names_in_checkpoint(
    n_layers: int, checkpoint: Checkpoint, own: Mapping[str, str], *, tied_head: bool
) -> dict[str, Name]:
    """Canonical name -> name in the checkpoint, of the tensors that are there. `own`: stems where a family differs."""
    whole = {name: own.get(name, stem) for name, stem in _WHOLE.items()}
    of_layer = {**_LAYER, **{name: stem for name, stem in own.items() if name not in whole}}
    found = present_names(whole, of_layer, "model.layers.{}.", n_layers, checkpoint.__contains__)
    if tied_head:
        found.pop("head", None)  # some tied checkpoints store the same matrix twice
    return found


class CheckpointReader(Reader):
    """See Reader."""

    format = "checkpoint"

    def __init__(self, header: ModelHeader, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        super().__init__(header)

    @property
    def n_tensors(self) -> int:
        return len(self._checkpoint.names())

    def has(self, name: str, layer: int = 0, config_stem: str = "") -> bool:
        if config_stem:
            return f"model.layers.{layer}.{config_stem}" in self._checkpoint
        stem, bias, _ = name.partition(".bias")
        if _LAYER.get(stem, "").startswith("="):
            return f"model.layers.{layer}.{_LAYER[stem][1:]}" in self._checkpoint
        file_stem = _WHOLE.get(stem) or f"model.layers.{layer}.{_LAYER[stem]}"
        return f"{file_stem}.{'bias' if bias else 'weight'}" in self._checkpoint

    def has_bias(self, name: str, key: str) -> bool:
        is_there = self.has(f"{name}.bias")
        if key in self.keys and self.keys.flag(key, False) != is_there:
            raise self.keys.wrong(key, not is_there, "what the tensors say")
        return is_there

    def rope(
        self,
        head_size: int,
        *,
        permuted: bool = False,
        interleaved: bool = False,
        turning: float = 1.0,
        own: tuple[str, ...] = (),
    ) -> Rope:
        style: RopeStyle = "interleaved" if interleaved else "neox"
        served = self.header.served_context
        config = self.header.hyperparameters
        return rope_of_config(config, head_size, self.where, style=style, turning=turning, own=own, served=served)

    def local_rope(self, rope: Rope, default_base: float = 0.0) -> Rope:
        nested = self.header.hyperparameters.get("rope_parameters")
        if isinstance(nested, Mapping) and isinstance(nested.get("sliding_attention"), Mapping):
            config = {**self.header.hyperparameters, "rope_parameters": nested["sliding_attention"]}
            return rope_of_config(config, self.head_size(), self.where, style=rope.style)
        base = self.keys.number("rope_local_base_freq", default_base or rope.base)
        return Rope(rope.style, base, rope.dims)

    def windows(self, every: int) -> list[int]:
        self.keys.note("layer_types")
        types = self.header.hyperparameters.get("layer_types")
        if types is None:
            pattern = self.header.hyperparameters.get("sliding_window_pattern")
            if isinstance(pattern, str) and pattern:  # as in LLLG: local, local, local, global
                self.keys.note("sliding_window_pattern")
                return self.windowed([pattern[i % len(pattern)] == "L" for i in range(self.n_layers)])
            every = self.keys.integer("sliding_window_pattern", every, low=0)
            return self.windowed([every == 0 or (i + 1) % every != 0 for i in range(self.n_layers)])
        known = {"sliding_attention": True, "full_attention": False}
        if not isinstance(types, list) or len(types) != self.n_layers or any(str(kind) not in known for kind in types):
            raise self.keys.wrong("layer_types", types, f"a list of {self.n_layers} of {', '.join(known)}")
        return self.windowed([known[kind] for kind in types])

    def vocab_size(self) -> int:
        return self.keys.integer("vocab_size", high=1 << 22)

    def rows(self, tensor: str) -> int:
        shape = self._checkpoint.shape(tensor) if tensor in self._checkpoint else ()
        if len(shape) != 2:
            raise InvalidModel(f"{self.where}: the tensor {tensor!r} is missing or no matrix")
        return shape[0]

    def tied_head(self) -> bool:
        stated = self.header.hyperparameters.get("tie_word_embeddings")
        return stated if isinstance(stated, bool) else not self.has("head")

    def finish(self) -> None:
        self.keys.note(*TOP_LEVEL, "rope_parameters", "rope_scaling", "tie_word_embeddings")
        self.keys.refuse_unread(DECODER_CONFIG_KEYS)
