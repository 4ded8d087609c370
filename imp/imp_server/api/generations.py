"""The generations of one reply: accepted together, followed together, cancelled together.

A batch of prompts runs in a window as wide as the engine has rows: the rest waits here, not in the
engine's queue, where it would push other clients out.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from imp_server.api.admission.queued_tokens import QueuedTokens, TokenClaim
from imp_server.api.body import ClientGone
from imp_server.api.checks import Checks
from imp_server.api.delta_session import DeltaSession
from imp_server.api.disconnect import DisconnectWatch
from imp_server.api.reports.reply import ReplyReport
from imp_server.core import (
    EngineFaulted,
    Failed,
    Finish,
    GenerateRequest,
    GrammarTooCostly,
    ImpError,
    Logprobs,
    OutputEvent,
    PromptLogprobs,
    Usage,
)
from imp_server.core.owner import current_owner
from imp_server.engine.client.base import EngineClient, Generation
from imp_server.engine.messages import ReasoningVerdict, RowDelta
from imp_server.text.session import EXHAUSTED, VIOLATED, Prepared

Batch = list[OutputEvent]
REASONING_EXHAUSTED = "requests_reasoning_exhausted_total"
"""Counts requests whose answer never began because thinking took all tokens."""


@dataclass(slots=True, eq=False)
class Live:
    """An accepted generation and its text. `first_choice` is added to the choice of its events."""

    generation: Generation
    request: GenerateRequest
    session: DeltaSession
    first_choice: int
    n_choices: int
    n_queued: int = 0
    """Tokens of its prompt, until they are computed."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Whose generations they are, and on what terms they run."""

    names: frozenset[str] = frozenset()
    """What clients may call their reply by: its id, and their own id of the request."""
    sender: str = ""
    """Whose work it is, for fairness."""
    outranks: bool = True
    """Their priority counts against others' requests, too."""
    reasoning_control: bool = True
    """The client lets others end its reasoning."""
    deadline_s: float | None = None
    """Seconds from its acceptance after which each generation ends with `length`."""
    report: ReplyReport | None = None
    """Hears what comes of them."""


_OURS = Terms()


