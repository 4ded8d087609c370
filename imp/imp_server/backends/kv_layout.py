"""What a block of a cache group looks like: the one place, for every backend, that computes its bytes.

A block is the data of the group's layers one after the other; what a layer keeps (Mixer.cached) lies in it by heads:
the numbers of each part, then the scales of each part, where the element type has any. Kernels are told the offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.core import ConfigError
from imp_server.models.architecture import Architecture, CacheGroup
from imp_server.models.mixers import CachedPart


@dataclass(frozen=True, slots=True)
class ElementType:
    """How a vector of numbers is kept."""

    bits: int
    """Of a number; vectors of less than a byte each have an even number of them."""
    scale_bytes: int = 0
    """Of a scale; 0 = there are none."""
    group: int = 0
    """Neighbours that share a scale, the last group shorter; 0 = a whole vector does."""

    def value_bytes(self, size: int) -> int:
        """Of a vector."""
        return size * self.bits // 8

    def scales_bytes(self, size: int) -> int:
        """Of all scales of a vector."""
        return self.scale_bytes * (-(-size // self.group) if self.group else 1)


ELEMENT_TYPES = {
    "f32": ElementType(32),
    "bf16": ElementType(16),
    "fp8": ElementType(8),
    "int8": ElementType(8, 4),
    "int4": ElementType(4, 2, 32),
    "nvfp4": ElementType(4, 1, 16),
}


@dataclass(frozen=True, slots=True)
class PartPlace:
    """Bytes, from the beginning of the layer's data in a block. `scales` is -1 where there are none."""

    part: CachedPart
    values: int
    scales: int
    stride: int
    """From one head to the next."""


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """One layer's data in a block of its group."""

    offset: int
    n_bytes: int
    parts: tuple[PartPlace, ...]

    def __getitem__(self, name: str) -> PartPlace:
        return next(place for place in self.parts if place.part.name == name)


class KvLayout:
    """The blocks of one cache group; of a group of kind `state`, its slots."""

    def __init__(self, architecture: Architecture, group: CacheGroup, dtype: str) -> None:
        """Raises ConfigError for an element type that isn't known."""
        if dtype not in ELEMENT_TYPES:
            raise ConfigError(f"kv_cache.dtype={dtype}: known are {', '.join(ELEMENT_TYPES)}")
        self.n_vectors = 1 if group.kind == "state" else BLOCK_TOKENS
        """Vectors of a part that a head has in a block."""
        self._places: dict[int, LayerPlace] = {}
        at = 0
        for index in group.layers:
            place = layer_place(architecture.layers[index].mixer.cached(), ELEMENT_TYPES[dtype], self.n_vectors, at)
            self._places[index] = place
            at += place.n_bytes
        self.block_bytes = at

    def __getitem__(self, layer: int) -> LayerPlace:
        return self._places[layer]


def layer_place(parts: tuple[CachedPart, ...], element: ElementType, n_vectors: int, offset: int = 0) -> LayerPlace:
    """Parts with the same number of heads lie together, head by head; others follow."""
    places: list[PartPlace] = []
    begin = 0
    for heads in dict.fromkeys(part.heads for part in parts):
        together = [part for part in parts if part.heads == heads]
        sizes = [n_vectors * element.value_bytes(part.size) for part in together]
        scales = [n_vectors * element.scales_bytes(part.size) for part in together]
        stride = sum(sizes) + sum(scales)
        for i, part in enumerate(together):
            scales_at = begin + sum(sizes) + sum(scales[:i]) if scales[i] else -1
            places.append(PartPlace(part, begin + sum(sizes[:i]), scales_at, stride))
        begin += heads * stride
    return LayerPlace(offset, begin, tuple(places))


def kv_layouts(architecture: Architecture, dtype: str) -> tuple[KvLayout, ...]:
    """One for each cache group."""
    return tuple(KvLayout(architecture, group, dtype) for group in architecture.cache_groups)


def block_bytes(architecture: Architecture, dtype: str) -> tuple[int, ...]:
    """Bytes of one block (or slot) per cache group."""
    return tuple(layout.block_bytes for layout in kv_layouts(architecture, dtype))
