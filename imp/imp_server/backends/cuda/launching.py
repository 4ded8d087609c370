"""What launches a kernel: on a card (over compile.py) or, in tests, in the emulation of kernels/emulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

Argument = torch.Tensor | int | float | np.int64 | np.uint64 | None
"""A tensor stands for its address, None for no address, an int for an int32, a float for a float32."""


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A file of kernels/cuda and the macros that make an instantiation of it."""

    file: str
    defines: tuple[tuple[str, int], ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        return tuple(f"-D{name}={value}" for name, value in self.defines)


class Launcher(Protocol):
    """Enqueues launches, one behind the other, on the current stream."""

    def launch(
        self,
        source: KernelSource,
        entry: str,
        grid: tuple[int, int, int],
        n_threads: int,
        args: Sequence[Argument],
        shared_bytes: int = 0,
    ) -> None:
        """`shared_bytes`: dynamic shared memory of a block."""
        ...


def argument_bits(argument: Argument) -> int:
    """The 8 bytes that hold an argument, its own bytes first."""
    if argument is None:
        return 0
    if isinstance(argument, torch.Tensor):
        return argument.data_ptr()
    if isinstance(argument, np.int64 | np.uint64):
        return int(argument) & 0xFFFFFFFFFFFFFFFF
    value = np.float32(argument) if isinstance(argument, float) else np.int32(argument)
    return int(value.view(np.uint32))
