"""Decoders in GGUF files: names of tensors, and the values that are GGUF's own."""

from __future__ import annotations

from collections.abc import Mapping

from imp_server.core import InvalidModel
from imp_server.models.gguf_keys import DECODER_KEYS
from imp_server.models.gguf_rope import rope_of_gguf
from imp_server.models.reader import Reader
from imp_server.models.rotation import Rope, RopeStyle
from imp_server.models.tensor_names import Name, present_names
from imp_server.weights.gguf import GgufFile
from imp_server.weights.header import ModelHeader

_WHOLE = {
    "embedding": "token_embd",
    "position_embedding": "position_embd",
    "embedding_norm": "token_embd_norm",
    "layer_embedding": "per_layer_token_embd",
    "layer_projection": "per_layer_model_proj",
    "layer_projection_norm": "per_layer_proj_norm",
    "stream_projection": "altup_proj",
    "stream_merge": "altup_unembd_proj",
    "final_norm": "output_norm",
    "head": "output",
}
_LAYER = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "qkv": "attn_qkv",
    "o": "attn_output",
    "q_a": "attn_q_a",
    "q_a_norm": "attn_q_a_norm",
    "q_b": "attn_q_b",
    "kv_a": "attn_kv_a_mqa",
    "kv_a_norm": "attn_kv_a_norm",
    "kv_b": "attn_kv_b",
    "k_b": "attn_k_b",
    "v_b": "attn_v_b",
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
    "experts_gate_up": "ffn_gate_up_exps",
    "selection_bias": "=exp_probs_b.bias",
    "shared_gate": "ffn_gate_shexp",
    "shared_up": "ffn_up_shexp",
    "shared_down": "ffn_down_shexp",
    "shared_router": "ffn_gate_inp_shexp",
}


def names_in_gguf(n_layers: int, file: GgufFile, own: Mapping[str, str]) -> dict[str, Name]:
    """Canonical name -> name in the file, of the tensors that are there. `own`: stems where a family differs."""
    return present_names(_WHOLE, {**_LAYER, **own}, "blk.{}.", n_layers, file.tensors.__contains__)


class GgufReader(Reader):
    """See Reader."""

    format = "gguf"

    def __init__(self, header: ModelHeader, file: GgufFile) -> None:
        self._file = file
        super().__init__(header)

    @property
    def n_tensors(self) -> int:
        return len(self._file.tensors)

    def has(self, name: str, layer: int = 0, config_stem: str = "") -> bool:
        stem, bias, _ = name.partition(".bias")
        if _LAYER.get(stem, "").startswith("="):
            return f"blk.{layer}.{_LAYER[stem][1:]}" in self._file.tensors
        file_stem = _WHOLE.get(stem) or f"blk.{layer}.{_LAYER[stem]}"
        return f"{file_stem}.{'bias' if bias else 'weight'}" in self._file.tensors

    def has_bias(self, name: str, key: str) -> bool:
        return self.has(f"{name}.bias")

    def rope(
        self,
        head_size: int,
        *,
        permuted: bool = False,
        interleaved: bool = False,
        turning: float = 1.0,
        own: tuple[str, ...] = (),
    ) -> Rope:
        style: RopeStyle = "interleaved" if permuted or interleaved else "neox"
        served = self.header.served_context
        return rope_of_gguf(self.keys, self._file, head_size, style, int(turning * head_size), served)

    def local_rope(self, rope: Rope, default_base: float = 0.0) -> Rope:
        base = self.keys.number("rope.freq_base_swa", default_base or rope.base)
        return Rope(rope.style, base, rope.dims)

    def windows(self, every: int) -> list[int]:
        pattern = self.keys.list_or_integer("attention.sliding_window_pattern", every)
        if isinstance(pattern, int):
            return self.windowed([pattern == 0 or i % pattern < pattern - 1 for i in range(self.n_layers)])
        if len(pattern) != self.n_layers:
            raise self.keys.wrong("attention.sliding_window_pattern", pattern, f"a list of {self.n_layers}")
        return self.windowed([bool(windowed) for windowed in pattern])

    def vocab_size(self) -> int:
        return self.rows("token_embd.weight")

    def rows(self, tensor: str) -> int:
        info = self._file.tensors.get(tensor)
        if info is None or len(info.shape) != 2:
            raise InvalidModel(f"{self.where}: the tensor {tensor!r} is missing or no matrix")
        return info.shape[0]

    def tied_head(self) -> bool:
        return "output.weight" not in self._file.tensors

    def finish(self) -> None:
        self.keys.refuse_unread(DECODER_KEYS)
