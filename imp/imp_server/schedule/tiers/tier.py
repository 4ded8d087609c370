"""The one interface of lower tiers, and their counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from imp_server.schedule.tiers.record import BlockRecord


@dataclass(slots=True)
class TierCounts:
    """`faults`: what the medium failed at (full, unreadable, damaged); each is a miss or an entry not kept."""

    stored: int = 0
    hits: int = 0
    misses: int = 0
    faults: int = 0
    refused: int = 0
    """Entries above the cap, never tried."""


class KnownEntry(NamedTuple):
    """What a BlockRecord says of an entry, without its contents."""

    digest: bytes
    parent: bytes
    key: bytes
    mask: int
    reuse_group: int


class Tier(Protocol):
    """Keeps block contents under a hard cap of bytes, bit-exact. Never raises: a fault is a miss and a count.

    It doesn't choose what to give up: its owner does, by `drop`, when `has_room` says no.
    """

    counts: TierCounts

    @property
    def name(self) -> str:
        """host | file."""
        ...

    @property
    def persists(self) -> bool:
        """What it keeps is found again by the next process."""
        ...

    @property
    def n_entries(self) -> int: ...

    @property
    def n_bytes(self) -> int:
        """Of the cap, in use."""
        ...

    def takes(self, n_payload: int) -> bool:
        """An entry of that size can be kept at all."""
        ...

    def has_room(self, n_payload: int) -> bool:
        """It can be kept now, with nothing dropped."""
        ...

    def put(self, record: BlockRecord) -> bool:
        """False: it isn't kept."""
        ...

    def get(self, digest: bytes, parent: bytes, key: bytes) -> BlockRecord | None:
        """The entry, if it is intact and its own parent and tokens are these; an entry that isn't is dropped."""
        ...

    def drop(self, digest: bytes) -> None:
        """Idempotent."""
        ...

    def known(self) -> Iterator[KnownEntry]:
        """What an earlier process left, oldest first. Can be asked once."""
        ...

    def close(self) -> None: ...
