"""Gives memory that large bodies took back to the system, which C's allocator would keep for itself."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)
LARGE_BYTES = 1 << 20
_M_MMAP_THRESHOLD = -3
_PAUSE_S = 1.0


def _c_function(name: str) -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # another C library than glibc
        return None
    return function


def map_large_blocks() -> None:
    """Blocks of a megabyte and more get pages of their own, which go back when they are freed.

    Left alone, glibc raises that size to that of the largest block ever freed.
    """
    if (mallopt := _c_function("mallopt")) is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


class ReturnedMemory:
    """Owner of when freed memory is given back: once a second at most, after requests with large bodies."""

    def __init__(self) -> None:
        self._trim = _c_function("malloc_trim")
        self._due: asyncio.Task[None] | None = None

    def want(self) -> None:
        """Called on the event loop when a large body has been freed."""
        if self._trim is not None and (self._due is None or self._due.done()):
            self._due = asyncio.get_running_loop().create_task(self._give_back(self._trim))

    async def _give_back(self, trim: Callable[..., int]) -> None:
        await asyncio.sleep(_PAUSE_S)
        gc.collect()  # errors hold the frames that they passed through, bodies and all, in cycles
        await asyncio.to_thread(trim, 0)  # takes milliseconds, and not the interpreter's lock
