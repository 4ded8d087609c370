"""Sessions without a server: what slow readers get, and how much all of them hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest
from imp_server.api.resumable import StreamSessions
from imp_server.api.resumable.session import OffsetLost, StreamKey, StreamSession
from imp_server.config.serving import StreamSettings
from imp_server.core import ImpError, Overloaded
from imp_server.core.owner import NOBODY, Owner
from imp_server.dialects.base import SseFrame

EVENT = b"data: " + b"x" * 94 + b"\n\n"


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 10))

    run.__name__ = test.__name__
    return run


class Tap:
    """A generation that writes what the test gives it."""

    def __init__(self, sessions: StreamSessions, name: str = "s", shape: str = "openai", owner: Owner = NOBODY) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.session: StreamSession = sessions.accept(sessions.reserve(StreamKey(owner, name)), shape)
        self.session.begin(self._chunks(), self._failed, lambda: None)

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        while (chunk := await self._queue.get()) is not None:
            yield chunk

    async def _failed(self, _error: ImpError) -> list[Any]:
        return []

    async def write(self, *chunks: bytes | None) -> None:
        """None ends it."""
        for chunk in chunks:
            self._queue.put_nowait(chunk)
        while not self._queue.empty():
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)


def numbered(n: int) -> list[bytes]:
    return [b"data: %094d\n\n" % i for i in range(n)]


async def rest(chunks: AsyncGenerator[bytes, None]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


@on_a_loop
async def test_one_that_fails_before_its_first_step_lets_go_of_all_it_holds() -> None:
    told = list[str]()

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            yield EVENT
            await asyncio.sleep(60)
        finally:
            told.append("closed")

    async def failed(error: ImpError) -> list[SseFrame]:
        return [SseFrame(error.message.encode())]

    sessions = StreamSessions(StreamSettings())
    session = sessions.accept(sessions.reserve(StreamKey(NOBODY, "s")), "openai")
    session.begin(chunks(), failed, lambda: told.append("let go"))
    session.fail(Overloaded("x"))
    await session.ended()
    assert told == ["closed", "let go"] and session.is_done and session not in sessions._running
    assert await rest(session.reader(0).chunks()) == EVENT + b"data: x\n\n"


@on_a_loop
async def test_a_reader_that_falls_behind_is_told() -> None:
    for shape, kind in (("openai", "invalid_request_error"), ("anthropic", "invalid_request_error")):
        tap = Tap(StreamSessions(StreamSettings(ring_kib=1)), shape=shape)
        events = numbered(30)
        await tap.write(events[0])
        slow = tap.session.reader(0).chunks()
        assert await anext(slow) == events[0]
        quick = asyncio.ensure_future(rest(tap.session.reader(0).chunks()))
        for event in events[1:]:
            await tap.write(event)
        name, data = (await rest(slow)).decode().strip().split("\n")
        error = json.loads(data.removeprefix("data: "))["error"]
        assert name == "event: error" and error["type"] == kind
        assert "read too slowly" in error["message"] and f"offset {tap.session.ring.start}" in error["message"]
        await tap.write(None)
        assert await quick == b"".join(events), "one that keeps up loses nothing"
        with pytest.raises(OffsetLost):
            tap.session.reader(tap.session.ring.start - 1)
        for offset in range(tap.session.ring.start, tap.session.ring.end + 2):
            assert await rest(tap.session.reader(offset).chunks()) == b"".join(events)[offset:]


@on_a_loop
async def test_a_reader_of_what_makes_room_is_told_too() -> None:
    sessions = StreamSessions(StreamSettings(max_sessions=1))
    tap = Tap(sessions)
    await tap.write(*numbered(3), None)
    late, done = tap.session.reader(0).chunks(), tap.session.reader(2 * len(EVENT)).chunks()
    assert await anext(done) == numbered(3)[2]
    Tap(sessions, "other")
    assert b'"stream_offset_lost"' in await rest(late)
    assert await rest(done) == b"", "it had everything"


@on_a_loop
async def test_all_of_them_together_hold_no_more_than_they_may() -> None:
    sessions = StreamSessions(StreamSettings(max_mib=1, ring_kib=600))
    ended = [Tap(sessions, f"ended {i}") for i in range(3)]
    for tap in ended:
        await tap.write(*[EVENT] * 4000, None)
        assert len(tap.session.ring) <= 410_000 and sessions.n_bytes <= 1 << 20
    assert [tap.session.is_cut for tap in ended] == [True, False, False]
    live = [Tap(sessions, f"live {i}") for i in range(3)]
    for _ in range(50):
        for tap in live:
            await tap.write(*[EVENT] * 200)
            assert sessions.n_bytes <= 1 << 20
            assert sessions.n_bytes == sum(len(s.ring) for s in sessions.owned(NOBODY))
    assert all(tap.session.is_cut for tap in ended) and not any(tap.session.is_cut for tap in live)
    assert min(len(tap.session.ring) for tap in live) > (1 << 20) // 4, "what one loses is lost by the largest"
    for tap in live:
        assert tap.session.ring.end == 50 * 200 * len(EVENT) and tap.session.ring.start % len(EVENT) == 0
    sessions = StreamSessions(StreamSettings(max_mib=1, ring_kib=2048))
    await Tap(sessions).write(*[EVENT] * ((1 << 20) // len(EVENT)), EVENT)
    assert sessions.n_bytes <= 1 << 20


@on_a_loop
async def test_live_ones_that_hold_everything_leave_no_room() -> None:
    sessions = StreamSessions(StreamSettings(max_mib=1, ring_kib=2048))
    tap = Tap(sessions)
    await tap.write(b"data: " + b"x" * (1 << 20) + b"\n\n")
    assert sessions.n_bytes == 1 << 20
    with pytest.raises(Overloaded):
        sessions.reserve(StreamKey(NOBODY, "another"))
    await tap.write(None)
    sessions.release(sessions.reserve(StreamKey(NOBODY, "another")))


@on_a_loop
async def test_reservations_count_and_are_given_back() -> None:
    sessions = StreamSessions(StreamSettings(max_sessions=2))
    first, second = sessions.reserve(StreamKey(NOBODY, "a")), sessions.reserve(StreamKey(Owner("k"), "a"))
    again = sessions.reserve(StreamKey(NOBODY, "a"))
    with pytest.raises(Overloaded):
        sessions.reserve(StreamKey(NOBODY, "b"))
    sessions.release(first)
    sessions.release(first)
    with pytest.raises(Overloaded):
        sessions.reserve(StreamKey(NOBODY, "b"))
    sessions.release(again)
    sessions.release(sessions.reserve(StreamKey(NOBODY, "b")))
    assert len(sessions) == 0
    tap = Tap(sessions, "b")
    with pytest.raises(ImpError) as caught:
        sessions.find(StreamKey(Owner("k"), "a"))
    assert caught.value.status == 503 and sessions.find(StreamKey(NOBODY, "b")) is tap.session
    sessions.release(second)


@on_a_loop
async def test_an_end_leaves_nothing_behind() -> None:
    sessions, before = StreamSessions(StreamSettings()), asyncio.all_tasks()
    taps = [Tap(sessions, str(i)) for i in range(20)]
    for tap in taps:
        await tap.write(EVENT)
    readers = [asyncio.ensure_future(rest(tap.session.reader(0).chunks())) for tap in taps]
    await asyncio.sleep(0)
    await sessions.close()
    assert await asyncio.gather(*readers) == [EVENT] * 20
    assert len(sessions) == sessions.n_bytes == 0
    assert asyncio.all_tasks() == before
