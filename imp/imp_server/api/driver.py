"""The one way from a prepared prompt to an answer, for all dialects: submit, follow the deltas, fold or stream.

A request is accepted by the engine before the first byte is sent, so every error until then is a plain
HTTP status; afterwards it is the dialect's error frame. The client's going away cancels the generation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from imp_server.api.disconnect import DisconnectWatch
from imp_server.api.generations import Generations
from imp_server.api.sse import KEEP_ALIVE, encode_frame
from imp_server.core import ImpError, InternalError, OutputEvent, Vectors
from imp_server.dialects.base import AcceptedPrompts, Fold, SseFrame, Stream
from imp_server.dialects.handler import Generate, KeepsFailures, OpensLate, Pings
from imp_server.text.session import Prepared

_log = logging.getLogger(__name__)


def acceptance(running: Generations, prompts: Sequence[Prepared]) -> AcceptedPrompts:
    """Of generations that the engine has accepted."""
    return AcceptedPrompts(
        usage=running.usage_at_acceptance(),
        prompt_texts=tuple(prompt.prompt_text for prompt in prompts),
        sampling=tuple(prompt.request.sampling for prompt in prompts),
        pin_until=prompts[0].request.cache.pin_until,
        hour_until=prompts[0].request.cache.hour_until,
        cancel=running.end,
    )


async def fold_reply(reply: Generate, running: Generations, watch: DisconnectWatch) -> Any:
    """The whole reply as JSON; None if the client has gone."""
    fold = reply.fold(reply.context)
    try:
        async for batch in running.events():
            for event in batch:
                fold.feed(event)
                if isinstance(event, Vectors):
                    await asyncio.sleep(0)  # each takes its time to write
        if watch.is_gone:
            return None
        body = fold.body()
        if reply.keep is not None:
            await reply.keep(body)
        return body
    finally:
        running.end()


def silence_s(body: Mapping[str, Any], own_s: float) -> float:
    """Seconds of silence after which a stream shows life; 0 = never. llama.cpp's sse_ping_interval chooses them."""
    asked = body.get("sse_ping_interval", 0)
    return own_s if asked == 0 else max(0.0, float(asked))


class StreamRun:
    """Owner of one streamed reply from its first frame to its last."""

    def __init__(self, reply: Generate, running: Generations, watch: DisconnectWatch, keep_alive_s: float) -> None:
        self._reply = reply
        self._running = running
        self._watch = watch
        self._keep_alive_s = keep_alive_s or None
        if reply.stream is None:
            raise RuntimeError("this operation has no stream")
        self._stream: Stream = reply.stream(reply.context)
        self._fold: Fold | None = reply.fold(reply.context) if reply.keep is not None else None

    async def frames(self) -> AsyncGenerator[SseFrame | None, None]:
        """Frame by frame; None = nothing has happened for a while."""
        try:
            for frame in self._stream.open():
                yield frame
            async for batch in self._with_silences():
                if batch is None:
                    for silence in self._silence():
                        yield silence
                    continue
                for event in batch:
                    if self._fold is not None:
                        self._fold.feed(event)
                    for frame in self._stream.feed(event):
                        yield frame
            if self._watch.is_gone:
                return
            if self._fold is not None and self._reply.keep is not None:
                await self._reply.keep(self._fold.body())
            for frame in self._stream.close():
                yield frame
        except ImpError as error:
            for frame in await self.failed(error):
                yield frame
        except Exception:
            _log.exception("the stream of %s failed", self._reply.context.id)
            for frame in await self.failed(InternalError("internal error; the server's log has the details")):
                yield frame
        finally:
            self._running.end()
            self._watch.close()

    async def failed(self, error: ImpError) -> list[SseFrame]:
        """The last frames of a stream that ends with an error."""
        if isinstance(self._stream, KeepsFailures) and self._reply.keep is not None:
            await self._reply.keep(self._stream.as_failed(error))
        return self._stream.fail(error)

    def _silence(self) -> Sequence[SseFrame | None]:
        if isinstance(self._stream, OpensLate) and (opening := self._stream.open_now()):
            return opening
        return self._stream.ping() if isinstance(self._stream, Pings) else (None,)

    async def _with_silences(self) -> AsyncIterator[list[OutputEvent] | None]:
        iterator = self._running.events()
        limit_s = self._stream.opening_wait_s if isinstance(self._stream, OpensLate) else self._keep_alive_s
        while True:
            step = asyncio.ensure_future(anext(iterator, _END))
            while not (await asyncio.wait((step,), timeout=limit_s))[0]:
                limit_s = self._keep_alive_s
                yield None
            limit_s = self._keep_alive_s
            batch = step.result()
            if batch is _END:
                return
            yield batch


_END: list[OutputEvent] = []


async def encoded(frames: AsyncGenerator[SseFrame | None, None]) -> AsyncGenerator[bytes, None]:
    """One chunk per event: what is yielded is one write. Never empty, which would end the response."""
    async with aclosing(frames):
        async for frame in frames:
            yield KEEP_ALIVE if frame is None else encode_frame(frame)
