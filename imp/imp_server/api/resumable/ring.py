"""The last bytes of a stream, by absolute offset. What makes room for others goes event by event."""

from __future__ import annotations

_END = b"\n\n"
"""Of an event. None has it inside: its data is one line."""


class Ring:
    """Owner of at most `limit` bytes. `start`: offset of the first byte that is held."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()
        self.start = 0

    def __len__(self) -> int:
        """Bytes that are held."""
        return len(self._held)

    @property
    def end(self) -> int:
        """Offset of the next byte that comes: all bytes that ever came."""
        return self.start + len(self._held)

    def append(self, event: bytes) -> None:
        """Of an event that is larger than the ring its end alone is held."""
        self._held += event
        self.drop(len(self._held) - self._limit)

    def drop(self, n_bytes: int) -> None:
        """At least so many of the oldest bytes, up to the end of an event where another one follows."""
        if n_bytes <= 0:
            return
        end = self._held.find(_END, max(0, n_bytes - len(_END))) + len(_END)
        n_dropped = end if len(_END) <= end < len(self._held) else min(n_bytes, len(self._held))
        del self._held[:n_dropped]
        self.start += n_dropped

    def clear(self) -> None:
        self.start = self.end
        self._held = bytearray()

    def read(self, offset: int, n_bytes: int) -> bytes:
        """From `offset`, which isn't lost, to the end of an event: about `n_bytes`, or one event that is larger."""
        begin = offset - self.start
        end = begin + n_bytes
        if end < len(self._held):
            last = self._held.rfind(_END, begin, end)
            if last < 0:
                last = self._held.find(_END, begin)
            end = last + len(_END) if last >= 0 else len(self._held)
        with memoryview(self._held) as held:
            return bytes(held[begin:end])
