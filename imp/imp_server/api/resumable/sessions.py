"""All resumable streams of a server, by key and name: who may begin one, find one, end one, and what makes room."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from imp_server.api.disconnect import DisconnectWatch
from imp_server.api.resumable.session import Keeping, OffsetLost, SessionReader, StreamKey, StreamSession
from imp_server.config.serving import StreamSettings
from imp_server.core import InvalidRequest, NotFound, Overloaded, Unavailable
from imp_server.core.owner import Owner
from imp_server.dialects.resumable import StreamRow

_AGAIN_S = 2.0
"""When to ask again for a stream whose request hasn't been accepted yet."""
_LAST_S = 0.5
"""What streams that are cut by the end of the server get to say so."""
_VARIANT = "::"
"""Between the name of a conversation and what tells its variants apart."""


class StreamNotFound(NotFound):
    default_code = "stream_not_found"


class RequestCancelled(InvalidRequest):
    default_code = "request_cancelled"


@dataclass(slots=True, eq=False)
class Reservation:
    """A name that a request has taken and that is no session yet. `watch`: what the request does for it."""

    key: StreamKey
    ticket: int
    """Later ones are higher."""
    watch: DisconnectWatch = field(default_factory=lambda: DisconnectWatch(None))

    @property
    def is_cancelled(self) -> bool:
        return self.watch.is_gone


class StreamSessions:
    """Owner of the sessions and of the names reserved for others. Used from one event loop."""

    def __init__(self, knobs: StreamSettings) -> None:
        self.knobs = knobs
        self._sessions: dict[StreamKey, StreamSession] = {}
        self._done: dict[StreamKey, StreamSession] = {}
        """Those of `_sessions` that have ended, the oldest first."""
        self._reserved: dict[StreamKey, list[Reservation]] = {}
        self._running: set[StreamSession] = set()
        """Whose task hasn't ended, those that were cut included."""
        self._tickets = itertools.count()
        self._n_bytes = 0

    @property
    def n_bytes(self) -> int:
        """Held by all rings."""
        return self._n_bytes

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, owner: Owner) -> OwnStreams:
        return OwnStreams(self, owner)

    # --- the life of a session ------------------------------------------------------------------

    def reserve(self, key: StreamKey) -> Reservation:
        """Raises Overloaded where only live streams could make room."""
        live = {k for k, session in self._sessions.items() if not session.is_done} | self._reserved.keys()
        is_full = len(live - {key}) >= self.knobs.max_sessions or (
            self._n_bytes >= self.knobs.max_mib << 20 and not self._done
        )
        if is_full:
            raise Overloaded(
                f"{len(live)} resumable streams are being written, and there is no room for another one "
                "(streams.max_sessions, streams.max_mib); try again, or wait for the answer without X-Conversation-Id "
                "and background",
                retry_after_s=5.0,
            )
        reservation = Reservation(key, next(self._tickets))
        self._reserved.setdefault(key, []).append(reservation)
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Nothing comes of it, or it has become a session. Idempotent."""
        own = self._reserved.get(reservation.key, [])
        if reservation in own:
            own.remove(reservation)
        if not own:
            self._reserved.pop(reservation.key, None)

    def accept(self, reservation: Reservation, shape: str) -> StreamSession:
        """The session; older ones and older requests of the same name end. Raises RequestCancelled.

        `shape`: of errors of its dialect.
        """
        if reservation.is_cancelled:
            raise cancelled()
        key = reservation.key
        self.release(reservation)
        for other in list(self._reserved.get(key, ())):
            if other.ticket < reservation.ticket:
                other.watch.leave()
        if (older := self._sessions.get(key)) is not None:
            self._cut(older)
        while len(self._sessions) >= self.knobs.max_sessions and self._done:
            self._make_room()
        session = StreamSession(self, key, reservation.watch, shape)
        self._sessions[key] = session
        self._running.add(session)
        return session

    def note_growth(self, n_bytes: int) -> None:
        """A ring holds so many more."""
        self._n_bytes += n_bytes
        while self._n_bytes > self.knobs.max_mib << 20:
            if self._done:
                self._make_room()
                continue
            largest = max(self._sessions.values(), key=lambda session: len(session.ring)).ring
            n_before = len(largest)
            largest.drop(self._n_bytes - (self.knobs.max_mib << 20))
            self._n_bytes -= n_before - len(largest)

    def note_end(self, session: StreamSession) -> None:
        """Its task ends."""
        self._running.discard(session)
        if session.key.keeping == "nothing":
            self._cut(session)
        elif not session.is_cut:
            self._done[session.key] = session

    def look(self) -> None:
        """Ends what nobody reads, and forgets what ended long ago. Called about once a second."""
        now_s = time.monotonic()
        for session in list(self._done.values()):
            if now_s - session.ended_s >= self.knobs.replay_s:
                self._cut(session, _FORGOTTEN)
        limit_s = self.knobs.detached_s
        for session in self._sessions.values():
            is_left = session.key.keeping == "bytes" and not session.n_readers
            if limit_s and is_left and now_s - session.unread_since_s >= limit_s:
                session.fail(Unavailable(f"nobody has read this stream for {limit_s:g} s (streams.detached_s)"))

    async def close(self) -> None:
        """The server ends: what still runs has a moment to end as it likes."""
        tasks = [asyncio.ensure_future(session.ended()) for session in self._running]
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_S)
        for session in list(self._sessions.values()):
            self._cut(session)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what one owner sees --------------------------------------------------------------------

    def find(self, key: StreamKey) -> StreamSession:
        """Raises StreamNotFound; Unavailable while the request of this name hasn't been accepted."""
        if (session := self._sessions.get(key)) is not None:
            return session
        if key in self._reserved:
            message = "the request of this stream hasn't been accepted yet, its model may be loading; ask again"
            raise Unavailable(message, code="stream_not_begun", retry_after_s=_AGAIN_S)
        raise StreamNotFound("Stream not found or expired; send the request again")

    def stop(self, key: StreamKey) -> None:
        for reservation in list(self._reserved.get(key, ())):
            reservation.watch.leave()
        if (session := self._sessions.get(key)) is not None:
            self._cut(session)

    def owned(self, owner: Owner) -> list[StreamSession]:
        """Those with a name, the oldest first."""
        own = ((key, session) for key, session in self._sessions.items() if key.owner == owner)
        return [session for key, session in own if key.keeping == "bytes"]

    # --- room -----------------------------------------------------------------------------------

    def _make_room(self) -> None:
        self._cut(next(iter(self._done.values())), _FORGOTTEN)

    def _cut(self, session: StreamSession, lost: str = "") -> None:
        self._n_bytes -= len(session.ring)
        self._sessions.pop(session.key, None)
        self._done.pop(session.key, None)
        session.cut(lost)


