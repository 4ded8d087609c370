"""Shared memory in which an engine process writes whose rows it is running, for whoever looks after its death."""

from __future__ import annotations

import mmap
import struct
import tempfile
from collections.abc import Collection
from typing import IO

_MOST_KEYS = 1024
_SIZE = 8 * (1 + _MOST_KEYS)


def make_recorder_file() -> IO[bytes]:
    """A file without a name; its descriptor is inherited by the engine process."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process it describes
    file.truncate(_SIZE)
    return file


class FlightRecorder:
    """The mapping of a flight recorder's file. The engine's loop alone writes it."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, _SIZE)

    def write(self, keys: Collection[int]) -> None:
        """The requests of the step that begins now."""
        own = list(keys)[:_MOST_KEYS]
        struct.pack_into("<q", self._memory, 0, 0)
        struct.pack_into(f"<{len(own)}q", self._memory, 8, *own)
        struct.pack_into("<q", self._memory, 0, len(own))

    def read(self) -> set[int]:
        (n,) = struct.unpack_from("<q", self._memory, 0)
        return set(struct.unpack_from(f"<{min(n, _MOST_KEYS)}q", self._memory, 8))

    def close(self) -> None:
        self._memory.close()
