"""Pages of memory: huge ones for the weights, none for what was read once.

In pages of 4 KiB a forward, which reads all weights once, spends a fifth of its time on translating addresses. Where
the page cache holds a file in large folios (Linux 6, ext4, xfs), a mapping of it is huge already, if it was asked to be
before the first touch. Elsewhere anonymous memory does it, at the price of a copy that the system can't evict.
"""

from __future__ import annotations

import logging
import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from imp_server.backends.machine import available_bytes

Bytes = npt.NDArray[np.uint8]
log = logging.getLogger(__name__)

HUGE = 2 << 20
"""Bytes of a huge page on x86-64."""
_SPARE = 1.25
"""Free memory must exceed a copy by this factor."""
_SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def are_offered(switch: Path = _SWITCH) -> bool:
    try:
        return "[never]" not in switch.read_text()
    except OSError:
        return False


def ask_for(mapped: mmap.mmap) -> None:
    """Ask for huge pages behind a mapping that nobody has touched. Never fails: it is a wish."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapped.madvise(mmap.MADV_HUGEPAGE)
        except OSError as error:  # a kernel without them
            log.debug("no huge pages: %s", error)


def room(n_bytes: int) -> Bytes:
    """Private zeroed memory, huge where the system can, at a multiple of HUGE."""
    mapped = mmap.mmap(-1, n_bytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    ask_for(mapped)
    whole = np.frombuffer(mapped, dtype=np.uint8)
    first = -int(whole.ctypes.data) % HUGE
    return whole[first : first + n_bytes]


def backed_bytes(buffer: Bytes, maps: Path = Path("/proc/self/smaps")) -> int:
    """How much of the mapping that holds the buffer's first byte huge pages back; 0 where the system doesn't say."""
    address, inside, found = int(buffer.ctypes.data), False, 0
    try:
        with maps.open() as lines:
            for line in lines:
                name, _, rest = line.partition(" ")
                if not name.endswith(":"):
                    if inside:
                        break
                    start, _, end = name.partition("-")
                    inside = int(start, 16) <= address < int(end, 16)
                elif inside and name in ("AnonHugePages:", "FilePmdMapped:", "ShmemPmdMapped:"):
                    found += int(rest.split()[0]) << 10
    except (OSError, ValueError):
        return 0
    return found


def moved(buffer: Bytes) -> Bytes:
    """`buffer`, touched already, if huge pages back most of it or can't be had; else a copy in them."""
    n_bytes = len(buffer)
    if n_bytes < 2 * HUGE or not are_offered() or 2 * backed_bytes(buffer) >= n_bytes:
        return buffer
    if available_bytes() < _SPARE * n_bytes:
        log.info("weights stay in small pages: a copy of %d MiB in huge ones doesn't fit", n_bytes >> 20)
        return buffer
    copy = room(n_bytes)
    copy[:] = buffer
    return copy


def let_go(data: Bytes) -> None:
    """Take a view of a mapped file out of our resident memory; reading it again maps it again."""
    base: object = data
    while isinstance(base, np.ndarray):
        base = base.base
    owner = base.obj if isinstance(base, memoryview) else base
    if not isinstance(owner, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = int(data.ctypes.data) - int(np.frombuffer(owner, dtype=np.uint8).ctypes.data)
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, first, start + data.nbytes - first)
