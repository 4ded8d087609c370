"""Rotary positions: their description, and its frequencies, context extension included, the same for every backend."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from imp_server.core import UnsupportedModel

Float64s = npt.NDArray[np.float64]
RopeStyle = Literal["neox", "interleaved"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Context extension; the fields that a kind doesn't use stay at their defaults."""

    kind: Literal["none", "linear", "yarn", "llama3", "longrope"] = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    truncate: bool = True
    """yarn: the pairs between which it blends are whole ones."""
    frequency_factors: tuple[float, ...] = ()
    """Per pair of dimensions, dividing the frequency (GGUF tensor `rope_freqs.weight`)."""


@dataclass(frozen=True, slots=True)
class Rope:
    style: RopeStyle = "neox"
    base: float = 10000.0
    dims: int = 0
    """Leading dimensions of a head that rotate; the rest pass through."""
    scaling: RopeScaling = field(default_factory=RopeScaling)


def frequencies(rope: Rope) -> Float64s:
    """Radians per position of each of the dims / 2 pairs.

    Kinds as their papers and checkpoints define them; `llama3` with the factors of a GGUF file, else by its
    thresholds; `yarn` after Peng et al., section 3. Raises UnsupportedModel for longrope without factors.
    """
    scaling = rope.scaling
    plain = rope.base ** -(np.arange(0, rope.dims, 2, dtype=np.float64) / rope.dims)
    if scaling.frequency_factors:
        plain = plain / np.asarray(scaling.frequency_factors, dtype=np.float64)
    elif scaling.kind == "llama3":
        plain = _llama3(plain, scaling)
    elif scaling.kind == "longrope":
        raise UnsupportedModel("rope scaling longrope needs its frequency factors, and the file has none")
    if scaling.kind == "linear":
        plain = plain / scaling.factor
    return _yarn(plain, rope) if scaling.kind == "yarn" else plain


def magnitude(scaling: RopeScaling) -> float:
    """What cosines and sines are multiplied with; yarn's own comes on top of the model's."""
    return scaling.attention_factor * (yarn_magnitude(scaling.factor) if scaling.kind == "yarn" else 1.0)


def yarn_magnitude(factor: float, share: float = 1.0) -> float:
    """What yarn multiplies cosines and sines with for a context `factor` times as long."""
    return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3(plain: Float64s, scaling: RopeScaling) -> Float64s:
    """Long wavelengths are stretched, short ones stay, between them a blend."""
    turns = scaling.original_context * plain / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return np.asarray(plain * (blend + (1 - blend) / scaling.factor), dtype=np.float64)


def _yarn(plain: Float64s, rope: Rope) -> Float64s:
    scaling = rope.scaling

    def pair_that_turns(n_turns: float) -> float:
        return rope.dims * math.log(scaling.original_context / (n_turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dims - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / max(high - low, 0.001), 0.0, 1.0)
    return np.asarray(plain / scaling.factor * ramp + plain * (1 - ramp), dtype=np.float64)


def table(rope: Rope, n_positions: int) -> npt.NDArray[np.float32]:
    """[n_positions, dims]: the cosines of a position, then its sines; angles in float64."""
    angles = np.arange(n_positions, dtype=np.float64)[:, None] * frequencies(rope)
    factor = magnitude(rope.scaling)
    return np.concatenate([np.cos(angles) * factor, np.sin(angles) * factor], axis=1).astype(np.float32)
