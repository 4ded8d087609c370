"""LoRA adapters as the kernels read them (kernels/cpu/engine/adapters.h), and which rows of a step have which."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from imp_server.backends.base import StepRow
from imp_server.backends.cpu import abi
from imp_server.models.adapters import Adapter, Addition

_LANES, _UNIT = 16, 32
Floats = npt.NDArray[np.float32]


class PackedAdapter:
    """Owner of one adapter's numbers. `terms`: by the target of a matrix."""

    def __init__(self, adapter: Adapter, targets: Mapping[str, int]) -> None:
        self.terms = (abi.AdapterTerm * (1 + len(targets)))()
        self._keep: list[Floats] = []
        for name, addition in adapter.items():
            term = self.terms[targets[name]]
            term.a, term.b = self._kept(inward(addition)), self._kept(outward(addition))
            term.rank, term.scale = len(addition.a), addition.scale

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in self._keep)

    def _kept(self, values: Floats) -> int:
        self._keep.append(values)
        return int(values.ctypes.data)


def inward(addition: Addition) -> Floats:
    """a [rank, in], with zeros up to a multiple of 16 columns."""
    return np.ascontiguousarray(np.pad(addition.a, ((0, 0), (0, -addition.a.shape[1] % _LANES))))


def outward(addition: Addition) -> Floats:
    """b [out, rank] by units of 32 outputs: [units, rank, 32]."""
    b = np.pad(addition.b, ((0, -len(addition.b) % _UNIT), (0, 0)))
    return np.ascontiguousarray(b.reshape(-1, _UNIT, b.shape[1]).transpose(0, 2, 1))


class PackedAdapters:
    """Owner of the loaded ones, by slot."""

    def __init__(self) -> None:
        self._loaded: dict[int, PackedAdapter] = {}

    def add(self, adapter: PackedAdapter) -> int:
        """Its slot."""
        slot = next(slot for slot in count(1) if slot not in self._loaded)
        self._loaded[slot] = adapter
        return slot

    def remove(self, slot: int) -> int:
        """The bytes that it took. No step under way names it."""
        return self._loaded.pop(slot).nbytes

    def plan(self, plan: abi.StepPlan, rows: Sequence[StepRow]) -> tuple[object, ...]:
        """Tells the kernels which rows have which; what is given lives as long as the step."""
        if not any(row.adapters for row in rows):
            plan.adapter_starts = plan.adapters = None
            return ()
        shares = [share for row in rows for share in row.adapters]
        starts = np.cumsum([0, *(len(row.adapters) for row in rows)], dtype=np.int32)
        own = (abi.AdapterShare * len(shares))()
        for place, share in zip(own, shares, strict=True):
            place.terms, place.scale = ctypes.addressof(self._loaded[share.slot].terms), share.scale
        plan.adapter_starts, plan.adapters = starts.ctypes.data, ctypes.addressof(own)
        return starts, own
