"""A whole forward in the twin's arithmetic: sequences from position 0, logits at every position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from imp_server.backends.cpu import twin_streams as beside
from imp_server.backends.cpu.twin import NOTHING, Arithmetic, F, Floats, TwinMatrix
from imp_server.backends.cpu.twin_adapters import added
from imp_server.backends.cpu.twin_attention import Rule, attend, attend_latents
from imp_server.backends.cpu.twin_streams import TwinParts
from imp_server.models import rotation
from imp_server.models.adapters import Adapter
from imp_server.models.architecture import Layer
from imp_server.models.feed_forwards import Dense, DenseAndExperts, Experts
from imp_server.models.mixers import Attention, LatentAttention, Mixer, Temperature
from imp_server.models.rotation import Rope
from imp_server.models.source import ModelSource


def _in_order(x: Floats) -> Floats:
    """Sums of rows [n, 1], one number after the other."""
    total = np.zeros((len(x), 1), dtype=F)
    for i in range(x.shape[1]):
        total = total + x[:, i : i + 1]
    return total


def _of_groups(kind: Experts, choice: Floats) -> Floats:
    """-inf for experts outside the strongest groups."""
    groups = choice.reshape(len(choice), kind.n_groups, -1)
    best = np.sort(groups, axis=2)[..., ::-1]
    strength = best[..., 0]
    if kind.group_strength == "best_two" and groups.shape[2] > 1:
        strength = strength + best[..., 1]
    kept = np.argsort(-strength, axis=1, kind="stable")[:, : kind.top_groups]
    is_kept = np.zeros_like(strength, dtype=bool)
    np.put_along_axis(is_kept, kept, True, axis=1)
    return np.where(is_kept[..., None], groups, NOTHING).reshape(choice.shape)


class TwinModel:
    """Holds a model's matrices taken apart (about one byte a weight)."""

    def __init__(
        self,
        source: ModelSource,
        kv_dtype: str = "bf16",
        *,
        has_fma: bool = True,
        quantize: str = "none",
        adapters: Sequence[tuple[Adapter, float]] = (),
    ) -> None:
        """`adapters`: each with its scale, of all rows."""
        self._source, self._adapters = source, adapters
        self._kv_dtype = kv_dtype
        self._rules = Arithmetic(has_fma)
        self._ends: list[int] = []
        self._kept: dict[str, tuple[Floats, Floats]] = {}
        """Keys and values of layers by their prefix, for those that share them."""
        self._matrix = lru_cache(maxsize=None)(lambda name: TwinMatrix(source.raw(name), quantize))
        self._parts = TwinParts(
            self._rules,
            self._norm,
            lambda name, x: self._matrix(name).multiply(x, self._rules),
            lambda name, ids: self._matrix(name).dequantised(ids),
            source.array,
        )

    def logits(self, ids: npt.NDArray[np.integer]) -> Floats:
        """[len(ids), vocab]."""
        return self.head(self.hidden(ids))

    def logits_of_many(self, sequences: Sequence[npt.NDArray[np.integer]]) -> list[Floats]:
        """[len(ids), vocab] each; rows are independent, so the products may run over all at once."""
        ends = np.cumsum([len(ids) for ids in sequences])
        hidden = self.hidden(np.concatenate(sequences), ends.tolist())
        return [self.head(part) for part in np.split(hidden, ends[:-1])]

    def hidden(self, ids: npt.NDArray[np.integer], ends: Sequence[int] = ()) -> Floats:
        """[len(ids), width] after the final norm. `ends`: where each of several sequences ends."""
        a = self._source.architecture
        self._ends = list(ends) or [len(ids)]
        x = self._matrix("embedding").dequantised(np.asarray(ids))
        if a.embedding_scale != 1.0:
            x = x * F(a.embedding_scale)
        if a.layer_embedding:
            said = beside.said_to_layers(self._parts, a, np.asarray(ids), x)
        x = beside.spread(self._parts, a.streams, x) if a.streams > 1 else x
        for index, layer in enumerate(a.layers):
            x = self._layer(f"layers.{index}.", layer, x, said[:, index] if layer.embedding else x)
            if layer.scaled:
                x = x * F(self._source.array(f"layers.{index}.scale")[0])
        return self._norm("final_norm", beside.merged(self._parts, x) if a.streams > 1 else x)

    def _layer(self, prefix: str, layer: Layer, x: Floats, said: Floats) -> Floats:
        """x [rows, width], or of all streams."""
        if x.ndim == 2:
            x = self._halves(prefix, layer, x)
            return x + beside.heard(self._parts, prefix, x, said) if layer.embedding else x
        expected = beside.predicted(self._parts, prefix, x)
        x = beside.corrected(self._parts, prefix, expected, self._halves(prefix, layer, expected[0]))
        if layer.embedding:
            first = np.asarray(x[0] * self._source.array(f"{prefix}stream_scale"), dtype=F)
            x[1:] += beside.heard(self._parts, prefix, first, said)
        return x

    def _halves(self, prefix: str, layer: Layer, x: Floats) -> Floats:
        before, scale = x, F(self._source.architecture.residual_scale)
        x = x + self._mixer(prefix, layer.mixer, x) * scale
        if layer.laurel:
            x = beside.met(x, beside.around(self._parts, prefix, self._norm(f"{prefix}attn_norm", before)))
        return x + self._ffn(prefix, layer, before if layer.parallel else x) * scale

    def head(self, hidden: Floats) -> Floats:
        a = self._source.architecture
        y = self._matrix("embedding" if a.tied_head else "head").multiply(hidden, self._rules)
        y = self._biased("head", y) if not a.tied_head else y
        if a.logit_scale != 1.0 or a.logit_softcap:
            y = y * F(a.logit_scale)
        if a.logit_softcap:
            y = self._rules.tanh(y * (F(1) / F(a.logit_softcap))) * F(a.logit_softcap)
        return y

    def _mixer(self, prefix: str, mixer: Mixer, x: Floats) -> Floats:
        normed = self._norm(f"{prefix}attn_norm", x)
        if isinstance(mixer, LatentAttention):
            return self._latent_attention(prefix, mixer, normed)
        assert isinstance(mixer, Attention)
        return self._attention(prefix, mixer, normed)

    def _latent_attention(self, prefix: str, layer: LatentAttention, normed: Floats) -> Floats:
        """kernels/cpu/engine/forward_latent.cpp."""
        compressed = self._project(f"{prefix}kv_a", normed)
        latent = self._latent_norm(prefix, "kv_a", layer, compressed[:, : layer.rank])[:, None]
        turned = self._rotated(layer.rope, compressed[:, None, layer.rank :])
        if layer.q_rank:
            q = self._latent_norm(prefix, "q_a", layer, self._project(f"{prefix}q_a", normed))
            q = self._project(f"{prefix}q_b", q)
        else:
            q = self._project(f"{prefix}q", normed)
        q = q.reshape(len(normed), layer.n_heads, -1)
        in_latents = self._by_head(f"{prefix}k_b", q[..., : layer.still_size])
        q = np.concatenate([in_latents, self._rotated(layer.rope, q[..., layer.still_size :])], axis=-1)
        q = self._tempered(layer.temperature, q)
        rule = Rule(layer.scale or 1 / math.sqrt(layer.head_size), 0.0, 0, self._kv_dtype)
        cuts = self._ends[:-1]
        parts = zip(*(np.split(y, cuts) for y in (q, latent, turned)), strict=True)
        mixed = np.concatenate([attend_latents(self._rules, rule, *part) for part in parts])
        values = self._by_head(f"{prefix}v_b", mixed).reshape(len(normed), -1)
        return self._norm(f"{prefix}post_attn_norm", self._project(f"{prefix}o", values))

    def _latent_norm(self, prefix: str, name: str, layer: LatentAttention, x: Floats) -> Floats:
        weight = self._source.array(f"{prefix}{name}_norm")
        return self._rules.norm(np.ascontiguousarray(x), weight, None, layer.latent_eps, centred=False)

    def _by_head(self, name: str, x: Floats) -> Floats:
        """[rows, heads, in] -> [rows, heads, out], each head by its own rows of the matrix."""
        n_heads = x.shape[1]
        every = [self._matrix(name).multiply(np.ascontiguousarray(x[:, head]), self._rules) for head in range(n_heads)]
        n_out = every[0].shape[1] // n_heads
        return np.stack([y[:, head * n_out : (head + 1) * n_out] for head, y in enumerate(every)], axis=1)

    def _tempered(self, temperature: Temperature | None, q: Floats) -> Floats:
        if temperature is None:
            return q
        steps = ((self._positions() + temperature.offset) // temperature.step).astype(np.float64)
        factor = (1.0 + float(F(temperature.share)) * np.log(1.0 + steps)).astype(F)
        return np.asarray(q * factor[:, None, None], dtype=F)

    def _attention(self, prefix: str, layer: Attention, normed: Floats) -> Floats:
        q = self._placed(f"{prefix}q", layer, self._project(f"{prefix}q", normed))
        q = self._tempered(layer.temperature, q)
        if layer.shares >= 0:
            k, v = self._kept[f"layers.{layer.shares}."]
        else:
            k = self._project(f"{prefix}k", normed)
            v = k if layer.keys_are_values else self._project(f"{prefix}v", normed)
            v = v.reshape(len(normed), -1, layer.head_size)
            if layer.v_norm:
                v = self._rules.norm(v, np.ones(layer.head_size, dtype=F), None, self._eps, centred=self._is_centred)
            k = self._placed(f"{prefix}k", layer, k)
            self._kept[prefix] = k, v
        mixed = self._mixed(prefix, layer, q, k, v)
        return self._norm(f"{prefix}post_attn_norm", self._project(f"{prefix}o", mixed))

    def _placed(self, name: str, layer: Attention, x: Floats) -> Floats:
        """Queries or keys, normalised and turned: [rows, heads, size]."""
        x = self._head_norm(name, layer, x) if layer.qk_norm == "whole" else x
        x = x.reshape(len(x), -1, layer.head_size)
        x = self._head_norm(name, layer, x) if layer.qk_norm == "per_head" else x
        x = self._rotated(layer.rope, x) if layer.rope is not None else x
        return self._head_norm(name, layer, x) if layer.qk_norm == "per_head_after_rope" else x

    def _head_norm(self, name: str, layer: Attention, x: Floats) -> Floats:
        if not layer.bare_qk_norm:
            return self._norm(f"{name}_norm", x)
        return self._rules.norm(x, np.ones(x.shape[-1], dtype=F), None, self._eps, centred=self._is_centred)

    @property
    def _eps(self) -> float:
        return self._source.architecture.norm_eps

    @property
    def _is_centred(self) -> bool:
        return self._source.architecture.norm.startswith("layer")

    def _mixed(self, prefix: str, layer: Attention, q: Floats, k: Floats, v: Floats) -> Floats:
        """Attention, sequence by sequence: [rows, heads * size]."""
        scale = layer.scale or 1 / math.sqrt(layer.head_size)
        rule = Rule(scale, layer.softcap, layer.window, self._kv_dtype, layer.chunk)
        sinks = self._source.array(f"{prefix}sinks") if layer.sinks else None
        cuts = self._ends[:-1]
        parts = zip(np.split(q, cuts), np.split(k, cuts), np.split(v, cuts), strict=True)
        mixed = [attend(self._rules, rule, a, np.arange(len(a)), b, c, sinks) for a, b, c in parts]
        return np.concatenate(mixed).reshape(len(q), -1)

    def _ffn(self, prefix: str, layer: Layer, x: Floats) -> Floats:
        feed_forward = layer.feed_forward
        normed = self._norm(f"{prefix}{'attn_norm' if layer.parallel else 'ffn_norm'}", x)
        if isinstance(feed_forward, Experts):
            return self._norm(f"{prefix}post_ffn_norm", self._experts(prefix, feed_forward, normed))
        if isinstance(feed_forward, DenseAndExperts):
            return self._norm(f"{prefix}post_ffn_norm", self._dense_and_experts(prefix, feed_forward, x, normed))
        assert isinstance(feed_forward, Dense)
        return self._norm(f"{prefix}post_ffn_norm", self._dense(prefix, feed_forward, normed))

    def _dense(self, prefix: str, kind: Dense, normed: Floats) -> Floats:
        up = self._project(f"{prefix}up", normed)
        if not kind.gated:
            return self._project(f"{prefix}down", self._rules.activate(kind.activation, up))
        gate = self._project(f"{prefix}gate", normed)
        if kind.cutoff is not None:
            gate = beside.cut_off(self._rules, gate, kind.cutoff)
        return self._project(f"{prefix}down", self._rules.gated(kind.activation, gate, up))

    def _dense_and_experts(self, prefix: str, kind: DenseAndExperts, x: Floats, normed: Floats) -> Floats:
        dense = self._norm(f"{prefix}post_dense_norm", self._dense(prefix, kind.dense, normed))
        weight = self._source.array(f"{prefix}router_scale") * F(x.shape[-1] ** -0.5)
        routed = self._rules.norm(x, weight, None, self._eps, centred=self._is_centred)
        chosen = self._chosen(prefix, kind.experts, self._project(f"{prefix}router", routed))
        weights = chosen[1] * self._source.array(f"{prefix}expert_scale")[chosen[0]]
        out = self._mixture(prefix, kind.experts, self._norm(f"{prefix}experts_norm", x), (chosen[0], weights))
        return np.asarray(self._norm(f"{prefix}post_experts_norm", out) + dense, dtype=F)

    def _experts(self, prefix: str, kind: Experts, x: Floats) -> Floats:
        """kernels/cpu/engine/forward_experts.cpp."""
        return self._mixture(prefix, kind, x, self._chosen(prefix, kind, self._project(f"{prefix}router", x)))

    def _mixture(self, prefix: str, kind: Experts, x: Floats, chosen: tuple[npt.NDArray[np.intp], Floats]) -> Floats:
        ids, weights = chosen
        every = (len(x), kind.count, -1)
        gate, up = (self._stacked(f"{prefix}experts_{name}", x).reshape(every) for name in ("gate", "up"))
        total = np.zeros_like(x)
        rows = np.arange(len(x))
        for place in range(kind.top_k):
            if kind.weights_on_input:
                own = np.asarray(x * weights[:, place, None], dtype=F)
                gate, up = (self._stacked(f"{prefix}experts_{name}", own).reshape(every) for name in ("gate", "up"))
            hidden = self._rules.gated(kind.activation, gate[rows, ids[:, place]], up[rows, ids[:, place]])
            out = self._stacked(f"{prefix}experts_down", hidden).reshape(every)[rows, ids[:, place]]
            weighted = out if kind.weights_on_input else weights[:, place, None] * out
            total = total + weighted if place else weighted
        if kind.shared_hidden:
            shared = (self._project(f"{prefix}shared_{name}", x) for name in ("gate", "up"))
            out = self._project(f"{prefix}shared_down", self._rules.gated(kind.activation, *shared))
            if kind.shared_gate:
                out = out * self._sigmoid(self._project(f"{prefix}shared_router", x))
            total = total + out * F(kind.shared_scale)
        return np.asarray(total, dtype=F)

    def _chosen(self, prefix: str, kind: Experts, logits: Floats) -> tuple[npt.NDArray[np.intp], Floats]:
        if kind.gating == "sparse_mixer":
            return self._mixed_sparsely(kind, logits)
        by_score = kind.gating == "sigmoid" or kind.selection_bias or kind.n_groups > 1
        scores = self._scores(kind, logits) if by_score else logits
        choice = scores + self._source.array(f"{prefix}selection_bias") if kind.selection_bias else scores
        if kind.n_groups > 1:
            choice = _of_groups(kind, choice)
        ids = np.argsort(-choice, axis=1, kind="stable")[:, : kind.top_k]
        rows = np.arange(len(logits))[:, None]
        largest = logits[rows, ids[:, :1]]
        weights = scores[rows, ids] if by_score else self._rules.exponential(logits[rows, ids] - largest)
        if not by_score and not kind.normalise_top_k:
            weights = weights / _in_order(self._rules.exponential(logits - largest))
        if kind.normalise_top_k:
            weights = np.asarray(weights / np.maximum(_in_order(weights), F(1e-20)), dtype=F)
        return ids, np.asarray(weights * F(kind.scale), dtype=F)

    def _mixed_sparsely(self, kind: Experts, logits: Floats) -> tuple[npt.NDArray[np.intp], Floats]:
        left, ids, weights = logits.copy(), [], []
        for _ in range(kind.top_k):
            best = left.argmax(axis=1)[:, None]
            largest = np.take_along_axis(left, best, 1)
            is_far = (largest - logits) / np.maximum(np.abs(logits), largest) > F(2) * F(kind.jitter)
            powers = np.where(is_far | np.isinf(left), F(0), self._rules.exponential(logits - largest))
            weights.append(F(1) / _in_order(powers) * F(kind.scale))
            ids.append(best)
            np.put_along_axis(left, best, NOTHING, 1)
        return np.concatenate(ids, axis=1), np.asarray(np.concatenate(weights, axis=1), dtype=F)

    def _scores(self, kind: Experts, logits: Floats) -> Floats:
        if kind.gating == "sigmoid":
            return self._sigmoid(logits)
        powers = self._rules.exponential(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / _in_order(powers), dtype=F)

    def _sigmoid(self, x: Floats) -> Floats:
        return np.asarray(F(1) / (F(1) + self._rules.exponential(-x)), dtype=F)

    def _stacked(self, name: str, x: Floats) -> Floats:
        """Of all experts, one after the other."""
        y = self._matrix(name).multiply(x, self._rules)
        return y + self._source.array(f"{name}.bias").reshape(-1) if f"{name}.bias" in self._source else y

    def _project(self, name: str, x: Floats) -> Floats:
        y = self._matrix(name).multiply(x, self._rules)
        for adapter, scale in self._adapters:
            if name in adapter:
                y = added(self._rules, adapter[name], scale, x, y)
        return self._biased(name, y)

    def _biased(self, name: str, y: Floats) -> Floats:
        return y + self._source.array(f"{name}.bias") if f"{name}.bias" in self._source else y

    def _norm(self, name: str, x: Floats) -> Floats:
        if name not in self._source:
            return x
        a = self._source.architecture
        weight = self._source.array(name)
        if a.norm.endswith("plus_one"):
            weight = weight + F(1)
        bias = self._source.array(f"{name}.bias") if f"{name}.bias" in self._source else None
        return self._rules.norm(x, weight, bias, a.norm_eps, centred=a.norm.startswith("layer"))

    def _positions(self) -> npt.NDArray[np.int64]:
        return np.concatenate([np.arange(n) for n in np.diff([0, *self._ends])])

    def _rotated(self, rope: Rope, x: Floats) -> Floats:
        half = rope.dims // 2
        positions = self._positions()
        table = rotation.table(rope, int(positions.max()) + 1)[positions]
        cosine, sine = table[:, None, :half], table[:, None, half:]
        out = x.copy()
        first = slice(0, rope.dims, 2) if rope.style == "interleaved" else slice(0, half)
        second = slice(1, rope.dims, 2) if rope.style == "interleaved" else slice(half, rope.dims)
        a, b = x[..., first], x[..., second]
        out[..., first] = self._rules.fused(a, cosine, -(b * sine))
        out[..., second] = self._rules.fused(b, cosine, a * sine)
        return out
