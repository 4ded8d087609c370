"""The plain twin of kernels/cpu/engine/adapters.cpp: what an adapter adds to what a matrix makes of x."""

from __future__ import annotations

import numpy as np

from imp_server.backends.cpu.twin import Arithmetic, F, Floats, sum_lanes
from imp_server.models.adapters import Addition

_LANES = 16


def added(rules: Arithmetic, addition: Addition, scale: float, x: Floats, y: Floats) -> Floats:
    """x [rows, in], y [rows, out] before its bias. `scale`: of the adapter, beside the addition's own."""
    missing = -x.shape[1] % _LANES
    x, a = np.pad(x, ((0, 0), (0, missing))), np.pad(addition.a, ((0, 0), (0, missing)))
    lanes = np.zeros((len(x), len(a), _LANES), dtype=F)
    for k in range(0, x.shape[1], _LANES):
        lanes = rules.fused(a[None, :, k : k + _LANES], x[:, None, k : k + _LANES], lanes)
    low, out = sum_lanes(lanes), np.zeros_like(y)
    for rank in range(low.shape[1]):
        out = rules.fused(addition.b[:, rank][None], low[:, rank, None], out)
    return rules.fused(np.full_like(out, F(addition.scale) * F(scale)), out, y)
