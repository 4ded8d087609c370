"""The twin of kernels/cpu/engine/attention.cpp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from imp_server.backends.cpu.twin import NOTHING, SPAN, TILE, Arithmetic, F, Floats, cached, sum_lanes


@dataclass(frozen=True, slots=True)
class Rule:
    scale: float
    softcap: float
    window: int
    kv_dtype: str
    chunk: int = 0


@dataclass(slots=True)
class _TwinPartial:
    m: Floats
    l: Floats  # noqa: E741 (the letter of the literature)
    o: Floats


def attend(
    rules: Arithmetic,
    rule: Rule,
    q: Floats,
    positions: npt.NDArray[np.int64],
    keys: Floats,
    values: Floats,
    sinks: Floats | None,
) -> Floats:
    """q [n, heads, size] at `positions`; keys, values [n_positions, kv heads, size] -> [n, heads, size]."""
    sharing = q.shape[1] // keys.shape[1]
    k, k_scale = cached(rule.kv_dtype, keys)
    v, v_scale = cached(rule.kv_dtype, values)
    k, v = k.repeat(sharing, axis=1), v.repeat(sharing, axis=1)
    k_scale, v_scale = k_scale.repeat(sharing, axis=1), v_scale.repeat(sharing, axis=1)
    scores = np.zeros((*q.shape[:2], len(k)), dtype=F)
    for d in range(q.shape[2]):
        scores = rules.fused(q[:, :, d, None], k.transpose(2, 1, 0)[d][None], scores)
    if rule.kv_dtype == "int8":
        scores = scores * k_scale.T
    return _weighted(rules, rule, scores, positions, v, v_scale, sinks)


def attend_latents(rules: Arithmetic, rule: Rule, q: Floats, latents: Floats, turned: Floats) -> Floats:
    """q [n, heads, rank + turned]; latents, turned [n, 1, size], all from position 0 -> [n, heads, rank]."""
    rank = latents.shape[2]
    parts = [cached(rule.kv_dtype, part) for part in (latents, turned)]
    lanes = np.zeros((*q.shape[:2], len(latents), 16), dtype=F)
    scores = np.zeros(lanes.shape[:3], dtype=F)
    for (keys, scale), queries in zip(parts, (q[..., :rank], q[..., rank:]), strict=True):
        for d in range(0, keys.shape[2], 16):
            lanes = rules.fused(queries[:, :, None, d : d + 16], keys[None, None, :, 0, d : d + 16], lanes)
        if rule.kv_dtype == "int8":
            scores = rules.fused(sum_lanes(lanes), scale[None, None, :, 0], scores)
            lanes = np.zeros_like(lanes)
    scores = scores if rule.kv_dtype == "int8" else sum_lanes(lanes)
    (values, value_scale), heads = parts[0], q.shape[1]
    v, v_scale = values.repeat(heads, axis=1), value_scale.repeat(heads, axis=1)
    return _weighted(rules, rule, scores, np.arange(len(q)), v, v_scale, None)


def _weighted(
    rules: Arithmetic,
    rule: Rule,
    scores: Floats,
    positions: npt.NDArray[np.int64],
    v: Floats,
    v_scale: Floats,
    sinks: Floats | None,
) -> Floats:
    """Sums of values [n_positions, heads, size] by the softmax of what is seen of scores [n, heads, n_positions]."""
    scores = scores * F(rule.scale)
    if rule.softcap:
        scores = rules.tanh(scores * (F(1) / F(rule.softcap))) * F(rule.softcap)
    at = np.arange(len(v))
    seen = at[None] <= positions[:, None]
    if rule.window:
        seen &= at[None] > positions[:, None] - rule.window
    if rule.chunk:
        seen &= at[None] >= (positions // rule.chunk * rule.chunk)[:, None]
    scores = np.where(seen[:, None], scores, NOTHING)

    whole = None
    for span in range(0, len(v), SPAN):
        partial = _nothing(scores, v.shape[2])
        for tile in range(span, min(span + SPAN, len(v)), TILE):
            part = slice(tile, min(tile + TILE, len(v)))
            partial = _merged(rules, partial, _tile(rules, rule, scores[:, :, part], v[part], v_scale[part]))
        whole = partial if whole is None else _merged(rules, whole, partial)
    assert whole is not None
    keep = np.ones_like(whole.l)
    if sinks is not None:
        m = np.maximum(whole.m, sinks)
        keep = rules.exponential(whole.m - m)
        whole.l = rules.fused(whole.l, keep, rules.exponential(sinks - m))
    return whole.o * (keep / whole.l)[..., None]


def _nothing(scores: Floats, size: int) -> _TwinPartial:
    shape = scores.shape[:2]
    return _TwinPartial(np.full(shape, NOTHING), np.zeros(shape, dtype=F), np.zeros((*shape, size), dtype=F))


def _tile(rules: Arithmetic, rule: Rule, scores: Floats, v: Floats, v_scale: Floats) -> _TwinPartial:
    m = scores.max(axis=2)
    safe = np.where(m == NOTHING, F(0), m)
    p = rules.exponential(scores - safe[..., None])
    padded = np.zeros((*p.shape[:2], TILE), dtype=F)
    padded[:, :, : p.shape[2]] = p
    lanes = np.zeros((*p.shape[:2], 16), dtype=F)
    for i in range(0, TILE, 16):
        lanes = lanes + padded[:, :, i : i + 16]
    if rule.kv_dtype == "int8":
        p = p * v_scale.T
    o = np.zeros((*p.shape[:2], v.shape[2]), dtype=F)
    for j in range(p.shape[2]):
        o = rules.fused(p[:, :, j, None], v[None, j], o)
    return _TwinPartial(m, sum_lanes(lanes), o)


def _merged(rules: Arithmetic, a: _TwinPartial, b: _TwinPartial) -> _TwinPartial:
    m = np.maximum(a.m, b.m)
    safe = np.where(m == NOTHING, F(0), m)
    keep, take = rules.exponential(a.m - safe), rules.exponential(b.m - safe)
    unseen = b.m == NOTHING
    l = np.where(unseen, a.l, rules.fused(b.l, take, a.l * keep))  # noqa: E741
    o = np.where(unseen[..., None], a.o, rules.fused(b.o, take[..., None], a.o * keep[..., None]))
    return _TwinPartial(m, l, o)
