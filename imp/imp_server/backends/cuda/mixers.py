"""How each kind of mixer runs as operations; `MIXERS` is the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from imp_server.backends.cuda.operations import (
    AttentionForm,
    LayerKv,
    NormForm,
    Operations,
    PackedMatrix,
    QkvForm,
    QueryTemperature,
    Rotation,
    Rows,
)
from imp_server.backends.cuda.weights import DeviceWeights, Rotations
from imp_server.backends.cuda.workspace import Need, Workspace
from imp_server.core import UnsupportedModel
from imp_server.models.mixers import Attention, LatentAttention, Mixer, Temperature

Tensor = torch.Tensor

DECODE_WIDTH = 8
"""Ids of a row up to which attention is that of decoding."""


@dataclass(frozen=True, slots=True)
class MixerPlace:
    """Which layer: its tensors' prefix, and where the keys and values lie that it sees, and writes if it has some."""

    prefix: str
    kv: LayerKv
    rotations: Rotations


class MixerRun(Protocol):
    """One layer's mixer."""

    def __call__(self, x: Tensor, rows: Rows, work: Workspace, ops: Operations) -> Tensor:
        """x [T, width] -> [T, width], the buffer `delta`."""
        ...


class MixerKind(Protocol):
    def lacks(self, mixer: Any) -> Iterator[str]:
        """What can't be executed of it, in words."""
        ...

    def matrices(self, mixer: Any) -> list[str]:
        """Names of its packed matrices, in the order in which a forward reads them."""
        ...

    def needs(self, mixer: Any) -> Iterator[Need]:
        """Its buffers, those of every layer (forward.py) aside."""
        ...

    def lower(self, mixer: Any, weights: DeviceWeights, place: MixerPlace) -> MixerRun: ...


@dataclass(frozen=True, slots=True)
class Projection:
    """Matrices that read the same, side by side: (first column, matrix, bias)."""

    parts: tuple[tuple[int, PackedMatrix, Tensor | None], ...]

    def __call__(self, x: Tensor, out: Tensor, ops: Operations) -> None:
        for first, matrix, bias in self.parts:
            ops.project(x, matrix, bias, out[:, first : first + matrix.n_out])


def projection(weights: DeviceWeights, names: list[str]) -> Projection:
    biases = [weights.vector(f"{name}.bias") for name in names]
    parts: list[tuple[int, PackedMatrix, Tensor | None]] = []
    first, index = 0, 0
    sizes = [weights.rows(name) for name in names]
    for matrix in weights.stack(names):
        own, n_rows = [], 0
        while n_rows < matrix.n_out:
            bias = biases[index]
            own.append(torch.zeros(sizes[index], device=weights.device) if bias is None else bias)
            n_rows += sizes[index]
            index += 1
        has_bias = any(biases[i] is not None for i in range(index - len(own), index))
        parts.append((first, matrix, torch.cat(own) if has_bias else None))
        first += matrix.n_out
    return Projection(tuple(parts))


def attend(
    q: Tensor, rows: Rows, kv: LayerKv, form: AttentionForm, gate: Tensor | None, out: Tensor, ops: Operations
) -> None:
    run = ops.decode_attention if rows.width <= DECODE_WIDTH else ops.prefill_attention
    run(q, rows, kv, form, gate, out)


@dataclass(frozen=True, slots=True)
class AttentionRun:
    qkv: Projection
    form: QkvForm
    attention: AttentionForm
    kv: LayerKv
    o: PackedMatrix
    o_bias: Tensor | None

    def __call__(self, x: Tensor, rows: Rows, work: Workspace, ops: Operations) -> Tensor:
        n, form = rows.n_tokens, self.form
        qkv = work.take("qkv", n, form.width)
        self.qkv(x, qkv, ops)
        q = work.take("q", n, form.n_heads, form.head_size)
        gate = work.take("gate", n, form.n_heads, form.value_size) if form.gated else None
        ops.qkv_epilogue(qkv, form, rows, self.kv if form.has_kv else None, q, gate)
        seen = work.take("seen", n, form.n_heads, form.value_size)
        attend(q, rows, self.kv, self.attention, gate, seen, ops)
        out = work.take("delta", n, self.o.n_out)
        ops.project(seen.flatten(1), self.o, self.o_bias, out)
        return out


