"""Builds kernels/cuda against kernels/emulation with the system's compiler, and launches them on tensors of the CPU."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from imp_server.backends.cuda.launching import Argument, KernelFault, KernelSource, argument_bits

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels" / "cuda"
EMULATION = ROOT / "kernels" / "emulation"
BUILD = ROOT / "build" / "emulation"
FLAGS = ("-std=c++17", "-fPIC", "-DIMP_EMULATION", "-ffp-contract=off", "-Wall", "-Wno-sign-compare")
POISON = "-ftrivial-auto-var-init=pattern"
"""Variables that nobody set hold nonsense: arrays, and without optimisation scalars, too. Compilers that don't know it
(before GCC 12) leave them as they are."""
ORDERS = ("lowest", "highest", "random")


class _Rules(ctypes.Structure):
    _fields_ = [
        ("order", ctypes.c_int32),
        ("sums", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("shared_limit", ctypes.c_uint32),
        ("arch", ctypes.c_int32),
    ]


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("is_writable", ctypes.c_int32),
        ("name", ctypes.c_char_p),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("n_threads", ctypes.c_uint32),
        ("dynamic_shared", ctypes.c_uint32),
        ("is_dependent", ctypes.c_int32),
        ("args", ctypes.POINTER(ctypes.c_uint64)),
        ("n_args", ctypes.c_int32),
    ]


def compiler() -> list[str] | None:
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    return shlex.split(found) if found else None


@cache
def _flags() -> tuple[str, ...]:
    command = [*(compiler() or []), POISON, "-x", "c++", "-fsyntax-only", os.devnull]
    return (*FLAGS, POISON) if subprocess.run(command, capture_output=True).returncode == 0 else FLAGS


def _compiled(unit: Path, options: Sequence[str], inputs: Sequence[Path]) -> Path:
    """The object of a unit, made unless the same one is there."""
    command = [*(compiler() or []), *_flags(), *options, f"-I{KERNELS}", "-include", str(KERNELS / "device.h")]
    digest = hashlib.sha256(repr(command).encode())
    for path in (unit, *inputs):
        digest.update(path.read_bytes())
    target = BUILD / f"{unit.stem}-{digest.hexdigest()[:20]}.o"
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, "-x", "c++", "-c", str(unit), "-o", str(partial)], check=True)
        partial.replace(target)
    return target


@cache
def library(unit: Path, options: tuple[str, ...]) -> ctypes.CDLL:
    """Kernels of one file, with the machine that runs them."""
    BUILD.mkdir(parents=True, exist_ok=True)
    headers = sorted([*KERNELS.glob("*.h"), *EMULATION.glob("*.h")])
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        objects = [_compiled(EMULATION / "machine.cpp", ("-O2",), headers), _compiled(unit, options, headers)]
        target = objects[1].with_suffix(f".{objects[0].stem[-8:]}.so")
        if not target.exists():
            partial = target.with_suffix(f".{os.getpid()}")
            subprocess.run([*(compiler() or []), "-shared", *map(str, objects), "-o", str(partial)], check=True)
            partial.replace(target)
    return ctypes.CDLL(str(target))


SHARED_LIMITS = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99, 121: 99}
"""KiB of shared memory that a block may have, by architecture."""


One = tuple[str, tuple[int, int, int], int, Sequence[Argument], int]
"""A launch: entry, grid, threads, arguments, bytes of dynamic shared memory."""


@dataclass
class Emulator:
    """A `Launcher` that runs each launch at once. Raises KernelFault."""

    order: Literal["lowest", "highest", "random"] = "random"
    seed: int = 0
    sums: Literal["exact", "truncated"] = "exact"
    arch: int = 86
    folder: Path = KERNELS
    level: Literal["-O0", "-O1"] = "-O1"
    """Of the compiler's optimisation."""
    n_launches: int = 0

    def prepare(self, sources: Sequence[KernelSource]) -> None:
        return

    def load(self, source: KernelSource) -> None:
        library(self.folder / source.file, (self.level, *source.options))

    def launch(
        self,
        source: KernelSource,
        entry: str,
        grid: tuple[int, int, int],
        n_threads: int,
        args: Sequence[Argument],
        shared_bytes: int = 0,
    ) -> None:
        self.run(source, [(entry, grid, n_threads, args, shared_bytes)])

    def run(
        self,
        source: KernelSource,
        launches: Sequence[One],
        dependent: bool = False,
        read_only: Sequence[torch.Tensor] = (),
    ) -> None:
        """Launches one behind the other; `dependent`: each may begin before what the one before it writes. `read_only`
        tensors must not change."""
        self.n_launches += len(launches)
        built = library(self.folder / source.file, (self.level, *source.options))
        tensors = {a.data_ptr(): a for launch in launches for a in launch[3] if isinstance(a, torch.Tensor)}
        buffers = (_Buffer * len(tensors))(
            *(
                _Buffer(at, t.untyped_storage().nbytes() - t.storage_offset() * t.element_size(),
                        all(t is not r for r in read_only), f"argument {i}".encode())
                for i, (at, t) in enumerate(tensors.items())
            )
        )  # fmt: skip
        native = (_Launch * len(launches))()
        kept = []
        for made, (entry, grid, n_threads, args, shared_bytes) in zip(native, launches):
            bits = (ctypes.c_uint64 * len(args))(*map(argument_bits, args))
            kept.append(bits)
            made.kernel, made.grid, made.n_threads = entry.encode(), (ctypes.c_uint32 * 3)(*grid), n_threads
            made.dynamic_shared, made.is_dependent = shared_bytes, dependent
            made.args, made.n_args = bits, len(bits)
        rules = _Rules(
            ORDERS.index(self.order), self.sums == "truncated", self.seed, SHARED_LIMITS[self.arch] * 1024, self.arch
        )
        message = ctypes.create_string_buffer(2000)
        wrong = built.emu_run(native, len(native), buffers, len(buffers), ctypes.byref(rules), message, len(message))
        if wrong:
            raise KernelFault(message.value.decode())
