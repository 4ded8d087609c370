"""The tier in host memory, for backends whose blocks live on a device."""

from __future__ import annotations

from collections.abc import Iterator

from imp_server.schedule.tiers.record import BlockRecord
from imp_server.schedule.tiers.tier import KnownEntry, TierCounts

_OVERHEAD = 256
"""Bytes of an entry beside its payload."""


class HostTier:
    """Owner of the payloads it was given."""

    name = "host"
    persists = False

    def __init__(self, cap_bytes: int) -> None:
        self.counts = TierCounts()
        self._cap = cap_bytes
        self._records: dict[bytes, BlockRecord] = {}
        self._n_bytes = 0

    @property
    def n_entries(self) -> int:
        return len(self._records)

    @property
    def n_bytes(self) -> int:
        return self._n_bytes

    def takes(self, n_payload: int) -> bool:
        return n_payload + _OVERHEAD <= self._cap

    def has_room(self, n_payload: int) -> bool:
        return self._n_bytes + n_payload + _OVERHEAD <= self._cap

    def put(self, record: BlockRecord) -> bool:
        if record.digest in self._records:
            return True
        if not self.takes(len(record.payload)):
            self.counts.refused += 1
            return False
        if not self.has_room(len(record.payload)):
            return False
        self._records[record.digest] = record
        self._n_bytes += len(record.payload) + _OVERHEAD
        self.counts.stored += 1
        return True

    def get(self, digest: bytes, parent: bytes, key: bytes) -> BlockRecord | None:
        found = self._records.get(digest)
        if found is None:
            self.counts.misses += 1
            return None
        if (found.parent, found.key) != (parent, key):
            self.counts.faults += 1
            self.drop(digest)
            return None
        self.counts.hits += 1
        return found

    def drop(self, digest: bytes) -> None:
        gone = self._records.pop(digest, None)
        if gone is not None:
            self._n_bytes -= len(gone.payload) + _OVERHEAD

    def known(self) -> Iterator[KnownEntry]:
        return iter(())

    def close(self) -> None:
        self._records.clear()
        self._n_bytes = 0
