"""The forward once more, in float64 numpy, one sequence, all positions at once: the reference backend's slow twin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from imp_server.models.architecture import Architecture, Layer
from imp_server.models.feed_forwards import Experts
from imp_server.models.rotation import Rope
from numpy.typing import NDArray

from tests.backends.array_source import ArraySource

F = NDArray[np.float64]


def forward(source: ArraySource, ids: list[int]) -> tuple[F, F]:
    """(hidden after the final norm [n, width], raw logits [n, vocab])."""
    a = source.architecture
    t = {name: value.astype(np.float64) for name, value in source.tensors.items()}
    x = t["embedding"][ids] * a.embedding_scale
    if a.position_embeddings:
        x = x + t["position_embedding"][: len(ids)]
    if a.token_types:
        x = x + t["token_types"][0]
    if a.embedding_norm:
        x = _norm(a, t, "embedding_norm", x)
    for i, layer in enumerate(a.layers):
        own = {k.split(".", 2)[2]: v for k, v in t.items() if k.startswith(f"layers.{i}.")}
        x = _block(a, layer, own, x)
    hidden = _norm(a, t, "final_norm", x) if "final_norm" in t else x
    if a.is_encoder:
        return hidden, np.empty((0, 0))
    logits = hidden @ t["embedding" if a.tied_head else "head"].T * a.logit_scale
    if a.logit_softcap:
        logits = a.logit_softcap * np.tanh(logits / a.logit_softcap)
    return hidden, logits


def _block(a: Architecture, layer: Layer, t: dict[str, F], x: F) -> F:
    inner = _norm(a, t, "attn_norm", x) if layer.pre_norm else x
    out = _attention(a, layer.mixer, t, inner)
    if layer.post_norm:
        out = _norm(a, t, "post_attn_norm", out)
    if layer.parallel:
        return x + a.residual_scale * (out + _ffn(a, layer.feed_forward, t, inner))
    x = x + a.residual_scale * out
    bert = not layer.pre_norm and not layer.post_norm
    if bert:
        x = _norm(a, t, "attn_norm", x)
    out = _ffn(a, layer.feed_forward, t, _norm(a, t, "ffn_norm", x) if layer.pre_norm else x)
    if layer.post_norm:
        out = _norm(a, t, "post_ffn_norm", out)
    x = x + a.residual_scale * out
    return _norm(a, t, "ffn_norm", x) if bert else x


def _norm(a: Architecture, t: dict[str, F], name: str, x: F) -> F:
    if a.norm == "layer":
        x = x - x.mean(-1, keepdims=True)
    y: F = x / np.sqrt((x * x).mean(-1, keepdims=True) + a.norm_eps)
    y = y * (t[name] + (1 if a.norm == "rms_plus_one" else 0))
    return y + t[f"{name}.bias"] if f"{name}.bias" in t else y


def _linear(t: dict[str, F], name: str, x: F) -> F:
    y: F = x @ t[name].T
    return y + t[f"{name}.bias"] if f"{name}.bias" in t else y


def _rotate(x: F, rope: Rope) -> F:
    out = x.copy()
    for position in range(len(x)):
        for pair in range(rope.dims // 2):
            angle = position * rope.base ** (-2 * pair / rope.dims)
            if rope.scaling.frequency_factors:
                angle /= rope.scaling.frequency_factors[pair]
            if rope.scaling.kind == "linear":
                angle /= rope.scaling.factor
            i, j = (2 * pair, 2 * pair + 1) if rope.style == "interleaved" else (pair, pair + rope.dims // 2)
            c, s = math.cos(angle), math.sin(angle)
            out[position, :, i] = x[position, :, i] * c - x[position, :, j] * s
            out[position, :, j] = x[position, :, i] * s + x[position, :, j] * c
    return out


def _attention(a: Architecture, layer: Any, t: dict[str, F], x: F) -> F:
    n = len(x)
    q, k, v = (_linear(t, name, x) for name in "qkv")
    gate = None
    if layer.gated:
        both = q.reshape(n, layer.n_heads, 2, layer.head_size)
        q, gate = both[:, :, 0].reshape(n, -1), both[:, :, 1]
    if layer.qk_norm == "whole":
        q, k = _norm(a, t, "q_norm", q), _norm(a, t, "k_norm", k)
    q, k = q.reshape(n, layer.n_heads, -1), k.reshape(n, layer.n_kv_heads, -1)
    v = v.reshape(n, layer.n_kv_heads, -1)
    if layer.qk_norm == "per_head":
        q, k = _norm(a, t, "q_norm", q), _norm(a, t, "k_norm", k)
    if layer.rope:
        q, k = _rotate(q, layer.rope), _rotate(k, layer.rope)
    out = np.zeros((n, layer.n_heads, layer.value_size))
    for h in range(layer.n_heads):
        kv = h // (layer.n_heads // layer.n_kv_heads)
        for i in range(n):
            seen = [
                j for j in range(n) if (not layer.causal or j <= i) and (not layer.window or abs(i - j) < layer.window)
            ]
            scores = k[seen, kv] @ q[i, h] * (layer.scale or layer.head_size**-0.5)
            if layer.softcap:
                scores = layer.softcap * np.tanh(scores / layer.softcap)
            weights = np.exp(scores)
            total = weights.sum() + (math.exp(t["sinks"][h]) if layer.sinks else 0.0)
            out[i, h] = weights @ v[seen, kv] / total
    if gate is not None:
        out = out / (1 + np.exp(-gate))
    return _linear(t, "o", out.reshape(n, -1))


def _activation(kind: str, x: F) -> F:
    y: F
    if kind == "silu":
        y = x / (1 + np.exp(-x))
    elif kind == "gelu_tanh":
        y = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    elif kind == "gelu":
        y = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    else:
        y = np.maximum(x, 0) ** 2
    return y


def _glu(kind: str, gate: F, up: F) -> F:
    if kind == "swiglu_clamped":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        y: F = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
        return y
    return _activation(kind, gate) * up


def _ffn(a: Architecture, kind: Any, t: dict[str, F], x: F) -> F:
    if isinstance(kind, Experts):
        return np.stack([_experts(kind, t, row) for row in x])
    up = _linear(t, "up", x)
    hidden = _glu(kind.activation, _linear(t, "gate", x), up) if kind.gated else _activation(kind.activation, up)
    return _linear(t, "down", hidden)


def _experts(e: Experts, t: dict[str, F], x: F) -> F:
    logits = t["router"] @ x
    scores = 1 / (1 + np.exp(-logits)) if e.gating == "sigmoid" else np.exp(logits) / np.exp(logits).sum()
    chosen = sorted(range(e.count), key=lambda i: -scores[i])[: e.top_k]
    weights = scores[chosen]
    if e.normalise_top_k:
        weights = weights / weights.sum()
    out = sum(
        w * (t["experts_down"][i] @ _glu(e.activation, t["experts_gate"][i] @ x, t["experts_up"][i] @ x))
        for i, w in zip(chosen, weights * e.scale)
    )
    if e.shared_hidden:
        out = out + t["shared_down"] @ _glu(e.activation, t["shared_gate"] @ x, t["shared_up"] @ x)
    return np.asarray(out)
