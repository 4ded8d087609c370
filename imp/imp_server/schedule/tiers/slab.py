"""The file of a file tier: a head, then slots of one size, each with its own checksum.

Head: magic, fingerprint, payload bytes of a slot, CRC-32 of these. Slot: a header (magic, serial, mask, sizes, digest,
parent, tokens, hash of the payload, reuse group, CRC-32 of the header), then the payload. A slot is written by one
call; one that was cut short by a crash, or changed since, fails its sums and counts as damaged. Reads go through
`pread`, never through a map: a file truncated under a map would kill the process.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from imp_server.schedule.tiers.record import DIGEST_BYTES, BlockRecord

MAGIC = b"imp prefix cache 2\n".ljust(32, b"\0")
HEAD_BYTES = 4096
SLOT_HEADER_BYTES = 256
_HEAD = struct.Struct("<32s32sQ")
_SLOT = struct.Struct(f"<4sIQII{DIGEST_BYTES}s{DIGEST_BYTES}s64s32s{DIGEST_BYTES}s")
_SLOT_MAGIC = b"kv1\n"


class Damaged(Exception):
    """The bytes aren't those that were written."""


class SlotHeader(NamedTuple):
    serial: int
    mask: int
    n_payload: int
    digest: bytes
    parent: bytes
    key: bytes
    payload_hash: bytes
    reuse_group: int


class SlabFile:
    """Owner of an open file. Every method but the plain ones raises OSError; `read` raises Damaged, too."""

    def __init__(self, fd: int, fingerprint: bytes, max_payload: int) -> None:
        self._fd = fd
        self._fingerprint = fingerprint
        self.max_payload = max_payload
        self.slot_bytes = -(-(SLOT_HEADER_BYTES + max_payload) // 64) * 64

    def has_our_head(self) -> bool:
        return os.pread(self._fd, HEAD_BYTES, 0) == self._head()

    def begin(self) -> None:
        """Empty the file and write its head."""
        os.ftruncate(self._fd, 0)
        _write_all(self._fd, self._head(), 0)

    def n_slots(self) -> int:
        """Slots that the file has, a torn one at its end included."""
        return max(0, -(-(os.fstat(self._fd).st_size - HEAD_BYTES) // self.slot_bytes))

    def shrink(self, n_slots: int) -> None:
        """Cut off what lies behind."""
        if self.n_slots() > n_slots:
            os.ftruncate(self._fd, HEAD_BYTES + n_slots * self.slot_bytes)

    def write(self, slot: int, serial: int, record: BlockRecord) -> None:
        fields = _SLOT.pack(
            _SLOT_MAGIC,
            len(record.key),
            serial,
            record.mask,
            len(record.payload),
            record.digest,
            record.parent,
            record.key,
            _hash(record.payload),
            record.reuse_group.to_bytes(DIGEST_BYTES, "little"),
        )
        header = _summed(fields, SLOT_HEADER_BYTES)
        _write_all(self._fd, header + record.payload, self._at(slot))

    def erase(self, slot: int) -> None:
        _write_all(self._fd, bytes(SLOT_HEADER_BYTES), self._at(slot))

    def header(self, slot: int) -> SlotHeader | None:
        """None if the slot is empty or its header doesn't hold."""
        data = os.pread(self._fd, SLOT_HEADER_BYTES, self._at(slot))
        if len(data) < SLOT_HEADER_BYTES or data != _summed(data[: _SLOT.size], SLOT_HEADER_BYTES):
            return None
        magic, n_key, serial, mask, n_payload, digest, parent, key, payload_hash, group = _SLOT.unpack_from(data)
        if magic != _SLOT_MAGIC or n_key > len(key) or n_payload > self.max_payload:
            return None
        reuse_group = int.from_bytes(group, "little")
        return SlotHeader(serial, mask, n_payload, digest, parent, key[:n_key], payload_hash, reuse_group)

    def headers(self, n_slots: int) -> Iterator[tuple[int, SlotHeader]]:
        for slot in range(n_slots):
            header = self.header(slot)
            if header is not None:
                yield slot, header

    def read(self, slot: int) -> BlockRecord:
        header = self.header(slot)
        if header is None:
            raise Damaged("the slot's header is damaged")
        payload = os.pread(self._fd, header.n_payload, self._at(slot) + SLOT_HEADER_BYTES)
        if len(payload) < header.n_payload:
            raise Damaged("the file is shorter than its entries")
        if _hash(payload) != header.payload_hash:
            raise Damaged("the entry's contents are damaged")
        return BlockRecord(header.digest, header.parent, header.key, header.mask, payload, header.reuse_group)

    def close(self) -> None:
        os.close(self._fd)

    def _head(self) -> bytes:
        return _summed(_HEAD.pack(MAGIC, self._fingerprint, self.max_payload), HEAD_BYTES)

    def _at(self, slot: int) -> int:
        return HEAD_BYTES + slot * self.slot_bytes


def _hash(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=32).digest()


def _summed(fields: bytes, size: int) -> bytes:
    return (fields + zlib.crc32(fields).to_bytes(4, "little")).ljust(size, b"\0")


def _write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, at)
        view, at = view[n:], at + n
