"""`Architecture` + packed weights -> the plan that the native forward executes. Done once at load."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from imp_server.backends.cpu import abi, head_plane
from imp_server.backends.cpu.pack_cache import PackedWeights
from imp_server.core import UnsupportedModel
from imp_server.models.architecture import Architecture, Layer, Rope
from imp_server.models.source import ModelSource

_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu2": 3}
MAX_HEAD_SIZE = 256


def refuse_what_we_lack(architecture: Architecture) -> None:
    """Raises UnsupportedModel, naming the part, for what the native forward can't execute."""
    for lacking in _lacks(architecture):
        raise UnsupportedModel(f"the cpu backend can't run {lacking} yet; use engine.backend=reference")


def _lacks(a: Architecture) -> Iterator[str]:
    if a.is_encoder:
        yield "encoders"
    if a.position_embeddings or a.token_types or a.embedding_norm:
        yield "learned positions and embedding norms"
    if a.activation not in _ACTIVATIONS:
        yield f"the activation {a.activation}"
    if any(group.kind not in ("full", "window") for group in a.cache_groups):
        yield "recurrent state"
    for layer in a.layers:
        yield from _layer_lacks(layer)


def _layer_lacks(layer: Layer) -> Iterator[str]:
    if layer.mixer != "attention":
        yield f"{layer.mixer} layers"
    if layer.experts is not None:
        yield "mixtures of experts"
    if layer.value_head_size not in (0, layer.head_size):
        yield "value heads of another size than key heads"
    if layer.head_size % 16 or not 16 <= layer.head_size <= MAX_HEAD_SIZE:
        yield f"heads of {layer.head_size} (multiples of 16 up to {MAX_HEAD_SIZE})"
    if not layer.causal:
        yield "attention that isn't causal"
    if layer.gated_attention:
        yield "gated attention"
    if layer.parallel_ffn or not layer.pre_norm:
        yield "layers whose FFN runs beside attention or without a norm before it"
    if not layer.ffn_hidden:
        yield "layers without an FFN"


def matrix_names(architecture: Architecture) -> list[str]:
    """Canonical names of the matrices, in the order in which a forward reads them."""
    names = []
    for index, layer in enumerate(architecture.layers):
        kinds = ["q", "k", "v", "o", *(["gate"] if layer.ffn_gated else []), "up", "down"]
        names += [f"layers.{index}.{kind}" for kind in kinds]
    return [*names, "embedding", *([] if architecture.tied_head else ["head"])]


def head_name(architecture: Architecture) -> str:
    return "embedding" if architecture.tied_head else "head"


def head_for_plane(source: ModelSource) -> str:
    """Name of the head if a plane may stand in for it, else empty: its bound is that of the bare product."""
    a = source.architecture
    is_bare = a.logit_scale == 1.0 and a.logit_softcap == 0.0 and "head.bias" not in source
    return head_name(a) if is_bare else ""


def kv_head_bytes(kv_dtype: str, head_size: int) -> int:
    """Bytes of 16 positions of one KV head (attention.h)."""
    return head_size * 64 if kv_dtype == "bf16" else head_size * 32 + 128


def block_bytes(architecture: Architecture, kv_dtype: str) -> tuple[int, ...]:
    """Bytes of one KV block per cache group."""
    layers = architecture.layers
    return tuple(
        sum(layers[i].n_kv_heads * kv_head_bytes(kv_dtype, layers[i].head_size) for i in group.layers)
        for group in architecture.cache_groups
    )


