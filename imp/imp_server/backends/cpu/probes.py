"""What this machine can do at best: the rates beside which a model's speed is judged.

All are measured in the run that they are used in, by as many threads as the work had: another minute of a shared
machine is another machine.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from imp_server.backends.cpu import abi
from imp_server.backends.cpu.errors import check
from imp_server.backends.cpu.packing import PackedShape
from imp_server.models.architecture import Architecture
from imp_server.models.feed_forwards import Experts

Bytes = npt.NDArray[np.uint8]

GROUP_ROWS = 8
"""Rows that the kernels take at once."""
_MATRIX = (32, 512)
"""Of an inner loop's probe: two panels, which the first-level cache holds with their activations."""
_SECONDS = 0.05
"""Of one probe: short enough to be repeated between the turns of a bench."""
_WINDOW = 0.0005
"""Of one look at the clock: the best of them is what the machine can do when nobody takes its core away."""


class ComputeBounds(NamedTuple):
    """Of a prefill: operations per token; per second what its layouts and what dot products allow at best."""

    ops_per_token: int
    ceiling: float
    peak: float


class Probes:
    """Rates of `n_threads` threads at once, in the instruction set `isa` (None: the one in use)."""

    def __init__(self, n_threads: int, isa: str | None = None) -> None:
        self._library = abi.library(isa)
        self._pool = ThreadPoolExecutor(n_threads)
        self._n_threads = n_threads

    def read_bandwidth(self, buffer: Bytes) -> float:
        """Bytes per second, each thread reading a part of `buffer` (at a multiple of 64); the best way there is."""
        part = len(buffer) // self._n_threads // 64 * 64
        starts = [buffer.ctypes.data + i * part for i in range(self._n_threads)]
        return max(self._read(loop, starts, part) for loop in range(self._library.imp_cpu_n_read_loops()))

    def _read(self, loop: int, starts: list[int], n_bytes: int) -> float:
        return (
            n_bytes * self._n_threads / self._timed(lambda i: self._library.imp_cpu_read_loop(loop, starts[i], n_bytes))
        )

    def dot_peak(self) -> float:
        """Operations per second (a multiplication and an addition are two) of 8-bit dot products on registers."""
        ops = 2 * int(self._library.imp_cpu_dot_registers(1, ctypes.c_int32(1)))
        return self._rate(ops, lambda n: self._library.imp_cpu_dot_registers(n, ctypes.c_int32(1)))

    def ceiling(self, type_name: str) -> float:
        """Operations per second of a layout's inner loop for 8 rows, on numbers in the first-level cache."""
        shape = PackedShape(type_name, *_MATRIX)
        data, x = _aligned(shape.nbytes), np.ones((GROUP_ROWS, shape.n_in), dtype=np.float32)
        matrix = abi.Matrix(
            data.ctypes.data, shape.panel_bytes, shape.format_index, shape.n_out, shape.n_in, shape.n_blocks
        )

        def rounds(n: int) -> None:
            code = self._library.imp_cpu_repeat(ctypes.byref(matrix), x.ctypes.data, GROUP_ROWS, n)
            check(code, "a layout's ceiling can't be measured")

        return self._rate(2 * GROUP_ROWS * shape.n_out * shape.n_in, rounds)

    def bounds(self, shapes: Mapping[str, PackedShape], architecture: Architecture) -> ComputeBounds:
        ops = ops_by_layout(shapes, architecture)
        return ComputeBounds(sum(ops.values()), mixed_ceiling(ops, self.ceiling), self.dot_peak())

    def _rate(self, ops: int, rounds: Callable[[int], object]) -> float:
        """Operations per second of all threads at once, each by the best of its windows; a round is `ops`."""
        return sum(self._pool.map(lambda _thread: ops * _rounds_per_second(rounds), range(self._n_threads)))

    def _timed(self, work: Callable[[int], object]) -> float:
        began = time.perf_counter()
        list(self._pool.map(work, range(self._n_threads)))
        return time.perf_counter() - began


def _rounds_per_second(rounds: Callable[[int], object]) -> float:
    n, best, until = 1, 0.0, time.perf_counter() + _SECONDS
    while True:
        began = time.perf_counter()
        rounds(n)
        now = time.perf_counter()
        best = max(best, n / (now - began))
        if now > until:
            return best
        if now - began < _WINDOW:
            n *= 2


def ops_by_layout(shapes: Mapping[str, PackedShape], architecture: Architecture) -> dict[str, int]:
    """Operations per token of a prefill's matrix products, by layout: all but the head, of experts the chosen ones."""
    ops: dict[str, int] = {}
    for name, shape in shapes.items():
        if not name.startswith("layers."):
            continue
        index, part = int(name.split(".")[1]), name.split(".")[2]
        feed_forward = architecture.layers[index].feed_forward
        n = 2 * shape.n_out * shape.n_in
        if isinstance(feed_forward, Experts) and part.startswith("experts_"):
            n = n * feed_forward.top_k // feed_forward.count
        ops[shape.type] = ops.get(shape.type, 0) + n
    return ops


def mixed_ceiling(ops_of: Mapping[str, int], ceiling_of: Callable[[str], float]) -> float:
    """Operations per second of work that is made of several layouts, each at its ceiling. `ops_of`: by layout."""
    return sum(ops_of.values()) / sum(ops / ceiling_of(name) for name, ops in ops_of.items())


def _aligned(n_bytes: int) -> Bytes:
    room = np.zeros(n_bytes + 8192, dtype=np.uint8)
    return room[-room.ctypes.data % 64 :][:n_bytes]
