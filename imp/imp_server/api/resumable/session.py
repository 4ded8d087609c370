"""One generation that is nobody's connection: its bytes as they come, and the readers that follow them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Literal, NamedTuple, Protocol

import msgspec

from imp_server.api.disconnect import DisconnectWatch
from imp_server.api.errors import shape_module
from imp_server.api.resumable.ring import Ring
from imp_server.api.sse import encode_frame
from imp_server.config.serving import StreamSettings
from imp_server.core import ImpError, InvalidRequest
from imp_server.core.owner import Owner
from imp_server.dialects.base import SseFrame

_log = logging.getLogger(__name__)
_MOST_MARKS = 1 << 16
"""Events that can be asked for by number."""
_PIECE = 64 << 10
"""Bytes that a reader takes at once."""


Keeping = Literal["bytes", "events", "nothing"]
"""What can be asked for again. bytes: by the name that a client chose, from an offset, and one that nobody reads ends.
events: of a response made without a client, from a number. nothing: of one that has no stream."""


class StreamKey(NamedTuple):
    owner: Owner
    name: str
    """As its client calls it, or the id of a response."""
    keeping: Keeping = "bytes"


class OffsetLost(InvalidRequest):
    default_code = "stream_offset_lost"


class SessionsOwner(Protocol):
    """Who keeps sessions, as each of them sees him."""

    @property
    def knobs(self) -> StreamSettings: ...

    def note_growth(self, n_bytes: int) -> None: ...

    def note_end(self, session: StreamSession) -> None: ...


class StreamSession:
    """Owner of a generation's task and of its last bytes. Readers never hold it up."""

    def __init__(self, sessions: SessionsOwner, key: StreamKey, watch: DisconnectWatch, shape: str) -> None:
        """`watch`: what ends when nobody wants the generation any more. `shape`: of errors of its dialect."""
        self.key = key
        self.ring = Ring(sessions.knobs.ring_kib << 10)
        self.started_s = time.time()
        self.completed_s = 0.0
        """Unix seconds; 0 while it goes on."""
        self.ended_s = 0.0
        """The same moment in seconds of `time.monotonic`."""
        self.is_cut = False
        """Nobody can find it any more, and what is left of it isn't read."""
        self.lost: str = ""
        """Why readers that are not at the end get an error."""
        self.events = EventMarks()
        self.n_readers = 0
        self.unread_since_s = time.monotonic()
        self._sessions = sessions
        self._watch = watch
        self._shape = shape
        self._waiting: set[asyncio.Future[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False
        self._failure: ImpError | None = None

    @property
    def is_done(self) -> bool:
        return self.completed_s > 0

    # --- the generation -------------------------------------------------------------------------

    def begin(
        self,
        chunks: AsyncGenerator[bytes, None],
        failed: Callable[[ImpError], Awaitable[list[SseFrame]]],
        let_go: Callable[[], None],
    ) -> None:
        """`failed`: the last frames of a stream that an error ends. `let_go`: called behind the last byte."""
        self._task = asyncio.get_running_loop().create_task(self._run(chunks, failed, let_go))

    async def _run(
        self,
        chunks: AsyncGenerator[bytes, None],
        failed: Callable[[ImpError], Awaitable[list[SseFrame]]],
        let_go: Callable[[], None],
    ) -> None:
        self._has_begun = True
        if self._failure is not None:
            self._cancel()
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    self._append(chunk)
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            for frame in await failed(self._failure):
                self._append(encode_frame(frame))
        except Exception:  # the stream itself tells of its errors
            _log.exception("a resumable stream failed")
        finally:
            let_go()
            self.completed_s, self.ended_s = time.time(), time.monotonic()
            self._sessions.note_end(self)
            self.wake()

    def _append(self, chunk: bytes) -> None:
        if self.is_cut or self.key.keeping == "nothing":
            return
        if self.key.keeping == "events" and chunk.startswith(b"event: "):
            self.events.note(self.ring.end)
        n_before = len(self.ring)
        self.ring.append(chunk)
        self._sessions.note_growth(len(self.ring) - n_before)
        self.wake()

    def fail(self, error: ImpError) -> None:
        """The stream ends with the error of its dialect, and can be read as any other."""
        if self._task is not None and not self._task.done() and self._failure is None:
            self._failure = error
            if self._has_begun:  # else nothing would run that lets go of what the generation holds
                self._cancel()

    def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()

    def cut(self, lost: str = "") -> None:
        """Stops the generation and gives up its bytes. `lost`: what readers are told who haven't read to the end."""
        self.is_cut, self.lost = True, lost
        self._watch.leave()
        self.ring.clear()
        self.wake()

    async def ended(self) -> None:
        """Waits for the task; cancelling the wait cancels it."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    # --- readers --------------------------------------------------------------------------------

    def reader(self, offset: int) -> SessionReader:
        """Raises OffsetLost if bytes from `offset` on are gone already."""
        if offset < self.ring.start:
            raise OffsetLost(_gone(self.ring.start), param="from")
        return SessionReader(self, offset)

    def reader_of_events(self, after: int) -> SessionReader:
        """Of those with a higher number. Raises OffsetLost; InvalidRequest if there is no event `after` yet."""
        if after >= self.events.n:
            message = f"no event has the number {after} yet"
            raise InvalidRequest(message, param="starting_after", code="stream_not_begun")
        offset = self.events.offset(after + 1, self.ring.end)
        if offset is None or offset < self.ring.start:
            raise OffsetLost("the events behind this one are no longer kept", param="starting_after")
        return SessionReader(self, offset)

    async def change(self) -> None:
        """Until there are more bytes, there is an end, or somebody calls `wake`."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)

    def wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def error(self, error: ImpError) -> bytes:
        """In the stream's own place: what was read before it ends with a whole event."""
        body = shape_module(self._shape).error_body(error, "")
        return encode_frame(SseFrame(msgspec.json.encode(body), "error"))


class EventMarks:
    """Where the events of a stream begin; their numbers count from 0."""

    def __init__(self) -> None:
        self._offsets: deque[int] = deque(maxlen=_MOST_MARKS)
        self.n = 0
        """That have come."""

    def note(self, offset: int) -> None:
        self._offsets.append(offset)
        self.n += 1

    def offset(self, number: int, end: int) -> int | None:
        """`end`: of what has come, where the next event begins. None: it is too long ago."""
        if number == self.n:
            return end
        place = number - (self.n - len(self._offsets))
        return self._offsets[place] if place >= 0 else None


def _gone(start: int) -> str:
    return f"the bytes at this offset are no longer kept; the first that are have offset {start}"


class SessionReader:
    """Follows a session from one offset on. Owner of its place in it."""

    def __init__(self, session: StreamSession, offset: int) -> None:
        self._session = session
        self._offset = offset
        self._has_left = False

    def leave(self) -> None:
        """Its client has gone."""
        self._has_left = True
        self._session.wake()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Whole events, except where the reader began inside of one; an error at the end if it was too slow."""
        session, ring = self._session, self._session.ring
        session.n_readers += 1
        try:
            while not self._has_left:
                if session.is_cut:
                    if session.lost and self._offset < ring.end:
                        yield session.error(OffsetLost(session.lost))
                    return
                if self._offset < ring.start:
                    yield session.error(OffsetLost(f"read too slowly: {_gone(ring.start)}"))
                    return
                if self._offset < ring.end:
                    piece = ring.read(self._offset, _PIECE)
                    self._offset += len(piece)
                    yield piece
                elif session.is_done:
                    return
                else:
                    await session.change()
        finally:
            session.n_readers -= 1
            session.unread_since_s = time.monotonic()
