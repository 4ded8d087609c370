"""What travels to and from worker processes: records on the zygote's socket, frames on that of a child.

Records have one size each way, so that a socket passed along always belongs to the record it was read with.
"""

from __future__ import annotations

import socket
import struct
from typing import Literal, NamedTuple

START, LASTING, KILL, STOP, RESUME = b"s", b"l", b"k", b"p", b"r"
"""Orders: run one job, run jobs until the socket closes, and what becomes of a running child."""
SUNK, ENDED = b"u", b"e"
"""Notices: a child has used up its first slice; a child is gone."""
ASK, ANSWER, FAULT, NO_MEMORY = b"q", b"a", b"f", b"m"
"""Kinds of frames. A fault is UTF-8 text: what the job raised."""

_NAME_BYTES = 96
_ORDER = struct.Struct(f"<cQdQd{_NAME_BYTES}s")
_NOTICE = struct.Struct("<cQidQ")
_HEAD = struct.Struct("<cQ")
ORDER_BYTES, NOTICE_BYTES, HEAD_BYTES = _ORDER.size, _NOTICE.size, _HEAD.size

Ending = Literal["done", "cpu", "memory", "killed", "crashed"]


class JobLimits(NamedTuple):
    """What one job may use. `memory_bytes`: address space beyond what its process begins with."""

    cpu_s: float = 2.0
    memory_bytes: int = 512 << 20


class Order(NamedTuple):
    """To the zygote. START and LASTING come with the child's socket; `function` is module:name.

    `slice_s`: CPU seconds that a job has at ordinary priority, 0.0 for none. It is told of when they are used up.
    """

    kind: bytes
    id: int
    limits: JobLimits = JobLimits()
    function: str = ""
    slice_s: float = 0.0

    def packed(self) -> bytes:
        name = self.function.encode()
        assert len(name) <= _NAME_BYTES, self.function
        return _ORDER.pack(self.kind, self.id, *self.limits, self.slice_s, name)

    @classmethod
    def unpacked(cls, record: bytes) -> Order:
        kind, number, cpu_s, memory, slice_s, name = _ORDER.unpack(record)
        return cls(kind, number, JobLimits(cpu_s, memory), name.rstrip(b"\0").decode(), slice_s)


class Notice(NamedTuple):
    """From the zygote. `code`: as subprocess.Popen.returncode; `peak_bytes`: most memory that the child held."""

    kind: bytes
    id: int
    code: int = 0
    cpu_s: float = 0.0
    peak_bytes: int = 0

    def packed(self) -> bytes:
        return _NOTICE.pack(*self)

    @classmethod
    def unpacked(cls, record: bytes) -> Notice:
        return cls(*_NOTICE.unpack(record))


def frame(kind: bytes, data: bytes) -> bytes:
    return _HEAD.pack(kind, len(data)) + data


def frame_head(head: bytes) -> tuple[bytes, int]:
    """(kind, bytes that follow)"""
    kind, size = _HEAD.unpack(head)
    return kind, size


def read_exactly(sock: socket.socket, n_bytes: int) -> bytes | None:
    """None if the other side closed before. Raises OSError, TimeoutError as the socket does."""
    data = bytearray(n_bytes)
    view, n_read = memoryview(data), 0
    while n_read < n_bytes:
        n = sock.recv_into(view[n_read:])
        if not n:
            return None
        n_read += n
    return bytes(data)


def read_frame(sock: socket.socket, most: int = 1 << 40) -> tuple[bytes, bytes] | None:
    """(kind, data); None if the other side is gone. Raises ValueError for more than `most` bytes."""
    head = read_exactly(sock, HEAD_BYTES)
    if head is None:
        return None
    kind, size = frame_head(head)
    if size > most:
        raise ValueError(f"a frame of {size} bytes, and at most {most} are wanted")
    data = read_exactly(sock, size)
    return None if data is None else (kind, data)
