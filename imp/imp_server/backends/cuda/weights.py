"""A model's tensors on the device: packed matrices, small float vectors, tables of rotation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from imp_server.backends.cuda.operations import NormForm, PackedMatrix, Rotation
from imp_server.backends.cuda.packing import can_stack, matrix_bytes, pack, stacked
from imp_server.models import rotation
from imp_server.models.architecture import Architecture
from imp_server.models.rotation import Rope
from imp_server.models.source import ModelSource

Tensor = torch.Tensor


class DeviceWeights:
    """Owner of what was loaded. Stacks of matrices take the place of their parts."""

    def __init__(self, source: ModelSource, device: torch.device) -> None:
        self.architecture: Architecture = source.architecture
        self.device = device
        self._source = source
        self._matrices: dict[str, PackedMatrix] = {}
        self._vectors: dict[str, Tensor] = {}
        self._stacks: dict[tuple[str, ...], tuple[PackedMatrix, ...]] = {}

    def load(self, names: Sequence[str], on_progress: Callable[[float], None] | None = None) -> None:
        """Matrices, by name; other tensors are read when they are asked for."""
        for done, name in enumerate(names):
            self._matrices[name] = self._packed(name)
            if on_progress:
                on_progress((done + 1) / len(names))

    @property
    def nbytes(self) -> int:
        matrices = [*self._matrices.values(), *(each for stack in self._stacks.values() for each in stack)]
        vectors = sum(vector.numel() * 4 for vector in self._vectors.values())
        return sum(map(matrix_bytes, matrices)) + vectors

    def has(self, name: str) -> bool:
        return name in self._source

    def matrix(self, name: str) -> PackedMatrix:
        if name not in self._matrices:
            self._matrices[name] = self._packed(name)
        return self._matrices[name]

    def rows(self, name: str) -> int:
        """Rows of a tensor as a matrix."""
        return math.prod(self._shape(name)[:-1])

    def _packed(self, name: str) -> PackedMatrix:
        return pack(self._source.raw(name), self.device)

    def _read(self, name: str) -> Tensor:
        return torch.from_numpy(self._source.array(name).copy()).to(self.device)

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._source.raw(name).shape

    def stack(self, names: Sequence[str]) -> tuple[PackedMatrix, ...]:
        """The matrices of `names` as few ones, rows in order: neighbours of one format are one."""
        key = tuple(names)
        if key not in self._stacks:
            runs: list[list[PackedMatrix]] = []
            for name in names:
                own = self._matrices.pop(name)
                if runs and can_stack([runs[-1][0], own]):
                    runs[-1].append(own)
                else:
                    runs.append([own])
            self._stacks[key] = tuple(stacked(run) for run in runs)
        return self._stacks[key]

    def vector(self, name: str) -> Tensor | None:
        """float32 in its shape; None if there is none."""
        if not self.has(name):
            return None
        if name not in self._vectors:
            self._vectors[name] = self._read(name)
        return self._vectors[name]

    def required(self, name: str) -> Tensor:
        vector = self.vector(name)
        if vector is None:
            raise KeyError(name)
        return vector

    def norm(self, name: str, eps: float = 0.0) -> NormForm:
        """`eps` 0 = the model's."""
        weight = self.required(name)
        if self.architecture.norm.endswith("plus_one"):
            weight = weight + 1.0
        return self._norm(weight, self.vector(f"{name}.bias"), eps)

    def bare_norm(self) -> NormForm:
        return self._norm(None, None, 0.0)

    def _norm(self, weight: Tensor | None, bias: Tensor | None, eps: float) -> NormForm:
        return NormForm(eps or self.architecture.norm_eps, weight, bias, self.architecture.norm.startswith("layer"))


class Rotations:
    """Owner of the tables of a model's ropes, as long as the longest text."""

    def __init__(self, n_positions: int, device: torch.device) -> None:
        self._n_positions, self._device = n_positions, device
        self._made: dict[Rope, Rotation] = {}

    def of(self, rope: Rope) -> Rotation:
        if rope not in self._made:
            table = torch.from_numpy(rotation.table(rope, self._n_positions)).to(self._device)
            self._made[rope] = Rotation(table, rope.dims, rope.style == "interleaved")
        return self._made[rope]

    @staticmethod
    def bytes_of(ropes: Sequence[Rope], n_positions: int) -> int:
        return sum(4 * rope.dims * n_positions for rope in ropes)
