"""How each kind of mixer is lowered; `MIXERS` is the table, kernels/cpu/engine/plan.h has the plans."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from imp_server.backends.cpu import abi
from imp_server.backends.cpu.plan_tensors import PlanTensors
from imp_server.backends.kv_layout import LayerPlace
from imp_server.core import UnsupportedModel
from imp_server.models.mixers import Attention, LatentAttention, Mixer

MAX_HEAD_SIZE = 512
MAX_LATENT_KEY = 640
_KV_KINDS = {"bf16": 0, "int8": 1}


class LayerPart(NamedTuple):
    """Which layer: its tensors' prefix, its cache group and its place in a block."""

    prefix: str
    cache_group: int
    place: LayerPlace


class MixerLowering(Protocol):
    """`kind`: MixerKind in plan.h."""

    kind: int

    def lacks(self, mixer: Any) -> Iterator[str]:
        """What the kernels can't execute of it, in words."""
        ...

    def matrices(self, mixer: Any) -> list[str]:
        """Names of its packed matrices, in the order in which a forward reads them."""
        ...

    def lower(self, model: PlanTensors, plan: abi.LayerPlan, mixer: Any, part: LayerPart) -> None: ...


class AttentionLowering:
    """Attention -> AttentionPlan."""

    kind = 0

    def lacks(self, mixer: Attention) -> Iterator[str]:
        if mixer.value_size != mixer.head_size:
            yield "value heads of another size than key heads"
        if mixer.head_size % 16 or not 16 <= mixer.head_size <= MAX_HEAD_SIZE:
            yield f"heads of {mixer.head_size} (multiples of 16 up to {MAX_HEAD_SIZE})"
        if not mixer.causal:
            yield "attention that isn't causal"
        if mixer.gated:
            yield "gated attention"

    def matrices(self, mixer: Attention) -> list[str]:
        return [name for name in ("q", "k", "v", "o") if name in mixer.tensors(1)]

    def lower(self, model: PlanTensors, plan: abi.LayerPlan, mixer: Attention, part: LayerPart) -> None:
        own, prefix = plan.attention, part.prefix
        for name in self.matrices(mixer):
            setattr(own, name, model.matrix(prefix + name))
            setattr(own, f"{name}_bias", model.vector(f"{prefix}{name}.bias"))
        if mixer.bare_qk_norm and mixer.qk_norm != "none":
            size = mixer.head_size
            own.q_norm, own.k_norm = (
                model.ones(n if mixer.qk_norm == "whole" else size)
                for n in (mixer.n_heads * size, mixer.n_kv_heads * size)
            )
        else:
            own.q_norm, own.k_norm = model.norm(f"{prefix}q_norm"), model.norm(f"{prefix}k_norm")
        if mixer.v_norm:
            own.v_norm = model.ones(mixer.value_size)
        own.sinks = model.vector(f"{prefix}sinks")
        own.kv_offset, own.cache_group = part.place.offset, part.cache_group
        own.kv = kv_form(model.kv_dtype, part.place)
        own.n_heads, own.n_kv_heads, own.window = mixer.n_heads, mixer.n_kv_heads, mixer.window
        own.chunk = mixer.chunk
        own.rope, own.rope_dims, own.rope_interleaved = model.rope(mixer.rope)
        own.qk_norm_whole = mixer.qk_norm == "whole"
        own.norm_after_rope = mixer.qk_norm == "per_head_after_rope"
        if mixer.temperature:
            own.temperature, own.temperature_step = mixer.temperature.share, mixer.temperature.step
            own.temperature_offset = mixer.temperature.offset
        own.scale = mixer.scale or 1.0 / math.sqrt(mixer.head_size)
        own.softcap = mixer.softcap


class LatentLowering:
    """LatentAttention -> LatentPlan."""

    kind = 1

    def lacks(self, mixer: LatentAttention) -> Iterator[str]:
        if any(size % 16 for size in (mixer.rank, mixer.rope.dims, mixer.value_size)):
            sizes = f"{mixer.rank}, {mixer.rope.dims} and {mixer.value_size}"
            yield f"latents, turned keys and values of {sizes} (multiples of 16)"
        if mixer.rank > MAX_HEAD_SIZE or mixer.rank + mixer.rope.dims > MAX_LATENT_KEY:
            yield f"latents of {mixer.rank} (up to {MAX_HEAD_SIZE})"
        if mixer.temperature and mixer.temperature.offset:
            yield "latents whose temperature begins elsewhere"

    def matrices(self, mixer: LatentAttention) -> list[str]:
        return [*(["q_a", "q_b"] if mixer.q_rank else ["q"]), "kv_a", "k_b", "v_b", "o"]

    def lower(self, model: PlanTensors, plan: abi.LayerPlan, mixer: LatentAttention, part: LayerPart) -> None:
        own, prefix = plan.latent, part.prefix
        for name in self.matrices(mixer):
            setattr(own, "q" if name == "q_b" else name, model.matrix(prefix + name))
        for name in ("q_a", "kv_a", "o"):
            setattr(own, f"{name}_bias", model.vector(f"{prefix}{name}.bias"))
        own.q_a_norm, own.kv_a_norm = (abi.Norm(model.vector(f"{prefix}{name}_a_norm")) for name in ("q", "kv"))
        own.kv_offset, own.cache_group = part.place.offset, part.cache_group
        latent, turned = part.place["latent"], part.place["turned"]
        own.kv = abi.KvForm(
            kind=_KV_KINDS[model.kv_dtype],
            head_size=mixer.rank,
            stride=latent.stride,
            values=latent.values,
            value_scales=latent.scales,
            turned=turned.values,
            turned_scales=turned.scales,
            turned_size=mixer.rope.dims,
        )
        own.n_heads, own.still_size, own.value_size = mixer.n_heads, mixer.still_size, mixer.value_size
        own.rope, _, own.rope_interleaved = model.rope(mixer.rope)
        own.scale = mixer.scale or 1.0 / math.sqrt(mixer.head_size)
        own.eps = mixer.latent_eps
        if mixer.temperature:
            own.temperature, own.temperature_step = mixer.temperature.share, mixer.temperature.step


def kv_form(kv_dtype: str, place: LayerPlace) -> abi.KvForm:
    """Where the kernels find a layer's keys and values."""
    k, v = place["k"], place["v"]
    return abi.KvForm(_KV_KINDS[kv_dtype], k.part.size, k.stride, k.values, v.values, k.scales, v.scales)


MIXERS: dict[type[Mixer], MixerLowering] = {Attention: AttentionLowering(), LatentAttention: LatentLowering()}


def mixer_lowering(mixer: Mixer) -> MixerLowering:
    """Raises UnsupportedModel for a kind that the kernels lack."""
    if type(mixer) not in MIXERS:
        raise UnsupportedModel(
            f"the cpu backend can't run {type(mixer).__name__} layers yet; use engine.backend=reference"
        )
    return MIXERS[type(mixer)]
