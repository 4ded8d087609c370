"""`Architecture` + packed weights -> the plan that the native forward executes. Done once at load."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from imp_server.backends.cpu import abi
from imp_server.backends.cpu.feed_forwards import feed_forward_lowering
from imp_server.backends.cpu.mixers import LayerPart, mixer_lowering
from imp_server.backends.cpu.pack_cache import PackedWeights
from imp_server.backends.cpu.plan_tensors import PlanTensors
from imp_server.backends.kv_layout import KvLayout, kv_layouts
from imp_server.core import UnsupportedModel
from imp_server.models.architecture import Architecture, Layer
from imp_server.models.feed_forwards import Experts
from imp_server.models.mixers import Attention
from imp_server.models.source import ModelSource


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
    for layer in a.layers:
        yield from mixer_lowering(layer.mixer).lacks(layer.mixer)
        yield from feed_forward_lowering(layer.feed_forward).lacks(layer.feed_forward)
        if layer.embedding:
            yield "embeddings of each layer's own"
        if not (layer.pre_norm or layer.post_norm):
            yield "layers whose norm follows the sum"
        if isinstance(layer.feed_forward, Experts) and a.width % 16:
            yield f"experts in a model {a.width} wide (multiples of 16)"
        if layer.parallel and layer.post_norm:
            yield "halves side by side with a norm behind each"


def matrix_names(architecture: Architecture) -> list[str]:
    """Canonical names of the matrices, in the order in which a forward reads them."""
    names = []
    for index, layer in enumerate(architecture.layers):
        kinds = mixer_lowering(layer.mixer).matrices(layer.mixer)
        kinds += feed_forward_lowering(layer.feed_forward).matrices(layer.feed_forward)
        names += [f"layers.{index}.{kind}" for kind in kinds]
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

    def _lower_layer(self, index: int, layer: Layer, layout: KvLayout) -> None:
        plan, prefix = self._layers[index], f"layers.{index}."
        for name in abi.LAYER_NORMS:
            setattr(plan, name, self.norm(prefix + name))
        plan.parallel = layer.parallel
        if layer.parallel:
            plan.ffn_norm = plan.attn_norm
        mixer, feed_forward = mixer_lowering(layer.mixer), feed_forward_lowering(layer.feed_forward)
        plan.mixer, plan.feed_forward = mixer.kind, feed_forward.kind
        plan.scale = float(self._source.array(f"{prefix}scale")[0]) if layer.scaled else 1.0
        shared = layer.mixer.shares if isinstance(layer.mixer, Attention) else -1
        place = layout[shared if shared >= 0 else index]
        mixer.lower(self, plan, layer.mixer, LayerPart(prefix, layer.cache_group, place))
        feed_forward.lower(self, plan, layer.feed_forward, prefix)
