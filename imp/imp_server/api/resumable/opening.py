"""A streamed POST on its way to a session: from the name that it reserves to the first byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

from imp_server.api.body import ClientGone
from imp_server.api.disconnect import DisconnectWatch
from imp_server.api.model_host import ModelHost
from imp_server.api.resumable.session import StreamKey
from imp_server.api.resumable.sessions import Reservation, StreamSessions, cancelled
from imp_server.core import ImpError, ModelLoading
from imp_server.core.errand import NotWanted
from imp_server.dialects.base import SseFrame
from imp_server.dialects.resumable import Readable

_LOOK_S = 0.05
Chunks = Callable[[], AsyncGenerator[bytes, None]]


class Resumable:
    """Owner of a request's reservation, which ends with the block if nothing has come of it.

    Raises RequestCancelled out of the block if that is why the request was given up.
    """

    def __init__(self, streams: StreamSessions, key: StreamKey, client: DisconnectWatch, shape: str) -> None:
        """`client`: the connection that sent it, which may go whenever it likes. `shape`: of errors of its dialect.

        Raises Overloaded.
        """
        self._streams = streams
        self._client = client
        self._shape = shape
        self._reservation: Reservation = streams.reserve(key)
        if key.keeping != "bytes":  # until it is accepted nobody else knows of it
            client.when_gone(self.watch.leave)

    @property
    def watch(self) -> DisconnectWatch:
        """What the request does ends with it: when its stream is deleted or replaced."""
        return self._reservation.watch

    def __enter__(self) -> Resumable:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._streams.release(self._reservation)
        if isinstance(error, ClientGone | NotWanted) and self._reservation.is_cancelled:
            raise cancelled() from None

    async def loaded(self, host: ModelHost, limit_s: float | None) -> None:
        """Waits for a model that loads. Raises ModelLoading if that takes too long, and RequestCancelled."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + limit_s if limit_s else float("inf")
        while True:
            try:
                host.ready_text()
                return
            except ModelLoading:
                if loop.time() >= end_s:
                    raise
            await asyncio.sleep(_LOOK_S)
            if self._reservation.is_cancelled:
                raise cancelled()

    def detach(self) -> None:
        """A client that leaves from now on ends nothing. Raises ClientGone if it has, and nobody else knows of it."""
        self._client.forget()
        if self._reservation.is_cancelled:
            raise ClientGone

    def begin(
        self,
        chunks: Chunks,
        failed: Callable[[ImpError], Awaitable[list[SseFrame]]],
        let_go: Callable[[], Callable[[], None]],
    ) -> Chunks:
        """The engine has accepted: the stream goes on by itself, and what is returned is its first reader.

        `let_go`: hands over what the request holds; its result is called at the end. As StreamSession.begin else.
        """
        session = self._streams.accept(self._reservation, self._shape)
        session.begin(chunks(), failed, let_go())
        return partial(relayed, session.reader(0), self._client)


async def relayed(reader: Readable, client: DisconnectWatch) -> AsyncGenerator[bytes, None]:
    """What is read, as long as the client is there."""
    client.when_gone(reader.leave)
    try:
        async for chunk in reader.chunks():
            yield chunk
    finally:
        client.close()
