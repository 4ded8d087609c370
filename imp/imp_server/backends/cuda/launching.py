"""What launches a kernel: on a card (cupy_launcher.py) or, in tests, in the emulation of kernels/emulation."""

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


class KernelFault(Exception):
    """What a kernel did wrong, in the words of what ran it."""


class Launcher(Protocol):
    """Enqueues launches, one behind the other, on the current stream."""

    def prepare(self, sources: Sequence[KernelSource]) -> None:
        """Compile them side by side, as far as that goes; what fails says so when it is loaded."""
        ...

    def load(self, source: KernelSource) -> None:
        """Compile it, unless that was done; a launch does so otherwise. Raises DeviceError."""
        ...

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


def argument_value(argument: Argument) -> np.generic:
    """What a kernel is handed for an argument, in the size that it takes."""
    if argument is None:
        return np.uint64(0)
    if isinstance(argument, torch.Tensor):
        return np.uint64(argument.data_ptr())
    if isinstance(argument, np.int64 | np.uint64):
        return argument
    return np.float32(argument) if isinstance(argument, float) else np.int32(argument)


def argument_bits(argument: Argument) -> int:
    """The 8 bytes that hold an argument, its own bytes first."""
    value = argument_value(argument)
    return int(value.view(np.uint32 if value.nbytes == 4 else np.uint64))
