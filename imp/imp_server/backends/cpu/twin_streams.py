"""What some layers have beside a mixer and a feed-forward, in the twin's arithmetic: forward_streams.cpp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from imp_server.backends.cpu.twin import Arithmetic, F, Floats
from imp_server.models.architecture import Architecture

_HALF_ROOT = F(0.70710678118654752)


@dataclass(frozen=True, slots=True)
class TwinParts:
    """What a model's twin lends: a norm and a product by the names of their tensors, rows of an embedding, a tensor."""

    rules: Arithmetic
    norm: Callable[[str, Floats], Floats]
    product: Callable[[str, Floats], Floats]
    rows: Callable[[str, npt.NDArray[np.integer]], Floats]
    array: Callable[[str], Floats]


def said_to_layers(model: TwinParts, a: Architecture, ids: npt.NDArray[np.integer], x: Floats) -> Floats:
    """[rows, layers, size]."""
    shape = (len(x), a.n_layers, a.layer_embedding)
    own = model.rows("layer_embedding", np.where(ids < a.layer_vocab_size, ids, 0)).reshape(shape)
    projected = model.product("layer_projection", x) * (F(1) / np.sqrt(F(a.width)))
    normed = model.norm("layer_projection_norm", projected.reshape(shape))
    return np.asarray((normed + own * np.sqrt(F(a.layer_embedding))) * _HALF_ROOT, dtype=F)


def heard(model: TwinParts, prefix: str, x: Floats, said: Floats) -> Floats:
    gate = model.rules.activate("gelu_tanh", model.product(f"{prefix}embedding_gate", x))
    return model.norm(f"{prefix}post_embedding_norm", model.product(f"{prefix}embedding_up", gate * said))


def around(model: TwinParts, prefix: str, entering: Floats) -> Floats:
    low = model.product(f"{prefix}laurel_down", entering)
    return entering + model.norm(f"{prefix}laurel_norm", model.product(f"{prefix}laurel_up", low))


def met(x: Floats, other: Floats) -> Floats:
    """Both ways around a mixer."""
    return np.asarray((x + other) * _HALF_ROOT, dtype=F)


def spread(model: TwinParts, n_streams: int, x: Floats) -> Floats:
    """[streams, rows, width]."""
    made = model.product("stream_projection", x).reshape(len(x), n_streams - 1, -1)
    return np.stack([x, *(_as_large_as(model.rules, x, made[:, s]) for s in range(n_streams - 1))])


def merged(model: TwinParts, streams: Floats) -> Floats:
    total, width = streams[0], streams.shape[-1]
    for s, stream in enumerate(streams[1:]):
        made = model.product("stream_merge", stream)[:, s * width : (s + 1) * width]
        total = total + _as_large_as(model.rules, streams[0], made)
    return np.asarray(total / F(len(streams)), dtype=F)


def predicted(model: TwinParts, prefix: str, streams: Floats) -> Floats:
    n = len(streams)
    counts = _counts(model, prefix, streams[0])
    shares = _in_order(model.array(f"{prefix}stream_predict"), counts).reshape(-1, n, n)
    out = []
    for s in range(n):
        total = shares[:, s, 0, None] * streams[0]
        for t in range(1, n):
            total = total + shares[:, s, t, None] * streams[t]
        out.append(total + streams[s])
    return np.stack(out)


def corrected(model: TwinParts, prefix: str, streams: Floats, x: Floats) -> Floats:
    weights = _in_order(model.array(f"{prefix}stream_correct"), _counts(model, prefix, x)) + F(1)
    return np.stack([(x - streams[0]) * weights[:, s, None] + own for s, own in enumerate(streams)])


def cut_off(rules: Arithmetic, gate: Floats, deviations: float) -> Floats:
    """layer_math.cpp `cutoff_of`."""
    n = F(gate.shape[-1])
    mean = rules.sum(gate) / n
    deviation = np.sqrt(rules.sum(gate - mean[:, None], squared=True) / n)
    return np.asarray(np.maximum(gate - (mean + deviation * F(deviations))[:, None], F(0)), dtype=F)


def _counts(model: TwinParts, prefix: str, x: Floats) -> Floats:
    scaled = model.norm(f"{prefix}stream_router_norm", x) * (F(1) / F(x.shape[-1]))
    return model.rules.tanh(model.product(f"{prefix}stream_router", scaled))


def _in_order(weights: Floats, x: Floats) -> Floats:
    total = np.zeros((len(x), len(weights)), dtype=F)
    for i in range(x.shape[1]):
        total = total + weights[None, :, i] * x[:, i, None]
    return total


def _as_large_as(rules: Arithmetic, x: Floats, y: Floats) -> Floats:
    def mean_square(rows: Floats) -> Floats:
        return np.asarray(rules.sum(rows, squared=True) / F(rows.shape[-1]), dtype=F)[:, None]

    return np.asarray(y * np.sqrt(mean_square(x)) / np.sqrt(np.maximum(mean_square(y), F(1e-5))), dtype=F)
