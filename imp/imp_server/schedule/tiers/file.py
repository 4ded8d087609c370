"""The tier in a file: beside the model's memory on a CPU, and over restarts where a path is given."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from imp_server.schedule.tiers.record import BlockRecord, content_hash
from imp_server.schedule.tiers.slab import HEAD_BYTES, Damaged, SlabFile
from imp_server.schedule.tiers.tier import KnownEntry, TierCounts

log = logging.getLogger(__name__)

_WRITE_FAULTS = 8
"""Failed writes in a row after which writing is given up: a full disk shall not cost every eviction a try."""
_RETRY_EVERY = 256
"""Of the writes given up, one is tried all the same."""


class FileTier:
    """Owner of the slots of one file. Used by the engine's thread alone; faults of the disk are misses."""

    name = "file"

    def __init__(self, file: SlabFile, cap_bytes: int, *, persists: bool) -> None:
        """`cap_bytes` bounds the whole file. What it holds already is kept if its head is ours."""
        self.counts = TierCounts()
        self.persists = persists
        self._file = file
        self._cap_slots = max(0, (cap_bytes - HEAD_BYTES) // file.slot_bytes)
        self._slots: dict[bytes, int] = {}
        self._free: list[int] = []
        self._n_used = 0
        """Slots ever written: those behind are free, too."""
        self._serial = 0
        self._failed_writes = 0
        self._skipped = 0
        self._found: list[KnownEntry] = []
        try:
            self._open()
        except OSError as error:
            self._fault("be opened", error)
            self._slots, self._free, self._n_used = {}, [], 0

    @property
    def n_entries(self) -> int:
        return len(self._slots)

    @property
    def n_bytes(self) -> int:
        return len(self._slots) * self._file.slot_bytes

    def takes(self, n_payload: int) -> bool:
        return self._cap_slots > 0 and n_payload <= self._file.max_payload

    def has_room(self, n_payload: int) -> bool:
        return self.takes(n_payload) and len(self._slots) < self._cap_slots

    def put(self, record: BlockRecord) -> bool:
        if record.digest in self._slots:
            return True
        if not self.takes(len(record.payload)):
            self.counts.refused += 1
            return False
        if not self.has_room(len(record.payload)) or self._is_given_up():
            return False
        slot = self._free.pop() if self._free else self._n_used
        self._n_used = max(self._n_used, slot + 1)
        try:
            self._file.write(slot, self._serial, record)
        except OSError as error:
            self._free.append(slot)
            self._failed_writes += 1
            self._fault("be written", error)
            return False
        self._failed_writes = 0
        self._serial += 1
        self._slots[record.digest] = slot
        self.counts.stored += 1
        return True

    def get(self, digest: bytes, parent: bytes, key: bytes) -> BlockRecord | None:
        slot = self._slots.get(digest)
        if slot is None:
            self.counts.misses += 1
            return None
        try:
            record = self._file.read(slot)
            if (record.digest, record.parent, record.key) != (digest, parent, key):
                raise Damaged("the entry belongs to other tokens")
        except (OSError, Damaged) as error:
            self._fault("be read", error)
            self.drop(digest)
            return None
        self.counts.hits += 1
        return record

    def drop(self, digest: bytes) -> None:
        slot = self._slots.pop(digest, None)
        if slot is None:
            return
        self._free.append(slot)
        if self.persists:
            try:
                self._file.erase(slot)
            except OSError as error:
                self._fault("be written", error)

    def known(self) -> Iterator[KnownEntry]:
        found, self._found = self._found, []
        return iter(found)

    def close(self) -> None:
        self._file.close()

    def _open(self) -> None:
        if not self._file.has_our_head():
            self._file.begin()
            return
        self._file.shrink(self._cap_slots)
        n_slots = min(self._file.n_slots(), self._cap_slots)
        by_age = sorted((header.serial, slot, header) for slot, header in self._file.headers(n_slots))
        for serial, slot, header in by_age:
            self._serial = serial + 1
            if header.digest != content_hash(header.parent, header.key) or header.digest in self._slots:
                continue
            self._slots[header.digest] = slot
            self._found.append(KnownEntry(header.digest, header.parent, header.key, header.mask, header.reuse_group))
        taken = set(self._slots.values())
        self._free = [slot for slot in range(n_slots - 1, -1, -1) if slot not in taken]
        self._n_used = n_slots

    def _is_given_up(self) -> bool:
        if self._failed_writes < _WRITE_FAULTS:
            return False
        self._skipped += 1
        return self._skipped % _RETRY_EVERY != 0

    def _fault(self, what: str, error: Exception) -> None:
        self.counts.faults += 1
        if self.counts.faults & (self.counts.faults - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            log.warning("the prefix cache's file can't %s: %s (fault %d)", what, reason, self.counts.faults)
