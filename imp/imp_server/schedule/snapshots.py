"""States of layers that can't be rolled back, kept at message boundaries so that a prefix can be resumed there.

A snapshot is the exact bytes of a row's state slots after a number of tokens. It is found by those tokens: by the
content hash of their whole blocks, then by the tokens themselves, all of them. They live in host memory; a tier can
keep them for the next process, which reads all of them when it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from imp_server.core import MessageSpan
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.blocks import EMPTY, BlockPool
from imp_server.schedule.rows import Row
from imp_server.schedule.tiers.record import BlockRecord, BlockStore, content_hash, is_lasting, root_hash
from imp_server.schedule.tiers.tier import Tier
from imp_server.schedule.tree import BLOCK_BYTES, TOKEN_BYTES, key_of


def snapshot_points(spans: Iterable[MessageSpan], n_prompt: int, min_step: int) -> tuple[int, ...]:
    """Positions of a prompt at which its state is worth keeping, ascending.

    The start of the last user message, always: the next turn, or another try, differs from there on. Of the other
    user messages the first, and those at least `min_step` tokens behind the point before. None in between.
    """
    starts = sorted({span.start for span in spans if span.role == "user" and 0 < span.start < n_prompt})
    points: list[int] = []
    for start in starts[:-1]:
        if not points or start - points[-1] >= min_step:
            points.append(start)
    return (*points, *starts[-1:])


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """`most`: per conversation, that is on the way to any one state; `cap_bytes`: all of them together."""

    most: int = 32
    cap_bytes: int = 256 << 20
    min_step: int = 8192


@dataclass(slots=True, eq=False)
class Snapshot:
    ids: bytes
    """The tokens, as in the tree's keys."""
    digest: bytes
    """Of their whole blocks, and of the reuse group."""
    states: tuple[bytes, ...]
    """Per state group."""
    reuse_group: int = 0

    @property
    def n_tokens(self) -> int:
        return len(self.ids) // TOKEN_BYTES

    @property
    def rest(self) -> bytes:
        """The tokens behind the whole blocks."""
        return self.ids[len(self.ids) // BLOCK_BYTES * BLOCK_BYTES :]


class Snapshots:
    """Owner of the snapshots, in host memory."""

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        pools: Sequence[BlockPool],
        store: BlockStore,
        block_bytes: Sequence[int],
        limits: SnapshotLimits,
        tier: Tier | None = None,
    ) -> None:
        """`tier`: keeps them over restarts; what it holds is adopted."""
        self.n_taken = 0
        self.n_restored = 0
        self.n_evicted = 0
        self.n_unusable = 0
        """Prefixes that were known and had no snapshot to resume from, or whose state couldn't be had."""
        self._state_groups = [g for g, group in enumerate(groups) if group.kind == "state"]
        self._pools, self._store, self._limits = pools, store, limits
        self._state_bytes = [block_bytes[g] for g in self._state_groups]
        self._each_bytes = sum(self._state_bytes)
        self._found: dict[bytes, dict[bytes, Snapshot]] = {}
        self._by_age: dict[Snapshot, None] = {}
        self._tier = tier
        self._unsaved: dict[Snapshot, None] = {}
        if tier is not None:
            self._adopt_kept(tier)

    @property
    def n_bytes(self) -> int:
        return len(self._by_age) * self._each_bytes

    def along(self, key: bytes, reuse_group: int) -> list[Snapshot]:
        """All snapshots on the way through these tokens, shortest first."""
        found: list[Snapshot] = []
        digest = root_hash(reuse_group)
        if not self._found:
            return found
        for at in range(0, len(key) + 1, BLOCK_BYTES):
            here = self._found.get(digest, {})
            found += sorted((s for s in here.values() if key.startswith(s.ids)), key=lambda s: s.n_tokens)
            digest = content_hash(digest, key[at : at + BLOCK_BYTES])
        return found

    def take(self, row: Row) -> None:
        """Keep the row's state, which is that after `row.n_computed` tokens."""
        if (
            row.tables is None
            or not 0 < row.n_computed <= row.sampler.length
            or self._each_bytes > self._limits.cap_bytes
        ):
            return
        slots = [int(row.tables.columns(g)[0]) if len(row.tables.columns(g)) else EMPTY for g in self._state_groups]
        if any(s == EMPTY or self._pools[g].is_unsettled(s) for g, s in zip(self._state_groups, slots, strict=True)):
            return
        key = key_of(row.sampler.history[: row.n_computed])
        on_the_way = self.along(key, row.reuse_group)
        if on_the_way and on_the_way[-1].ids == key:
            self._use(on_the_way[-1])
            return
        self._make_room(on_the_way)
        states = tuple(
            self._store.read_blocks(g, np.array([slot], dtype=np.int32))
            for g, slot in zip(self._state_groups, slots, strict=True)
        )
        digest = digest_of(key, row.reuse_group)
        new = Snapshot(key, digest, states, row.reuse_group)
        self._add(new)
        if self._tier is not None and is_lasting(row.reuse_group):
            self._unsaved[new] = None
        self.n_taken += 1

    def restore(self, row: Row, snapshot: Snapshot) -> bool:
        """Put the state into slots for the row, whatever they held; False if there are none, and nothing changed."""
        assert row.tables is not None
        slots: list[int] = []
        for group in self._state_groups:
            slot = self._pools[group].take()
            if slot is None:
                for taken_of, taken in zip(self._state_groups, slots, strict=False):
                    self._pools[taken_of].release(taken)
                return False
            slots.append(slot)
        for group, slot, state in zip(self._state_groups, slots, snapshot.states, strict=True):
            self._store.write_blocks(group, np.array([slot], dtype=np.int32), state)
            row.tables.hold_state(group, slot)
        self._use(snapshot)
        self.n_restored += 1
        return True

    def save_some(self, n: int) -> bool:
        """Keep some of the new ones for the next process; True if there are more."""
        while self._tier is not None and self._unsaved and n > 0:
            snapshot = next(iter(self._unsaved))
            record = self._record(snapshot)
            for oldest in self._by_age if self._tier.takes(len(record.payload)) else ():
                if self._tier.has_room(len(record.payload)):
                    break
                if oldest not in self._unsaved:
                    self._tier.drop(content_hash(oldest.digest, oldest.rest))
            del self._unsaved[snapshot]
            self._tier.put(record)
            n -= 1
        return bool(self._unsaved)

    def close(self) -> None:
        if self._tier is not None:
            self._tier.close()

    def clear(self) -> None:
        for snapshot in list(self._by_age):
            self._drop(snapshot)

    def counters(self) -> dict[str, float]:
        return {
            "state_snapshots": float(len(self._by_age)),
            "state_snapshot_bytes": float(self.n_bytes),
            "state_snapshots_taken_total": float(self.n_taken),
            "state_snapshots_restored_total": float(self.n_restored),
            "state_snapshots_evicted_total": float(self.n_evicted),
            "state_snapshots_unusable_total": float(self.n_unusable),
            "state_snapshots_kept": 0.0 if self._tier is None else float(self._tier.n_entries),
        }

    def check(self) -> None:
        """Raises AssertionError."""
        held = [snapshot for here in self._found.values() for snapshot in here.values()]
        assert len(held) == len(self._by_age) and set(held) == set(self._by_age), "a snapshot is lost"
        assert self.n_bytes <= self._limits.cap_bytes, "the snapshots exceed their cap"

    def _add(self, new: Snapshot) -> None:
        self._found.setdefault(new.digest, {})[new.rest] = new
        self._by_age[new] = None

    def _record(self, snapshot: Snapshot) -> BlockRecord:
        """As a tier keeps it: under the hash of all its tokens; the payload has them, and the states."""
        mask = sum(1 << g for g in self._state_groups)
        payload = snapshot.ids + b"".join(snapshot.states)
        digest = content_hash(snapshot.digest, snapshot.rest)
        return BlockRecord(digest, snapshot.digest, snapshot.rest, mask, payload, snapshot.reuse_group)

    def _adopt_kept(self, tier: Tier) -> None:
        """What an earlier process left, oldest first. Whatever isn't sound, or is beyond the cap, is dropped."""
        for entry in tier.known():
            record = tier.get(entry.digest, entry.parent, entry.key)
            snapshot = None if record is None else self._snapshot_of(record)
            if snapshot is None or self.n_bytes + self._each_bytes > self._limits.cap_bytes:
                tier.drop(entry.digest)
            else:
                self._add(snapshot)

    def _snapshot_of(self, record: BlockRecord) -> Snapshot | None:
        """None: it isn't one of these layers, or its tokens don't lead to where it says."""
        ids = record.payload[: len(record.payload) - self._each_bytes]
        if not ids or len(ids) % TOKEN_BYTES or record.mask != sum(1 << g for g in self._state_groups):
            return None
        at, states = len(ids), []
        for size in self._state_bytes:
            states.append(record.payload[at : at + size])
            at += size
        snapshot = Snapshot(ids, digest_of(ids, record.reuse_group), tuple(states), record.reuse_group)
        is_sound = (snapshot.digest, snapshot.rest) == (record.parent, record.key)
        return snapshot if is_sound else None

    def _use(self, snapshot: Snapshot) -> None:
        if self._by_age.pop(snapshot, snapshot) is None:
            self._by_age[snapshot] = None

    def _make_room(self, on_the_way: Sequence[Snapshot]) -> None:
        """For one more, at the end of this way. Only when there is no room at all, and never the newest on the way."""
        if len(on_the_way) >= self._limits.most:
            self._drop(self._least_useful(on_the_way))
        while self.n_bytes + self._each_bytes > self._limits.cap_bytes:
            self._drop(next(iter(self._by_age)))

    def _least_useful(self, on_the_way: Sequence[Snapshot]) -> Snapshot:
        """One close behind another, if there is one; else the one used longest ago."""
        for before, here in pairwise(on_the_way[:-1]):
            if here.n_tokens - before.n_tokens < self._limits.min_step:
                return here
        candidates = set(on_the_way[:-1] or on_the_way)
        return next(snapshot for snapshot in self._by_age if snapshot in candidates)

    def _drop(self, snapshot: Snapshot) -> None:
        here = self._found[snapshot.digest]
        del here[snapshot.rest]
        if not here:
            del self._found[snapshot.digest]
        del self._by_age[snapshot]
        if self._tier is not None and not self._was_unsaved(snapshot):
            self._tier.drop(content_hash(snapshot.digest, snapshot.rest))
        self.n_evicted += 1

    def _was_unsaved(self, snapshot: Snapshot) -> bool:
        if snapshot not in self._unsaved:
            return False
        del self._unsaved[snapshot]
        return True


def digest_of(key: bytes, reuse_group: int) -> bytes:
    """The content hash of the whole blocks of these tokens."""
    digest = root_hash(reuse_group)
    for at in range(0, len(key) - BLOCK_BYTES + 1, BLOCK_BYTES):
        digest = content_hash(digest, key[at : at + BLOCK_BYTES])
    return digest
