"""The client's half of every engine: requests waiting for acceptance, and the generations that receive deltas.

Everything here runs on one event loop; an engine in another thread or process hands its messages over
to `Requests.receive` there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

from imp_server.core import GenerateRequest, ImpError
from imp_server.engine.errors import error_from
from imp_server.engine.known_plans import SentPlans
from imp_server.engine.merge import merge_deltas
from imp_server.engine.messages import (
    Cancel,
    EndReasoning,
    NeedGrammar,
    ReasoningEnded,
    ReasoningVerdict,
    Rejected,
    RequestAccepted,
    RequestFailed,
    RowDelta,
    StepDone,
    Submit,
    ToEngine,
)

Send = Callable[[ToEngine], None]
RequestMessage = RequestAccepted | Rejected | NeedGrammar | StepDone | RequestFailed | ReasoningEnded


class LiveGeneration:
    """Owner of the deltas of one request that its reader hasn't taken yet."""

    def __init__(self, request: GenerateRequest, requests: Requests) -> None:
        self.request = request
        self.key = request.key
        self.prompt_tokens = len(request.ids) // 4
        self.cached_tokens = self.cache_write_tokens = 0
        self.arrived_s = time.monotonic()
        self.accepted: asyncio.Future[LiveGeneration] = asyncio.get_running_loop().create_future()
        self.has_output = False
        """Tokens reached this side: a crash may no longer be hidden by submitting again."""
        self.resubmitted = False
        self._requests = requests
        self._open = set(range(request.options.n))
        self._pending: dict[int, RowDelta] = {}
        self._error: ImpError | None = None
        self._wake: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        return not self._open or self._error is not None

    def __aiter__(self) -> AsyncIterator[RowDelta]:
        return self

    async def __anext__(self) -> RowDelta:
        while True:
            if self._pending:
                return self._pending.pop(next(iter(self._pending)))
            if self._error is not None:
                raise self._error
            if not self._open:
                raise StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None

    def cancel(self, choice: int = -1) -> None:
        gone = self._open if choice < 0 else self._open & {choice}
        if not gone or self._error is not None:
            return
        for index in list(gone):
            self._open.discard(index)
            self._pending.pop(index, None)
        self._requests.cancelled(self, choice if self._open else -1)
        self._notify()

    async def end_reasoning(self) -> ReasoningVerdict:
        return "already_closed" if self.is_over else await self._requests.end_reasoning(self.key)

    def receive(self, delta: RowDelta) -> None:
        if delta.choice not in self._open:
            return
        self.arrived_s = time.monotonic()
        self.has_output = self.has_output or bool(delta.ids or delta.vectors or delta.finish)
        earlier = self._pending.get(delta.choice)
        self._pending[delta.choice] = merge_deltas(earlier, delta) if earlier else delta
        if delta.finish is not None:
            self._open.discard(delta.choice)
        self._notify()

    def fail(self, error: ImpError) -> None:
        """The request is lost: raised where the reader (or submit) waits, after the deltas that came before."""
        if not self.accepted.done():
            self.accepted.set_exception(error)
        self._error = self._error or error
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class Requests:
    """Owner of all requests of one client that aren't over."""

    def __init__(self, send: Send, sent: SentPlans | None = None) -> None:
        """`sent`: of an engine that keeps plans; None = each request brings its own."""
        self._send = send
        self._sent = sent
        self._live: dict[int, LiveGeneration] = {}
        self._reasoning: dict[int, list[asyncio.Future[ReasoningVerdict]]] = {}
        self._last_key = 0

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[LiveGeneration]:
        return iter(list(self._live.values()))

    def new_key(self) -> int:
        self._last_key += 1
        return self._last_key

    async def submit(self, request: GenerateRequest) -> LiveGeneration:
        """Returns when the engine has accepted; raises what it rejected with."""
        generation = LiveGeneration(request, self)
        self._live[request.key] = generation
        self._send(Submit(request) if self._sent is None else self._sent.submit(request))
        try:
            return await generation.accepted
        except asyncio.CancelledError:
            generation.cancel()
            raise
        except ImpError:
            self._live.pop(request.key, None)
            raise

    def cancelled(self, generation: LiveGeneration, choice: int) -> None:
        """Tell the engine; `choice` -1 = nothing of the request is wanted any more."""
        if generation.key in self._live:
            self._send(Cancel(generation.key, choice))
            if choice < 0:
                self._forget(generation.key)

    async def end_reasoning(self, key: int) -> ReasoningVerdict:
        if key not in self._live:
            return "unknown"
        answer: asyncio.Future[ReasoningVerdict] = asyncio.get_running_loop().create_future()
        self._reasoning.setdefault(key, []).append(answer)
        self._send(EndReasoning(key))
        return await answer

    def receive(self, message: RequestMessage) -> None:
        """Take one message of the engine; unknown keys are those of cancelled requests."""
        if isinstance(message, StepDone):
            for delta in message.rows:
                self._deliver(delta)
            return
        if isinstance(message, ReasoningEnded):
            for answer in self._reasoning.pop(message.key, ()):
                if not answer.done():
                    answer.set_result(message.verdict)
            return
        generation = self._live.get(message.key)
        if generation is None:
            return
        if isinstance(message, NeedGrammar):
            self._send(Submit(generation.request))
        elif isinstance(message, RequestAccepted):
            generation.prompt_tokens = message.prompt_tokens
            generation.cached_tokens, generation.cache_write_tokens = message.n_cached, message.n_to_cache
            with suppress(asyncio.InvalidStateError):
                generation.accepted.set_result(generation)
        else:
            self.fail(generation, error_from(message))

    def fail(self, generation: LiveGeneration, error: ImpError) -> None:
        self._forget(generation.key)
        generation.fail(error)

    def fail_all(self, error: ImpError) -> None:
        for generation in self:
            self.fail(generation, error)

    def _deliver(self, delta: RowDelta) -> None:
        generation = self._live.get(delta.key)
        if generation is None:
            return
        generation.receive(delta)
        if generation.is_over:
            self._forget(delta.key)

    def _forget(self, key: int) -> None:
        self._live.pop(key, None)
        for answer in self._reasoning.pop(key, ()):
            if not answer.done():
                answer.set_result("already_closed")
