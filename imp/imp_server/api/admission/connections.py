"""The open connections: how many there may be, which one goes when there are too many, and which has taken too long."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from typing import Literal, Protocol

from imp_server.api.admission.addresses import Proxies, limited_as
from imp_server.api.admission.rare_log import RareLog
from imp_server.config.serving import ServerSettings

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)
Stage = Literal["idle", "head", "body", "answer", "leftover", "message"]
"""idle: between requests; head: a new connection, or a head begun; body: it is being received; answer: a request is
under way; leftover: answered before its body was complete; message: one of a WebSocket is being received, and its last
bytes came then."""
Room = Literal["free", "made", "none"]

SPARE_DESCRIPTORS = 24
"""Left for files, pipes and child processes."""
_AT_ONCE = 256
"""Connections looked at before others have a turn on the event loop."""


class Open(Protocol):
    """A connection, as far as this table knows it."""

    peer: str

    def stage(self) -> tuple[Stage, float]:
        """And since when, in seconds of `time.monotonic`."""
        ...

    def n_unsent(self) -> tuple[int, int]:
        """Bytes of answers that wait to be sent, and bytes sent so far."""
        ...

    def end_late_head(self) -> None: ...

    def abort(self) -> None: ...


class Connections:
    """Owner of the open connections, oldest first. Used from one event loop."""

    def __init__(self, server: ServerSettings, proxies: Proxies) -> None:
        self._server = server
        self._proxies = proxies
        self._open: dict[Open, tuple[int, float]] = {}
        """-> bytes sent when it was last seen to get on with sending, and when that was."""
        self._closing: set[Open] = set()
        """Aborted, and not gone yet."""
        self._per_address = Counter[str]()
        self._n_others = _descriptors_in_use() or 64
        """Descriptors that aren't connections, as last counted."""
        self.log = RareLog(_log)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def limit(self) -> int:
        return max(4, min(self._server.max_connections, _descriptor_limit() - self._n_others - SPARE_DESCRIPTORS))

    def room(self, n_joining: int = 0) -> Room:
        """For one more connection. `made`: one was closed for it, and its descriptor is free in the loop's next turn.

        `n_joining`: connections that were taken and aren't in the table yet.
        """
        if len(self._open) + n_joining < self.limit:
            return "free"
        if self._closing or n_joining:
            return "made"
        victim = self._dispensable()
        if victim is None:
            self.log.note("every connection has a request under way: a new one was refused")
            return "none"
        self.log.note("too many connections: the oldest without a request under way was closed")
        self._closing.add(victim)
        victim.abort()
        return "made"

    def may_join(self, peer: str) -> bool:
        """The limit per address. Its own for each client: proxies bring many."""
        limit, whom = self._server.max_connections_per_address, limited_as(peer)
        if not limit or not whom or self._proxies.trusts(peer) or self._per_address[whom] < limit:
            return True
        self.log.note("one address has as many connections as it may: one more was refused")
        return False

    def add(self, connection: Open) -> None:
        self._open[connection] = (0, time.monotonic())
        if whom := limited_as(connection.peer):
            self._per_address[whom] += 1

    def remove(self, connection: Open) -> None:
        self._closing.discard(connection)
        if self._open.pop(connection, None) is None:
            return
        whom = limited_as(connection.peer)
        self._per_address[whom] -= 1
        if self._per_address[whom] <= 0:
            del self._per_address[whom]

    def _dispensable(self) -> Open | None:
        """The oldest whose request hasn't begun, else the oldest whose request isn't complete."""
        for wanted in (("idle", "head", "leftover"), ("body", "message")):
            found = next((one for one in self._open if one.stage()[0] in wanted), None)
            if found is not None:
                return found
        return None

    async def watch(self) -> None:
        """Closes what has taken too long; runs until cancelled."""
        server = self._server
        pause_s = min(1.0, server.head_timeout_s / 4, server.send_timeout_s / 4)
        while True:
            await asyncio.sleep(pause_s)
            if (in_use := _descriptors_in_use()) is not None:
                self._n_others = max(0, in_use - len(self._open))
            everyone = list(self._open)
            for start in range(0, len(everyone), _AT_ONCE):
                for one in everyone[start : start + _AT_ONCE]:
                    try:
                        if one in self._open:
                            self._look_at(one, time.monotonic())
                    except Exception:
                        _log.exception("can't tell how a connection stands")
                        self.remove(one)
                await asyncio.sleep(0)

    def _look_at(self, one: Open, now: float) -> None:
        stage, since = one.stage()
        if stage in ("head", "leftover") and now - since > self._server.head_timeout_s:
            self.log.note("the head of a request took too long: its connection was closed")
            one.end_late_head()
        elif stage == "message" and now - since > self._server.body_timeout_s:
            self.log.note("a WebSocket message came too slowly: its connection was closed")
            one.abort()
        n_unsent, n_sent = one.n_unsent()
        n_before, when = self._open.get(one, (0, now))
        if not n_unsent or n_sent > n_before:
            self._open[one] = (n_sent, now)
        elif now - when > self._server.send_timeout_s:
            self.log.note("a client read nothing of its answer for too long: its connection was closed")
            one.abort()


def _descriptor_limit() -> int:
    if resource is None:
        return 1 << 20
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def _descriptors_in_use() -> int | None:
    """None where it can't be told: elsewhere than on Linux, and when not even one is left to look."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None
