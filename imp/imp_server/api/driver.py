"""The one way from a prepared prompt to an answer, for all dialects: submit, follow the deltas, fold or stream.

A request is accepted by the engine before the first byte is sent, so every error until then is a plain
HTTP status; afterwards it is the dialect's error frame. The client's going away cancels the generation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from imp_server.api.disconnect import DisconnectWatch
from imp_server.api.sse import KEEP_ALIVE, encode_frame
from imp_server.api.text_side import Prepared, Session
from imp_server.core import EngineFaulted, Failed, ImpError, InternalError, Logprobs, OutputEvent
from imp_server.dialects.base import Fold, ReplyContext, SseFrame, Stream
from imp_server.dialects.handler import Generating, Pings
from imp_server.engine.client import EngineClient, Generation

_log = logging.getLogger("imp.api")


@dataclass(slots=True)
class Live:
    """An accepted generation and its text. `first_choice` is added to the choice of its events."""

    generation: Generation
    session: Session
    first_choice: int


async def accept(client: EngineClient, prompts: Sequence[Prepared], watch: DisconnectWatch) -> list[Live]:
    """Submits every prompt; either all are accepted or the first error is raised and nothing runs on."""
    live: list[Live] = []
    first_choice = 0
    try:
        for prompt in prompts:
            request = msgspec.structs.replace(prompt.request, key=client.new_key())
            generation = await client.submit(request)
            live.append(Live(generation, prompt.session(), first_choice))
            first_choice += request.n
    except BaseException:
        cancel(live)
        raise
    watch.when_gone(lambda: cancel(live))
    return live


def tell_acceptance(context: ReplyContext, live: Sequence[Live]) -> None:
    """What a dialect may know from acceptance on (ReplyContext.extra)."""
    context.extra["prompt_tokens"] = sum(one.generation.prompt_tokens for one in live)
    context.extra["cancel"] = partial(cancel, live)


def cancel(live: Sequence[Live]) -> None:
    for one in live:
        one.generation.cancel()


async def events(live: Sequence[Live]) -> AsyncIterator[list[OutputEvent]]:
    """The events of one hand-off at a time. Raises an ImpError when a generation fails."""
    if len(live) == 1:
        async for batch in _follow(live[0]):
            yield batch
        return
    queue: asyncio.Queue[list[OutputEvent] | BaseException | None] = asyncio.Queue(len(live))
    tasks = [asyncio.get_running_loop().create_task(_pump(one, queue)) for one in live]
    try:
        n_open = len(tasks)
        while n_open:
            item = await queue.get()
            if item is None:
                n_open -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()


async def _follow(one: Live) -> AsyncIterator[list[OutputEvent]]:
    async for delta in one.generation:
        batch = one.session.feed(delta)
        for event in batch:
            if isinstance(event, Failed):
                raise EngineFaulted(event.message, code=event.code)
        batch.sort(key=_text_last)
        if one.first_choice:
            batch = [msgspec.structs.replace(e, choice=e.choice + one.first_choice) for e in batch]
        if batch:
            yield batch


def _text_last(event: OutputEvent) -> bool:
    """Logprobs go before the text of their hand-off, so that a chunk can carry both."""
    return not isinstance(event, Logprobs)


async def _pump(one: Live, queue: asyncio.Queue[list[OutputEvent] | BaseException | None]) -> None:
    try:
        async for batch in _follow(one):
            await queue.put(batch)
        await queue.put(None)
    except Exception as error:
        await queue.put(error)


async def fold_reply(reply: Generating, live: Sequence[Live], watch: DisconnectWatch) -> Any:
    """The whole reply as JSON; None if the client has gone."""
    fold = reply.fold(reply.context)
    try:
        async for batch in events(live):
            for event in batch:
                fold.feed(event)
        if watch.is_gone:
            return None
        body = fold.body()
        if reply.keep is not None:
            await reply.keep(body)
        return body
    finally:
        cancel(live)


class StreamRun:
    """Owner of one streamed reply from its first frame to its last."""

    def __init__(self, reply: Generating, live: Sequence[Live], watch: DisconnectWatch, keep_alive_s: float) -> None:
        self._reply = reply
        self._live = live
        self._watch = watch
        self._keep_alive_s = keep_alive_s or None
        self._stream: Stream = reply.stream(reply.context)
        self._fold: Fold | None = reply.fold(reply.context) if reply.keep is not None else None

    async def frames(self) -> AsyncGenerator[SseFrame | None, None]:
        """Frame by frame; None = nothing has happened for a while."""
        try:
            for frame in self._stream.open():
                yield frame
            async for batch in self._with_silences():
                if batch is None:
                    for silence in self._stream.ping() if isinstance(self._stream, Pings) else (None,):
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
            for frame in self._stream.fail(error):
                yield frame
        except Exception:
            _log.exception("a stream of request %s failed", self._reply.context.request_id)
            for frame in self._stream.fail(InternalError("internal error; the server's log has the details")):
                yield frame
        finally:
            cancel(self._live)
            self._watch.close()

    async def _with_silences(self) -> AsyncIterator[list[OutputEvent] | None]:
        iterator = events(self._live)
        while True:
            step = asyncio.ensure_future(anext(iterator, _END))
            while not (await asyncio.wait((step,), timeout=self._keep_alive_s))[0]:
                yield None
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