class Generations:
    """Owner of the prompts of one reply that run or wait."""

    def __init__(
        self,
        client: EngineClient,
        prompts: Sequence[Prepared],
        terms: Terms = _OURS,
        *,
        counters: Counter[str] | None = None,
        checks: Checks | None = None,
        queued: QueuedTokens | None = None,
    ) -> None:
        """`counters`: metrics of the model, by name. `checks`: hold answers against their whole schema, where that is
        to be done, and remember grammars that the engine gives up. `queued`: counts prompts until they are computed.
        """
        self.terms = terms
        self.born_s = time.monotonic()
        self.owner = current_owner()
        self._n_prompt_tokens = sum(len(prompt.request.ids) // 4 for prompt in prompts)
        self._queued = queued
        self._claim: TokenClaim | None = None
        self._client = client
        self._has_ended = False
        self._report = terms.report
        if self._report is not None:
            self._report.begin(
                [prompt.prompt_text for prompt in prompts], sum(prompt.request.options.n for prompt in prompts)
            )
        self._checks = checks
        self._judging: set[asyncio.Task[bool]] = set()
        self._submitting: set[asyncio.Task[Generation]] = set()
        self._counters = Counter[str]() if counters is None else counters
        self._is_exhausted = False
        self._usage = Usage()
        """Of the choices that have ended."""
        self._n_tokens = 0
        """That came, whether their choice ended or not."""
        self._reasons: list[str] = []
        self._first_s: float | None = None
        """When the first token came, in seconds of `time.monotonic`."""
        self._last_s = self.born_s
        self._waiting: deque[tuple[int, Prepared]] = deque()
        self._live: list[Live] = []
        first_choice = 0
        for prompt in prompts:
            self._waiting.append((first_choice, prompt))
            first_choice += prompt.request.options.n

    def told(self, began_s: float) -> dict[str, Any]:
        """What the log says of it; `began_s`: when its request came, in seconds of `time.monotonic`."""
        fields: dict[str, Any] = {"prompt_tokens": self._usage.prompt_tokens or self._n_prompt_tokens}
        fields["cached_tokens"] = self._usage.cached_tokens
        fields["completion_tokens"] = self._usage.completion_tokens or self._n_tokens
        if self._first_s is not None:
            fields["first_token_ms"] = round((self._first_s - began_s) * 1000, 1)
            if (took_s := self._last_s - self._first_s) > 0 and self._usage.completion_tokens > 1:
                fields["tokens_per_s"] = round((self._usage.completion_tokens - 1) / took_s, 1)
        fields["finish"] = ",".join(dict.fromkeys(self._reasons)) or "none"
        return fields

    @property
    def keys(self) -> list[int]:
        """What the engine calls those that run."""
        return [one.generation.key for one in self._live]

    @property
    def n_choices(self) -> int:
        """Choices that run or wait; 0 once the reply has ended."""
        waiting = sum(prompt.request.options.n for _, prompt in self._waiting)
        return waiting + sum(one.n_choices for one in self._live)

    async def accept(self, watch: DisconnectWatch) -> None:
        """Submits the first window; either all of it is accepted, or the error is raised and nothing runs on."""
        watch.when_gone(self.end)
        try:
            if self._queued is not None and not self._has_ended:
                self._claim = self._queued.take(self._n_prompt_tokens)
            for _ in range(max(1, self._client.info.n_rows)):
                if self._waiting:
                    self._live.append(await self._submit_next())
        except BaseException:
            self.end()
            raise

    def usage_at_acceptance(self) -> Usage:
        """The prompts, and what the prefix cache held of those that were submitted."""
        accepted = [one.generation for one in self._live]
        return Usage(
            prompt_tokens=self._n_prompt_tokens,
            cached_tokens=sum(one.cached_tokens for one in accepted),
            cache_write_tokens=sum(one.cache_write_tokens for one in accepted),
        )

    def end(self) -> None:
        """Frees every row; what waits will not run. Called when the reply is complete, too; idempotent."""
        self._has_ended = True
        self._waiting.clear()
        for task in self._submitting:
            task.cancel()
        for judging in self._judging:
            judging.cancel()
        for one in self._live:
            one.generation.cancel()
        self._live.clear()
        if self._claim is not None:
            self._claim.release()
        if self._report is not None:
            self._report.end()

    async def end_reasoning(self) -> ReasoningVerdict:
        """Of all prompts that run the most that was achieved."""
        verdicts = [await one.generation.end_reasoning() for one in list(self._live)]
        return "ending" if "ending" in verdicts else "no_closer" if "no_closer" in verdicts else "already_closed"

    async def events(self) -> AsyncIterator[Batch]:
        """The events of one hand-off at a time. Raises an ImpError when a generation fails."""
        if len(self._live) == 1 and not self._waiting:
            async for batch in self._follow(self._live[0]):
                yield batch
            return
        queue: asyncio.Queue[Batch | BaseException | None] = asyncio.Queue(2 * len(self._live))
        tasks = [asyncio.get_running_loop().create_task(self._pump(one, queue)) for one in self._live]
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
                    await asyncio.sleep(0)  # a full queue never suspends, and each vector takes its time to write
        finally:
            for task in tasks:
                task.cancel()

    async def _submit_next(self) -> Live:
        first_choice, prompt = self._waiting.popleft()
        request = msgspec.structs.replace(
            prompt.request,
            key=self._client.new_key(),
            deadline_s=self.terms.deadline_s or prompt.request.deadline_s,
            owner=self.terms.sender,
            outranks=self.terms.outranks,
        )
        generation = await self._submit(request)
        return Live(generation, request, DeltaSession(prompt), first_choice, request.options.n, len(request.ids) // 4)

    async def _submit(self, request: GenerateRequest) -> Generation:
        """Raises ClientGone if nobody wants it any more: an engine that restarts meanwhile must not begin it again."""
        task = asyncio.ensure_future(self._client.submit(request))
        self._submitting.add(task)
        try:
            generation = await task
        except GrammarTooCostly as error:
            self._give_up(request, error)
            raise
        except asyncio.CancelledError:
            task.cancel()
            if self._has_ended:
                raise ClientGone from None
            raise
        finally:
            self._submitting.discard(task)
        if self._has_ended:
            generation.cancel()
        return generation

    async def _judged(self, one: Live, event: OutputEvent) -> OutputEvent:
        """The event; of an answer that isn't known to satisfy its whole schema it says so."""
        asked = one.session.unjudged(event.choice) if isinstance(event, Finish) else None
        if asked is None or self._checks is None or self._has_ended:
            return event
        task = asyncio.ensure_future(self._checks.satisfies(asked, self.terms.sender))
        self._judging.add(task)
        try:
            if await task:
                return event
        except asyncio.CancelledError:
            task.cancel()
            if not self._has_ended:
                raise
        finally:
            self._judging.discard(task)
        assert isinstance(event, Finish)
        return msgspec.structs.replace(event, detail=event.detail or VIOLATED)

    async def _pump(self, one: Live, queue: asyncio.Queue[Batch | BaseException | None]) -> None:
        """Follows one generation after the other, as long as prompts wait."""
        try:
            while True:
                async for batch in self._follow(one):
                    await queue.put(batch)
                if one in self._live:
                    self._live.remove(one)
                if not self._waiting:
                    break
                one = await self._submit_next()
                self._live.append(one)
            await queue.put(None)
        except ClientGone:
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    def _give_up(self, request: GenerateRequest, error: GrammarTooCostly) -> None:
        if self._checks is not None and request.plan.grammar is not None:
            self._checks.give_up(request.plan.grammar, error)

    async def _follow(self, one: Live) -> AsyncIterator[Batch]:
        try:
            async for batch in self._batches(one):
                yield batch
        except ImpError as error:
            if self._report is not None:
                self._report.has_failed = True
            if isinstance(error, GrammarTooCostly):
                self._give_up(one.request, error)
            raise

    async def _batches(self, one: Live) -> AsyncIterator[Batch]:
        async for delta in one.generation:
            batch = one.session.feed(delta)
            if one.n_queued and self._claim is not None and _is_prefilled(delta, one.n_queued):
                self._claim.release(one.n_queued)
                one.n_queued = 0
            if delta.ids:
                self._n_tokens += len(delta.ids) // 4
                self._last_s = one.generation.arrived_s
                self._first_s = self._first_s or self._last_s
                if self._report is not None:
                    choice = one.first_choice + delta.choice
                    self._report.note_tokens(choice, len(delta.ids) // 4, one.generation.arrived_s)
            for event in batch:
                if isinstance(event, Failed):
                    raise EngineFaulted(event.message, code=event.code)
                if isinstance(event, Finish):
                    self._usage += event.usage
                    self._reasons.append(event.reason)
                if isinstance(event, Finish) and event.detail == EXHAUSTED and not self._is_exhausted:
                    self._is_exhausted = True
                    self._counters[REASONING_EXHAUSTED] += 1
            batch = [await self._judged(one, event) for event in batch] if delta.finish is not None else batch
            batch.sort(key=_text_last)
            if self._report is not None:
                self._report.note_events(batch)
            if one.first_choice:
                batch = [msgspec.structs.replace(e, choice=e.choice + one.first_choice) for e in batch]
            if batch:
                yield batch


def _is_prefilled(delta: RowDelta, n_prompt: int) -> bool:
    return bool(delta.ids) or delta.finish is not None or delta.n_prefilled >= n_prompt


def _text_last(event: OutputEvent) -> bool:
    """Logprobs go before the text of their hand-off, so that a chunk can carry both."""
    return not isinstance(event, Logprobs | PromptLogprobs)
