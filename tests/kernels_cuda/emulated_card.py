"""A card for tests: the CPU, with kernels run by the emulation, and faults that are planted on demand.

`card` and its kin are named to another process by `module:function` (CardOpener).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from imp_server.backends.cuda.card import Card, CardOpener
from imp_server.backends.cuda.device import CpuDevice, GraphUse
from imp_server.backends.cuda.launching import Argument, KernelSource
from imp_server.backends.cuda.proof.cases import RectangleShape

from tests.kernels_cuda.emulated import Emulator

N_PROCESSORS = 2
FEW_SHAPES = (RectangleShape(1, 1, 8), RectangleShape(2, 2, 8))


def few_shapes(n_columns: int) -> Sequence[RectangleShape]:
    return FEW_SHAPES


def card(index: int = 0, graphs: GraphUse = "never") -> Card:
    return Card(CpuDevice(), Emulator(order="lowest"), "emulated card", N_PROCESSORS)


def planted(index: int, graphs: GraphUse) -> Card:
    """`add_norm` kills its process, `add` never returns, `norm` is a little wrong, `embed` other each time."""
    return Card(CpuDevice(), Planted(), "emulated card with faults", N_PROCESSORS)


def opener(function: Callable[..., Card]) -> CardOpener:
    return CardOpener(f"{__name__}:{function.__name__}", 0)


class Planted(Emulator):
    def __init__(self) -> None:
        super().__init__(order="lowest")

    def launch(
        self,
        source: KernelSource,
        entry: str,
        grid: tuple[int, int, int],
        n_threads: int,
        args: Sequence[Argument],
        shared_bytes: int = 0,
    ) -> None:
        if entry == "add_norm":
            os.kill(os.getpid(), signal.SIGSEGV)
        if entry == "add_rows":
            time.sleep(600)
        super().launch(source, entry, grid, n_threads, args, shared_bytes)
        out: Any = args[{"norm_rows": 6, "embed": -1}.get(entry, 0)]
        if entry == "norm_rows":
            out[0, -1] *= 1.001
        if entry == "embed":
            out[0, 0] += float(self.n_launches)
