"""Rotary positions: frequencies under every scaling, and their application in both styles."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from imp_server.models.architecture import Rope, RopeScaling

_CHUNK = 1024


def frequencies(rope: Rope) -> NDArray[np.float64]:
    """Radians per position for each pair of dimensions [dims / 2]."""
    n_pairs = rope.dims // 2
    plain = rope.base ** (-np.arange(n_pairs, dtype=np.float64) * 2 / rope.dims)
    scaling = rope.scaling
    if scaling.frequency_factors:
        plain = plain / np.asarray(scaling.frequency_factors, dtype=np.float64)
    elif scaling.kind == "llama3":
        plain = _llama3(plain, scaling)
    if scaling.kind == "linear":
        return np.asarray(plain / scaling.factor)
    if scaling.kind == "yarn":
        return _yarn(plain, rope)
    return np.asarray(plain)


def magnitude(scaling: RopeScaling) -> float:
    """What sines and cosines are multiplied with; yarn's own 0.1 ln(factor) + 1 comes on top of the model's."""
    if scaling.kind == "yarn" and scaling.factor > 1:
        return scaling.attention_factor * (0.1 * math.log(scaling.factor) + 1.0)
    return scaling.attention_factor


def _llama3(plain: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    """Long wavelengths are stretched, short ones stay, between them a blend."""
    turns = scaling.original_context * plain / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return np.asarray((1 - blend) * plain / scaling.factor + blend * plain)


def _yarn(plain: NDArray[np.float64], rope: Rope) -> NDArray[np.float64]:
    scaling = rope.scaling

    def pair_that_turns(n_turns: float) -> float:
        return rope.dims * math.log(scaling.original_context / (n_turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low = max(0, math.floor(pair_that_turns(scaling.beta_fast)))
    high = min(rope.dims - 1, math.ceil(pair_that_turns(scaling.beta_slow)))
    ramp = np.clip((np.arange(len(plain)) - low) / max(high - low, 0.001), 0.0, 1.0)
    return np.asarray(plain / scaling.factor * ramp + plain * (1 - ramp))


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
