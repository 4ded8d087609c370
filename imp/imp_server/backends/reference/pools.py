"""What layers keep, paged, in float32: one tensor of slots for each part of each layer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from imp_server.backends.base import BLOCK_TOKENS, Int32s, KvSpec
from imp_server.backends.kv_layout import kv_layouts
from imp_server.backends.reference.attention import KEY_TILE
from imp_server.core import ConfigError
from imp_server.models.architecture import Architecture

DTYPE = "f32"


class KeptParts(NamedTuple):
    """The parts [n, heads, size] of positions [first, first + n); first % 64 == 0."""

    parts: dict[str, torch.Tensor]
    first: int


class Pools:
    """Owner of what is cached. New memory is zero: what is masked must still be a number."""

    def __init__(self, architecture: Architecture, kv: KvSpec) -> None:
        if kv.dtype != DTYPE:
            raise ConfigError(f"the reference backend caches f32 only, not {kv.dtype}; set kv_cache.dtype=auto")
        self._groups = architecture.cache_groups
        self._parts: dict[int, dict[str, torch.Tensor]] = {}
        layouts = kv_layouts(architecture, kv.dtype)
        for group, layout, n_blocks in zip(architecture.cache_groups, layouts, kv.n_blocks, strict=True):
            for index in group.layers:
                parts = [place.part for place in layout[index].parts]
                n = n_blocks * layout.n_vectors
                self._parts[index] = {part.name: torch.zeros((n, part.heads, part.size)) for part in parts}

    def of_layer(self, index: int) -> dict[str, torch.Tensor]:
        """Name of the part -> [slots, heads, size]."""
        return self._parts[index]

    def read(self, layer: int, table: Int32s, first: int, stop: int) -> KeptParts:
        """Positions from the key tile of `first` to `stop`."""
        start = first // KEY_TILE * KEY_TILE
        columns = table[start // BLOCK_TOKENS : -(-stop // BLOCK_TOKENS)]
        slots = _slots(np.maximum(columns, 0))[: stop - start]
        found = {name: pool[slots] for name, pool in self._parts[layer].items()}
        if (columns < 0).any():
            # Blocks that the window has left: masked, but 0 times a stranger's infinity would be no number.
            gone = torch.from_numpy(np.repeat(columns < 0, BLOCK_TOKENS)[: stop - start])
            for part in found.values():
                part[gone] = 0.0
        return KeptParts(found, start)

    def copy(self, group: int, pairs: Int32s) -> None:
        source, target = _slots(pairs[:, 0]), _slots(pairs[:, 1])
        for pool in self._of_group(group):
            pool[target] = pool[source]

    def read_bytes(self, group: int, block_ids: Int32s) -> bytes:
        slots = _slots(block_ids)
        return b"".join(pool[slots].numpy().tobytes() for pool in self._of_group(group))

    def write_bytes(self, group: int, block_ids: Int32s, data: bytes) -> None:
        slots = _slots(block_ids)
        floats = torch.from_numpy(np.frombuffer(data, dtype=np.float32).copy())
        at = 0
        for pool in self._of_group(group):
            shape = (len(slots), *pool.shape[1:])
            n = int(np.prod(shape))
            pool[slots] = floats[at : at + n].view(shape)
            at += n

    def _of_group(self, group: int) -> list[torch.Tensor]:
        return [pool for index in self._groups[group].layers for pool in self._parts[index].values()]


def _slots(blocks: Int32s) -> torch.Tensor:
    """Token slots of whole blocks, in order."""
    offsets = np.arange(BLOCK_TOKENS)
    return torch.from_numpy((blocks.astype(np.int64)[:, None] * BLOCK_TOKENS + offsets).reshape(-1))
