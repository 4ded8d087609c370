"""`Architecture` + packed weights -> the plan that the native forward executes. Done once at load."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from imp_server.backends.cpu import abi
from imp_server.backends.cpu.feed_forwards import feed_forward_lowering
from imp_server.backends.cpu.mixers import LayerPart, mixer_lowering
from imp_server.backends.cpu.pack_cache import PackedWeights
from imp_server.backends.cpu.plan_tensors import PlanTensors
from imp_server.backends.kv_layout import KvLayout, kv_layouts
from imp_server.core import UnsupportedModel
from imp_server.models.architecture import Architecture, Layer
from imp_server.models.feed_forwards import DenseAndExperts, Experts
from imp_server.models.mixers import Attention
from imp_server.models.source import ModelSource

MAX_STREAMS = 8


def refuse_what_we_lack(architecture: Architecture) -> None:
    """Raises UnsupportedModel, naming the part, for what the native forward can't execute."""
    for lacking in _lacks(architecture):
        raise UnsupportedModel(f"the cpu backend can't run {lacking} yet; use engine.backend=reference")


def _lacks(a: Architecture) -> Iterator[str]:
    if a.is_encoder:
        yield "encoders"
    if a.position_embeddings or a.token_types or a.embedding_norm:
        yield "learned positions and embedding norms"
    if any(group.kind not in ("full", "window") for group in a.cache_groups):
        yield "recurrent state"
    if a.streams > MAX_STREAMS or (a.streams > 1 and a.width % 16):
        yield f"{a.streams} streams of {a.width} numbers (up to {MAX_STREAMS}, of multiples of 16)"
    for layer in a.layers:
        yield from mixer_lowering(layer.mixer).lacks(layer.mixer)
        yield from feed_forward_lowering(layer.feed_forward).lacks(layer.feed_forward)
        if layer.embedding and layer.embedding != a.layer_embedding:
            yield "embeddings of layers that differ in size"
        if not (layer.pre_norm or layer.post_norm):
            yield "layers whose norm follows the sum"
        if isinstance(layer.feed_forward, (Experts, DenseAndExperts)) and a.width % 16:
            yield f"experts in a model {a.width} wide (multiples of 16)"
        if layer.laurel and layer.parallel:
            yield "a way around the mixer beside halves side by side"
        if layer.parallel and layer.post_norm:
            yield "halves side by side with a norm behind each"


def matrix_names(architecture: Architecture) -> list[str]:
    """Canonical names of the matrices, in the order in which a forward reads them."""
    names = []
    for index, layer in enumerate(architecture.layers):
        kinds = mixer_lowering(layer.mixer).matrices(layer.mixer)
        kinds += ["stream_router"] if architecture.streams > 1 else []
        kinds += ["laurel_down", "laurel_up"] if layer.laurel else []
        kinds += feed_forward_lowering(layer.feed_forward).matrices(layer.feed_forward)
        kinds += ["embedding_gate", "embedding_up"] if layer.embedding else []
        names += [f"layers.{index}.{kind}" for kind in kinds]
    if architecture.layer_embedding:
        names += ["layer_embedding", "layer_projection"]
    if architecture.streams > 1:
        names += ["stream_projection", "stream_merge"]
    return [*names, "embedding", *([] if architecture.tied_head else ["head"])]


def head_name(architecture: Architecture) -> str:
    return "embedding" if architecture.tied_head else "head"


def head_to_split(source: ModelSource) -> str:
    """Name of the head if its upper bits may stand in for it, else empty: their bound is that of the bare product."""
    a = source.architecture
    is_bare = a.logit_scale == 1.0 and a.logit_softcap == 0.0 and "head.bias" not in source
    return head_name(a) if is_bare else ""


class LoweredModel(PlanTensors):
    """Owner of the plan."""

    def __init__(self, source: ModelSource, weights: PackedWeights, kv_dtype: str) -> None:
        super().__init__(source, weights, kv_dtype)
        a = self.architecture
        self._layers = (abi.LayerPlan * a.n_layers)()
        layouts = kv_layouts(a, kv_dtype)
        for index, layer in enumerate(a.layers):
            self._lower_layer(index, layer, layouts[layer.cache_group])
        self.plan = abi.ModelPlan(
            embedding=self.matrix("embedding"),
            head=self.matrix(head_name(a)),
            **self._beside(),
            final_norm=self.norm("final_norm"),
            head_bias=self.vector("head.bias"),
            layers=ctypes.cast(self._layers, ctypes.POINTER(abi.LayerPlan)),
            n_layers=a.n_layers,
            width=a.width,
            vocab_size=a.vocab_size,
            n_groups=len(a.cache_groups),
            norm=int(a.norm.startswith("layer")),
            norm_eps=a.norm_eps,
            embedding_scale=a.embedding_scale,
            residual_scale=a.residual_scale,
            logit_scale=a.logit_scale,
            logit_softcap=a.logit_softcap,
        )

    def _beside(self) -> dict[str, Any]:
        """What is said to layers, and streams."""
        a = self.architecture
        fields: dict[str, Any] = {"layer_vocab_size": a.layer_vocab_size, "n_streams": a.streams}
        if a.layer_embedding:
            fields |= {name: self.matrix(name) for name in ("layer_embedding", "layer_projection")}
            fields["layer_projection_norm"] = self.norm("layer_projection_norm")
        if a.streams > 1:
            fields |= {name: self.matrix(name) for name in ("stream_projection", "stream_merge")}
        return fields

    def _lower_beside(self, index: int, layer: Layer, plan: abi.LayerPlan) -> None:
        prefix = f"layers.{index}."
        if self.architecture.streams > 1:
            own = plan.streams
            own.router, own.router_norm = (
                self.matrix(f"{prefix}stream_router"),
                self.norm(f"{prefix}stream_router_norm"),
            )
            for name in ("predict", "correct", "scale"):
                setattr(own, name, self.vector(f"{prefix}stream_{name}"))
        if layer.laurel:
            plan.laurel.down, plan.laurel.up = (self.matrix(f"{prefix}laurel_{name}") for name in ("down", "up"))
            plan.laurel.norm = self.norm(f"{prefix}laurel_norm")
        if layer.embedding:
            plan.said.gate, plan.said.up = (self.matrix(f"{prefix}embedding_{name}") for name in ("gate", "up"))
            plan.said.norm = self.norm(f"{prefix}post_embedding_norm")
            plan.said.size, plan.said.at = layer.embedding, index * layer.embedding

    def _lower_layer(self, index: int, layer: Layer, layout: KvLayout) -> None:
        plan, prefix = self._layers[index], f"layers.{index}."
        for name in abi.LAYER_NORMS:
            setattr(plan, name, self.norm(prefix + name))
        plan.parallel = layer.parallel
        if layer.parallel:
            plan.ffn_norm = plan.attn_norm
        mixer, feed_forward = mixer_lowering(layer.mixer), feed_forward_lowering(layer.feed_forward)
        plan.mixer, plan.feed_forward = mixer.kind, feed_forward.kind
        self._lower_beside(index, layer, plan)
        plan.scale = float(self._source.array(f"{prefix}scale")[0]) if layer.scaled else 1.0
        shared = layer.mixer.shares if isinstance(layer.mixer, Attention) else -1
        place = layout[shared if shared >= 0 else index]
        mixer.lower(self, plan, layer.mixer, LayerPart(prefix, layer.cache_group, place))
        feed_forward.lower(self, plan, layer.feed_forward, prefix)