class LoweredModel:
    """Owner of the plan and of the small float tensors it points to."""

    def __init__(self, source: ModelSource, weights: PackedWeights, kv_dtype: str) -> None:
        self._source, self._weights = source, weights
        self._keep: list[npt.NDArray[np.float32]] = []
        a = self.architecture = source.architecture
        self.ropes: list[Rope] = []
        self._layers = (abi.LayerPlan * a.n_layers)()
        offsets = _kv_offsets(a, kv_dtype)
        for index, layer in enumerate(a.layers):
            self._lower_layer(self._layers[index], index, layer, offsets[index])
        self.plan = abi.ModelPlan(
            embedding=self._matrix("embedding"),
            head=self._matrix(head_name(a)),
            head_plane=self._matrix(head_plane.NAME) if head_plane.NAME in weights.shapes else abi.Matrix(),
            final_norm=self._norm("final_norm"),
            head_bias=self._vector("head.bias"),
            layers=ctypes.cast(self._layers, ctypes.POINTER(abi.LayerPlan)),
            n_layers=a.n_layers,
            width=a.width,
            vocab_size=a.vocab_size,
            n_groups=len(a.cache_groups),
            norm=1 if a.norm == "layer" else 0,
            activation=_ACTIVATIONS[a.activation],
            kv=0 if kv_dtype == "bf16" else 1,
            norm_eps=a.norm_eps,
            embedding_scale=a.embedding_scale,
            residual_scale=a.residual_scale,
            logit_scale=a.logit_scale,
            logit_softcap=a.logit_softcap,
        )

    def _lower_layer(self, plan: abi.LayerPlan, index: int, layer: Layer, kv_offset: int) -> None:
        prefix = f"layers.{index}."
        for kind in abi.MATRICES:
            if f"{prefix}{kind}" in self._weights.shapes:
                setattr(plan, kind, self._matrix(f"{prefix}{kind}"))
        for name in abi.NORMS:
            setattr(plan, name, self._norm(f"{prefix}{name}"))
        for name in abi.VECTORS:
            kind = name.removesuffix("_bias")
            setattr(plan, name, self._vector(f"{prefix}{kind}.bias" if name != kind else f"{prefix}{name}"))
        plan.kv_offset = kv_offset
        plan.n_heads, plan.n_kv_heads, plan.head_size = layer.n_heads, layer.n_kv_heads, layer.head_size
        plan.window, plan.cache_group, plan.ffn_hidden = layer.window, layer.cache_group, layer.ffn_hidden
        plan.rope, plan.rope_dims, plan.rope_interleaved = self._rope(layer.rope)
        plan.qk_norm_whole = layer.qk_norm == "whole"
        plan.attention_scale = layer.attention_scale or 1.0 / math.sqrt(layer.head_size)
        plan.softcap = layer.attention_softcap

    def _rope(self, rope: Rope | None) -> tuple[int, int, int]:
        if rope is None or rope.style == "none" or not rope.dims:
            return -1, 0, 0
        if rope not in self.ropes:
            self.ropes.append(rope)
        return self.ropes.index(rope), rope.dims, int(rope.style == "interleaved")

    def _matrix(self, name: str) -> abi.Matrix:
        shape = self._weights.shapes[name]
        address = self._weights.address(name)
        return abi.Matrix(address, shape.panel_bytes, shape.format_index, shape.n_out, shape.n_in, shape.n_blocks)

    def _vector(self, name: str) -> int | None:
        if name not in self._source:
            return None
        return self._kept(self._source.array(name))

    def _norm(self, name: str) -> abi.Norm:
        if name not in self._source:
            return abi.Norm(None, None)
        weight = self._source.array(name)
        plus_one = self.architecture.norm == "rms_plus_one"
        return abi.Norm(self._kept(weight + np.float32(1) if plus_one else weight), self._vector(f"{name}.bias"))

    def _kept(self, values: npt.NDArray[np.float32]) -> int:
        kept = np.zeros(values.size + 16, dtype=np.float32)  # kernels read whole vectors
        kept[: values.size] = values.reshape(-1)
        self._keep.append(kept)
        return int(kept.ctypes.data)


def _kv_offsets(architecture: Architecture, kv_dtype: str) -> list[int]:
    """Where each layer's keys and values begin within a block of its group."""
    offsets = [0] * architecture.n_layers
    for group in architecture.cache_groups:
        at = 0
        for index in group.layers:
            layer = architecture.layers[index]
            offsets[index] = at
            at += layer.n_kv_heads * kv_head_bytes(kv_dtype, layer.head_size)
    return offsets
