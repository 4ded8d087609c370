"""What each row slot held last, saved to files, read again, and forgotten: llama.cpp's slot actions.

A file is a tier of its own with the blocks of one text, bound to this model file, layout and kernel.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imp_server.engine.messages import SlotAction, SlotDone
from imp_server.schedule.rows import Row
from imp_server.schedule.session_files import SessionFiles, ids_of
from imp_server.schedule.tiers.file import FileTier
from imp_server.schedule.tiers.slab import SlabFile

log = logging.getLogger(__name__)
_AT_ONCE = 8
"""Blocks between two steps of the engine."""
_OPEN = os.O_RDWR | os.O_CLOEXEC
_LEFT_BEHIND_S = 3600.0
"""Age of an unfinished file from which nobody writes it any more."""
BUSY, NOTHING, UNUSABLE, FULL, FAULT = "busy", "nothing", "unusable", "full", "fault"


@dataclass(frozen=True, slots=True)
class SlotStore:
    """What files need to know. `mark`: of this model file, layout and kernel; slow, and raises OSError."""

    files: SessionFiles
    mark: Callable[[], bytes]
    max_payload: int


@dataclass(frozen=True, slots=True)
class _SlotText:
    """`ids`: those that were computed."""

    ids: NDArray[np.int32]
    reuse_group: int
    owner: str


class SlotFiles:
    """Owner of what slots held, and of the actions under way. Used by the engine's thread alone."""

    def __init__(
        self, store: SlotStore | None, emit: Callable[[SlotDone], None], rows: Callable[[], list[Row]]
    ) -> None:
        self._store, self._emit, self._rows = store, emit, rows
        self._texts: dict[int, _SlotText] = {}
        self._jobs: deque[Iterator[SlotDone | None]] = deque()
        self._mark = b""

    def note(self, row: Row) -> None:
        """The row is about to give its slot back."""
        if row.slot >= 0 and row.reuse_prefix and self._store is not None:
            ids = row.sampler.history[: min(row.n_computed, row.sampler.length)].copy()
            self._texts[row.slot] = _SlotText(ids, row.reuse_group, row.client)

    def handle(self, message: SlotAction) -> None:
        text = self._texts.get(message.slot)
        if self._store is None or any(row.slot == message.slot for row in self._rows()):
            self._emit(SlotDone(message.ticket, problem=BUSY if self._store is not None else UNUSABLE))
            return
        if message.action != "restore" and (text is None or (message.owner and text.owner != message.owner)):
            self._emit(SlotDone(message.ticket, problem=NOTHING))
            return
        if message.action == "erase":
            assert text is not None
            del self._texts[message.slot]
            n_tokens = self._store.files.erase(text.ids, text.reuse_group)
            self._emit(SlotDone(message.ticket, n_tokens=n_tokens))
            return
        job = self._restored(message) if message.action == "restore" else self._saved(message, text)
        self._jobs.append(job)

    def go_on(self) -> bool:
        """A piece of the action under way; True if there is more."""
        if not self._jobs:
            return False
        for _ in range(_AT_ONCE):
            done = next(self._jobs[0], None)
            if done is not None:
                self._emit(done)
                self._jobs.popleft()
                break
        return bool(self._jobs)

    def _saved(self, message: SlotAction, text: _SlotText | None) -> Iterator[SlotDone | None]:
        """Into a file beside it, which takes its place when it is whole."""
        assert text is not None and self._store is not None
        began_s, path = time.monotonic(), Path(message.path)
        part = path.with_name(f".{path.name[:200]}.{message.ticket}.part")
        n_tokens = 0
        try:
            part.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            room = message.most_bytes - _taken_beside(path)
            tier = self._tier(os.open(part, _OPEN | os.O_CREAT | os.O_TRUNC, 0o600), max(0, room))
            try:
                for so_far in self._store.files.save(text.ids, text.reuse_group, tier):
                    n_tokens = so_far
                    yield None
                is_full = tier.counts.refused or not tier.has_room(0)
                problem = FAULT if tier.counts.faults else FULL if is_full and n_tokens < len(text.ids) else ""
            finally:
                tier.close()
            n_bytes = part.stat().st_size
            if problem:
                part.unlink()
            else:
                part.replace(path)
        except OSError as error:
            log.warning("a slot can't be saved: %s", error.strerror)
            with suppress(OSError):
                part.unlink()
            n_tokens, n_bytes, problem = 0, 0, FAULT
        yield SlotDone(message.ticket, n_tokens, n_bytes, 1e3 * (time.monotonic() - began_s), problem)

    def _restored(self, message: SlotAction) -> Iterator[SlotDone | None]:
        assert self._store is not None
        began_s, n_tokens, key = time.monotonic(), 0, list[bytes]()
        n_bytes, group = 0, 0
        try:
            fd = os.open(message.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            n_bytes = os.fstat(fd).st_size
            file = SlabFile(fd, self._fingerprint(), self._store.max_payload)
            if not file.has_our_head():  # a tier would begin it anew
                file.close()
                yield SlotDone(message.ticket, problem=UNUSABLE)
                return
            group = next((header.reuse_group for _, header in file.headers(1)), 0)
            tier = FileTier(file, n_bytes + file.slot_bytes, persists=False)
            try:
                for so_far in self._store.files.restore(tier, key):
                    n_tokens = so_far
                    yield None
            finally:
                tier.close()
        except OSError:
            n_tokens = 0
        if n_tokens:
            self._texts[message.slot] = _SlotText(ids_of(b"".join(key)), group, message.owner)
        took_ms = 1e3 * (time.monotonic() - began_s)
        yield SlotDone(message.ticket, n_tokens, n_bytes, took_ms, "" if n_tokens else UNUSABLE)

    def _tier(self, fd: int, most_bytes: int) -> FileTier:
        assert self._store is not None
        return FileTier(SlabFile(fd, self._fingerprint(), self._store.max_payload), most_bytes, persists=False)

    def _fingerprint(self) -> bytes:
        assert self._store is not None
        self._mark = self._mark or self._store.mark()
        return self._mark


def _taken_beside(path: Path) -> int:
    """Bytes of the other files in the folder of `path`; what a killed engine left unfinished goes. Raises OSError."""
    n_bytes = 0
    for other in path.parent.iterdir():
        facts = other.stat()
        if other.suffix == ".part" and time.time() - facts.st_mtime > _LEFT_BEHIND_S:
            other.unlink()
        elif other.name != path.name:
            n_bytes += facts.st_size
    return n_bytes
