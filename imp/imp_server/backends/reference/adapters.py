"""LoRA adapters as torch tensors, and what they add to each row of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import torch

from imp_server.backends.reference.batch import Batch
from imp_server.backends.reference.parts import Added
from imp_server.models.adapters import Adapter


class AdapterTensors:
    """Owner of the loaded ones."""

    def __init__(self) -> None:
        self._loaded: dict[int, dict[str, tuple[torch.Tensor, torch.Tensor, float]]] = {}

    def add(self, adapter: Adapter) -> int:
        """Its slot."""
        slot = next(slot for slot in count(1) if slot not in self._loaded)
        self._loaded[slot] = {
            name: (torch.from_numpy(one.a), torch.from_numpy(one.b), one.scale) for name, one in adapter.items()
        }
        return slot

    def remove(self, slot: int) -> None:
        del self._loaded[slot]

    def of_layer(self, index: int, batch: Batch) -> Mapping[str, Sequence[Added]]:
        """By the names of the layer's matrices. Rows with the same adapters are told in one go."""
        if not any(batch.adapters):
            return {}
        found: dict[str, list[Added]] = {}
        prefix = f"layers.{index}."
        for shares in dict.fromkeys(shares for shares in batch.adapters if shares):
            rows = batch.rows_with(shares)
            for share in shares:
                for name, (a, b, scale) in self._loaded[share.slot].items():
                    if name.startswith(prefix):
                        added = Added(rows, a, b, scale * share.scale)
                        found.setdefault(name.removeprefix(prefix), []).append(added)
        return found
