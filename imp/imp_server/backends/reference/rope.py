"""Rotary positions applied in both styles; the frequencies are those of models/rotation.py."""

from __future__ import annotations

import numpy as np
import torch

from imp_server.models.rotation import Rope, frequencies, magnitude

_CHUNK = 1024


class RotaryTable:
    """Cosines and sines by position, made in pieces of 1024 so that a position's values never depend on the batch."""

    def __init__(self, rope: Rope) -> None:
        self.rope = rope
        self._frequencies = frequencies(rope)
        self._magnitude = magnitude(rope.scaling)
        self._cos = torch.empty((0, len(self._frequencies)))
        self._sin = torch.empty((0, len(self._frequencies)))

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x [n, heads, head_size] at `positions` [n]."""
        self._grow(int(positions.max()) + 1)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        dims = self.rope.dims
        turning, rest = x[..., :dims], x[..., dims:]
        if self.rope.style == "interleaved":
            a, b = turning[..., 0::2], turning[..., 1::2]
            turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
        else:
            a, b = turning[..., : dims // 2], turning[..., dims // 2 :]
            turned = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
        return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned

    def _grow(self, n_positions: int) -> None:
        while len(self._cos) < n_positions:
            start = len(self._cos)
            angles = np.arange(start, start + _CHUNK, dtype=np.float64)[:, None] * self._frequencies
            cos, sin = np.cos(angles) * self._magnitude, np.sin(angles) * self._magnitude
            self._cos = torch.cat([self._cos, torch.from_numpy(cos.astype(np.float32))])
            self._sin = torch.cat([self._sin, torch.from_numpy(sin.astype(np.float32))])