_FORGOTTEN = "this stream ended a while ago and its bytes are no longer kept; send the request again"


def cancelled() -> RequestCancelled:
    return RequestCancelled("the request was cancelled: its stream was deleted, or a later request took its name")


class OwnStreams:
    """What one owner's requests see of the sessions."""

    def __init__(self, sessions: StreamSessions, owner: Owner) -> None:
        self._sessions = sessions
        self._owner = owner

    def reader(self, name: str, offset: int) -> SessionReader:
        return self._sessions.find(StreamKey(self._owner, name)).reader(offset)

    def stop(self, name: str) -> None:
        self._sessions.stop(StreamKey(self._owner, name))

    def rows(self, names: Sequence[str]) -> list[StreamRow]:
        """Of the streams that have one of these names, or one of them, "::" and more; in the order of the names."""
        order = {name: i for i, name in reversed(list(enumerate(names)))}
        found = []
        for session in self._sessions.owned(self._owner):
            asked = [order[name] for name in _prefixes(session.key.name) if name in order]
            if asked:
                found.append((min(asked), session))
        found.sort(key=lambda entry: entry[0])
        return [StreamRow(s.key.name, s.is_done, s.ring.end, int(s.started_s), int(s.completed_s)) for _, s in found]


class OwnBackground:
    """What one owner's requests see of the responses that are made without a client."""

    def __init__(self, sessions: StreamSessions, owner: Owner) -> None:
        self._sessions = sessions
        self._owner = owner

    def events(self, response_id: str, after: int) -> SessionReader:
        try:
            session = self._sessions.find(StreamKey(self._owner, response_id, "events"))
        except NotFound:
            message = "its events are no longer kept; ask for the response without stream"
            raise OffsetLost(message, param="stream") from None
        return session.reader_of_events(after)

    def stop(self, response_id: str) -> None:
        for keeping in _OF_RESPONSES:
            self._sessions.stop(StreamKey(self._owner, response_id, keeping))


_OF_RESPONSES: tuple[Keeping, ...] = ("events", "nothing")


def _prefixes(name: str) -> list[str]:
    """By what names a stream is found: its own, and what stands before each "::"."""
    parts = name.split(_VARIANT)
    return [_VARIANT.join(parts[:n]) for n in range(1, len(parts) + 1)]
