"""What the layers of a plan point to: packed matrices, small float tensors, tables of rotation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from imp_server.backends.cpu import abi
from imp_server.backends.cpu.pack_cache import PackedWeights
from imp_server.models.adapters import adapted_names
from imp_server.models.architecture import Architecture
from imp_server.models.rotation import Rope
from imp_server.models.shapes import expected_shapes
from imp_server.models.source import ModelSource


def adapter_targets(architecture: Architecture) -> dict[str, int]:
    """Matrix.target of the matrices that adapters may add to."""
    return {name: number for number, name in enumerate(adapted_names(expected_shapes(architecture)), start=1)}


class PlanTensors:
    """Owner of the small float tensors of a plan, and of the list of its ropes."""

    def __init__(self, source: ModelSource, weights: PackedWeights, kv_dtype: str) -> None:
        self._source, self._weights = source, weights
        self._keep: list[npt.NDArray[np.float32]] = []
        self.architecture = source.architecture
        self.ropes: list[Rope] = []
        self.kv_dtype = kv_dtype
        self._targets = adapter_targets(self.architecture)

    def rope(self, rope: Rope | None) -> tuple[int, int, int]:
        """Index of the step's table (-1 = none), dimensions that turn, 1 if neighbours do."""
        if rope is None:
            return -1, 0, 0
        if rope not in self.ropes:
            self.ropes.append(rope)
        return self.ropes.index(rope), rope.dims, int(rope.style == "interleaved")

    def has(self, name: str) -> bool:
        return name in self._weights.shapes

    def matrix(self, name: str) -> abi.Matrix:
        shape = self._weights.shapes[name]
        address = self._weights.address(name)
        place = (shape.format_index, shape.n_out, shape.n_in, shape.n_blocks, self._targets.get(name, 0))
        return abi.Matrix(address, shape.panel_bytes, *place)

    def vector(self, name: str) -> int | None:
        if name not in self._source:
            return None
        return self._kept(self._source.array(name))

    def norm(self, name: str) -> abi.Norm:
        if name not in self._source:
            return abi.Norm(None, None)
        weight = self._source.array(name)
        plus_one = self.architecture.norm.endswith("plus_one")
        return abi.Norm(self._kept(weight + np.float32(1) if plus_one else weight), self.vector(f"{name}.bias"))

    def ones(self, n: int) -> abi.Norm:
        """A norm without weights."""
        return abi.Norm(self._kept(np.ones(n, dtype=np.float32)), None)

    def scaled(self, name: str, factor: float) -> abi.Norm:
        """A norm whose weights are that tensor times a number."""
        return abi.Norm(self._kept(self._source.array(name) * np.float32(factor)), None)

    def _kept(self, values: npt.NDArray[np.float32]) -> int:
        kept = np.zeros(values.size + 16, dtype=np.float32)  # kernels read whole vectors
        kept[: values.size] = values.reshape(-1)
        self._keep.append(kept)
        return int(kept.ctypes.data)
