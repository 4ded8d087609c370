"""Device memory that steps of one shape share: many small arrays in one, so that one copy brings them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Tensor = torch.Tensor
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PackedArrays:
    """Arrays of 32-bit numbers, one after the other. `shapes`: in order; `floats`: those that are float32."""

    shapes: Mapping[str, tuple[int, ...]]
    floats: frozenset[str] = frozenset()
    places: dict[str, slice] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        at = 0
        for name, shape in self.shapes.items():
            n = int(np.prod(shape))
            self.places[name] = slice(at, at + n)
            at += -(-n // 4) * 4

    @property
    def size(self) -> int:
        """In numbers."""
        return max((-(-place.stop // 4) * 4 for place in self.places.values()), default=0)

    def tensors(self, whole: Tensor) -> dict[str, Tensor]:
        """Views of an int32 tensor of `size`."""
        found = {}
        for name, place in self.places.items():
            own = whole[place]
            found[name] = (own.view(torch.float32) if name in self.floats else own).view(self.shapes[name])
        return found

    def arrays(self, whole: Int32s) -> dict[str, npt.NDArray[Any]]:
        """Views of an int32 array of `size`."""
        found = {}
        for name, place in self.places.items():
            own = whole[place]
            found[name] = (own.view(np.float32) if name in self.floats else own).reshape(self.shapes[name])
        return found


def power_of_two(n: int) -> int:
    """The next one that isn't below n; 0 for 0."""
    return 0 if n <= 0 else 1 << (n - 1).bit_length()