class AttentionKind:
    def lacks(self, mixer: Attention) -> Iterator[str]:
        if not mixer.causal:
            yield "attention that isn't causal"
        if mixer.gated and mixer.value_size != mixer.head_size:
            yield "gates of another size than values"

    def matrices(self, mixer: Attention) -> list[str]:
        return [name for name in ("q", "k", "v", "o") if name in mixer.tensors(1)]

    def needs(self, mixer: Attention) -> Iterator[Need]:
        form = _qkv_form(mixer)
        yield Need("qkv", form.width)
        yield Need("q", form.n_heads * form.head_size)
        yield Need("seen", form.n_heads * form.value_size)
        if form.gated:
            yield Need("gate", form.n_heads * form.value_size)

    def lower(self, mixer: Attention, weights: DeviceWeights, place: MixerPlace) -> AttentionRun:
        prefix = place.prefix
        names = [prefix + name for name in self.matrices(mixer) if name != "o"]
        sinks = weights.required(f"{prefix}sinks") if mixer.sinks else None
        attention = AttentionForm(
            mixer.n_heads,
            mixer.n_kv_heads,
            mixer.scale or mixer.head_size**-0.5,
            mixer.window,
            mixer.chunk,
            mixer.softcap,
            sinks,
        )
        return AttentionRun(
            projection(weights, names),
            _qkv_form(mixer, weights, place),
            attention,
            place.kv,
            weights.matrix(f"{prefix}o"),
            weights.vector(f"{prefix}o.bias"),
        )


def _qkv_form(mixer: Attention, weights: DeviceWeights | None = None, place: MixerPlace | None = None) -> QkvForm:
    """Without weights, its sizes alone."""
    orders = {"per_head_after_rope": "rope_first", "whole": "whole"}
    norms: dict[str, NormForm | None] = {}
    rotated = None
    if weights is not None and place is not None:
        if mixer.qk_norm != "none":
            for name in ("q_norm", "k_norm") if mixer.shares < 0 else ("q_norm",):
                norms[name] = weights.bare_norm() if mixer.bare_qk_norm else weights.norm(place.prefix + name)
        if mixer.v_norm:
            norms["v_norm"] = weights.bare_norm()
        rotated = place.rotations.of(mixer.rope) if mixer.rope is not None else None
    return QkvForm(
        n_heads=mixer.n_heads,
        n_kv_heads=mixer.n_kv_heads,
        head_size=mixer.head_size,
        value_size=mixer.value_size,
        order=orders.get(mixer.qk_norm, "norm_first"),  # type: ignore[arg-type]
        rotation=rotated,
        temperature=_temperature(mixer.temperature),
        gated=mixer.gated,
        has_kv=mixer.shares < 0,
        keys_are_values=mixer.keys_are_values,
        **norms,
    )


def _temperature(temperature: Temperature | None) -> QueryTemperature | None:
    if temperature is None:
        return None
    return QueryTemperature(temperature.share, temperature.step, temperature.offset)


