"""Paged K and V in float32: per layer one tensor of blocks."""

from __future__ import annotations

import numpy as np
import torch

from imp_server.backends.base import BLOCK_TOKENS, Int32s, KvSpec
from imp_server.backends.reference.attention import KEY_TILE, Keys
from imp_server.core import ConfigError
from imp_server.models.architecture import Architecture, CacheGroup, Layer

DTYPE = "f32"


def block_bytes(architecture: Architecture, group: CacheGroup) -> int:
    return sum(4 * BLOCK_TOKENS * _width(architecture.layers[i]) for i in group.layers)


def _width(layer: Layer) -> int:
    return layer.n_kv_heads * (layer.head_size + layer.value_head_size)


class KvPools:
    """Owner of the cached keys and values. New memory is zero: what is masked must still be a number."""

    def __init__(self, architecture: Architecture, kv: KvSpec) -> None:
        if kv.dtype != DTYPE:
            raise ConfigError(f"the reference backend caches f32 only, not {kv.dtype}; set kv_cache.dtype=auto")
        self._groups = architecture.cache_groups
        self._k: dict[int, torch.Tensor] = {}
        self._v: dict[int, torch.Tensor] = {}
        for group, n_blocks in zip(architecture.cache_groups, kv.n_blocks, strict=True):
            for index in group.layers:
                layer = architecture.layers[index]
                slots = n_blocks * BLOCK_TOKENS
                self._k[index] = torch.zeros((slots, layer.n_kv_heads, layer.head_size))
                self._v[index] = torch.zeros((slots, layer.n_kv_heads, layer.value_head_size))

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        self._k[layer][slots] = k
        self._v[layer][slots] = v

    def read(self, layer: int, table: Int32s, first: int, stop: int) -> Keys:
        """Positions from the key tile of `first` to `stop`."""
        start = first // KEY_TILE * KEY_TILE
        columns = table[start // BLOCK_TOKENS : -(-stop // BLOCK_TOKENS)]
        slots = _slots(np.maximum(columns, 0))[: stop - start]
        k, v = self._k[layer][slots], self._v[layer][slots]
        if (columns < 0).any():
            # Blocks that the window has left: masked, but 0 times a stranger's infinity would be no number.
            gone = torch.from_numpy(np.repeat(columns < 0, BLOCK_TOKENS)[: stop - start])
            k[gone], v[gone] = 0.0, 0.0
        return Keys(k, v, start)

    def copy(self, group: int, pairs: Int32s) -> None:
        source, target = _slots(pairs[:, 0]), _slots(pairs[:, 1])
        for index in self._groups[group].layers:
            for pool in (self._k[index], self._v[index]):
                pool[target] = pool[source]

    def read_bytes(self, group: int, block_ids: Int32s) -> bytes:
        slots = _slots(block_ids)
        return b"".join(
            pool[index][slots].numpy().tobytes() for index in self._groups[group].layers for pool in (self._k, self._v)
        )

    def write_bytes(self, group: int, block_ids: Int32s, data: bytes) -> None:
        slots = _slots(block_ids)
        floats = torch.from_numpy(np.frombuffer(data, dtype=np.float32).copy())
        at = 0
        for index in self._groups[group].layers:
            for pool in (self._k, self._v):
                shape = (len(slots), *pool[index].shape[1:])
                n = int(np.prod(shape))
                pool[index][slots] = floats[at : at + n].view(shape)
                at += n


def _slots(blocks: Int32s) -> torch.Tensor:
    """Token slots of whole blocks, in order."""
    offsets = np.arange(BLOCK_TOKENS)
    return torch.from_numpy((blocks.astype(np.int64)[:, None] * BLOCK_TOKENS + offsets).reshape(-1))
