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


@dataclass(slots=True)
class _Partial:
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
    scores = scores * F(rule.scale)
    if rule.softcap:
        scores = rules.tanh(scores * (F(1) / F(rule.softcap))) * F(rule.softcap)
    at = np.arange(len(k))
    seen = at[None] <= positions[:, None]
    if rule.window:
        seen &= at[None] > positions[:, None] - rule.window
    scores = np.where(seen[:, None], scores, NOTHING)

    whole = None
    for span in range(0, len(k), SPAN):
        partial = _nothing(q)
        for tile in range(span, min(span + SPAN, len(k)), TILE):
            part = slice(tile, min(tile + TILE, len(k)))
            partial = _merged(rules, partial, _tile(rules, rule, scores[:, :, part], v[part], v_scale[part]))
        whole = partial if whole is None else _merged(rules, whole, partial)
    assert whole is not None
    keep = np.ones_like(whole.l)
    if sinks is not None:
        m = np.maximum(whole.m, sinks)
        keep = rules.exponential(whole.m - m)
        whole.l = rules.fused(whole.l, keep, rules.exponential(sinks - m))
    return whole.o * (keep / whole.l)[..., None]


def _nothing(q: Floats) -> _Partial:
    return _Partial(np.full(q.shape[:2], NOTHING), np.zeros(q.shape[:2], dtype=F), np.zeros_like(q))


def _tile(rules: Arithmetic, rule: Rule, scores: Floats, v: Floats, v_scale: Floats) -> _Partial:
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
    return _Partial(m, sum_lanes(lanes), o)


def _merged(rules: Arithmetic, a: _Partial, b: _Partial) -> _Partial:
    m = np.maximum(a.m, b.m)
    safe = np.where(m == NOTHING, F(0), m)
    keep, take = rules.exponential(a.m - safe), rules.exponential(b.m - safe)
    unseen = b.m == NOTHING
    l = np.where(unseen, a.l, rules.fused(b.l, take, a.l * keep))  # noqa: E741
    o = np.where(unseen[..., None], a.o, rules.fused(b.o, take[..., None], a.o * keep[..., None]))
    return _Partial(m, l, o)