@dataclass(frozen=True, slots=True)
class LatentRun:
    """Latent attention in its absorbed form."""

    mixer: LatentAttention
    compress: Projection
    q_a_norm: NormForm | None
    q_b: PackedMatrix | None
    kv_norm: NormForm
    rotation: Rotation
    k_b: PackedMatrix
    v_b: PackedMatrix
    attention: AttentionForm
    kv: LayerKv
    o: PackedMatrix
    o_bias: Tensor | None

    def __call__(self, x: Tensor, rows: Rows, work: Workspace, ops: Operations) -> Tensor:
        n, mixer = rows.n_tokens, self.mixer
        compressed = work.take("qkv", n, _compressed_width(mixer))
        self.compress(x, compressed, ops)
        kept = mixer.rank + mixer.rope.dims
        ops.latent_epilogue(compressed[:, :kept], self.kv_norm, self.rotation, rows, self.kv)
        q = self._queries(compressed[:, kept:], n, work, ops)
        latent_q = work.take("latent_q", n, mixer.n_heads, kept)
        temperature = _temperature(mixer.temperature)
        ops.latent_queries(q, self.k_b, self.rotation, temperature, rows, latent_q)
        seen = work.take("latent_seen", n, mixer.n_heads, mixer.rank)
        attend(latent_q, rows, self.kv, self.attention, None, seen, ops)
        values = work.take("seen", n, mixer.n_heads, mixer.value_size)
        ops.by_head(seen, self.v_b, values)
        out = work.take("delta", n, self.o.n_out)
        ops.project(values.flatten(1), self.o, self.o_bias, out)
        return out

    def _queries(self, compressed: Tensor, n: int, work: Workspace, ops: Operations) -> Tensor:
        """[T, heads, head_size]: `compressed` itself, or what is made of it."""
        mixer = self.mixer
        if self.q_b is None or self.q_a_norm is None:
            return compressed.view(n, mixer.n_heads, mixer.head_size)
        q = work.take("q", n, mixer.n_heads, mixer.head_size)
        ops.norm(compressed, self.q_a_norm, compressed)
        ops.project(compressed, self.q_b, None, q.flatten(1))
        return q


def _compressed_width(mixer: LatentAttention) -> int:
    return mixer.rank + mixer.rope.dims + (mixer.q_rank or mixer.n_heads * mixer.head_size)


class LatentKind:
    def lacks(self, mixer: LatentAttention) -> Iterator[str]:
        return iter(())

    def matrices(self, mixer: LatentAttention) -> list[str]:
        return ["kv_a", *(["q_a", "q_b"] if mixer.q_rank else ["q"]), "k_b", "v_b", "o"]

    def needs(self, mixer: LatentAttention) -> Iterator[Need]:
        yield Need("qkv", _compressed_width(mixer))
        yield Need("q", mixer.n_heads * mixer.head_size)
        yield Need("latent_q", mixer.n_heads * (mixer.rank + mixer.rope.dims))
        yield Need("latent_seen", mixer.n_heads * mixer.rank)
        yield Need("seen", mixer.n_heads * mixer.value_size)

    def lower(self, mixer: LatentAttention, weights: DeviceWeights, place: MixerPlace) -> LatentRun:
        prefix = place.prefix
        return LatentRun(
            mixer,
            projection(weights, [f"{prefix}kv_a", f"{prefix}{'q_a' if mixer.q_rank else 'q'}"]),
            _latent_norm(weights, f"{prefix}q_a_norm", mixer) if mixer.q_rank else None,
            weights.matrix(f"{prefix}q_b") if mixer.q_rank else None,
            _latent_norm(weights, f"{prefix}kv_a_norm", mixer),
            place.rotations.of(mixer.rope),
            weights.matrix(f"{prefix}k_b"),
            weights.matrix(f"{prefix}v_b"),
            AttentionForm(mixer.n_heads, 1, mixer.scale or mixer.head_size**-0.5),
            place.kv,
            weights.matrix(f"{prefix}o"),
            weights.vector(f"{prefix}o.bias"),
        )


def _latent_norm(weights: DeviceWeights, name: str, mixer: LatentAttention) -> NormForm:
    return NormForm(mixer.latent_eps, weights.required(name))


MIXERS: dict[type[Mixer], MixerKind] = {Attention: AttentionKind(), LatentAttention: LatentKind()}


def mixer_kind(mixer: Mixer) -> MixerKind:
    """Raises UnsupportedModel for a kind that there isn't."""
    if type(mixer) not in MIXERS:
        raise UnsupportedModel(
            f"the cuda backend can't run {type(mixer).__name__} layers yet; use engine.backend=reference"
        )
    return MIXERS[type(mixer)]
