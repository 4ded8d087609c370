"""One answer: prompt in, text to the terminal as it comes, Ctrl-C ends the answer and nothing else."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from imp_server.api.delta_session import DeltaSession
from imp_server.api.text_side import TextSide
from imp_server.core import (
    ChatRequest,
    ContextLengthExceeded,
    EngineFaulted,
    Failed,
    Finish,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    UserFault,
)
from imp_server.engine.client.base import EngineClient, Generation
from imp_server.grammar.proving import PROVES_HERE

Write = Callable[[str, bool], None]
"""(text, is reasoning)"""

_FEWEST_TIMED, _SHORTEST_TIMED_S = 4, 0.05
"""Fewer tokens, or a shorter time, say nothing of a model's speed."""
_LEAST_ROOM = 4
"""A conversation leaves at least this part of the context to the answer: one over it."""


@dataclass(slots=True)
class ChatAnswer:
    """`first_s`: from the question to the first token. `stopped`: by Ctrl-C; what had come is kept.

    `exact`: `tokens` is the model's count, not that of the pieces that came, of which each holds one token or more.
    """

    text: str = ""
    reasoning: str = ""
    tokens: int = 0
    first_tokens: int = 0
    """Of these, what came at `first_s`: their time is the prompt's."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_s: float = 0.0
    total_s: float = 0.0
    prefill_ms: float = 0.0
    """As the engine measured it, like the next; 0 where it didn't tell."""
    decode_ms: float = 0.0
    finish: str = ""
    detail: str = ""
    stopped: bool = False
    exact: bool = True
    is_context_full: bool = False
    """Where the answer was cut there was no room for one token more."""

    @property
    def tokens_per_s(self) -> float:
        """After what came first; 0 where too few came too fast to say."""
        took_s, n = self.total_s - self.first_s, self.tokens - max(1, self.first_tokens)
        return n / took_s if n >= _FEWEST_TIMED and took_s >= _SHORTEST_TIMED_S else 0.0

    def line(self) -> str:
        """What is told below an answer."""
        parts = [f"{'' if self.exact else 'at least '}{self.tokens} token{'s' if self.tokens != 1 else ''}"]
        if self.tokens_per_s and self.exact:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.tokens:
            parts.append(f"first token after {self.first_s:.2f} s")
        if self.prompt_tokens:
            cached = f", {self.cached_tokens} cached" if self.cached_tokens else ""
            parts.append(f"prompt {self.prompt_tokens}{cached}")
        if self.stopped:
            parts.append("stopped")
        elif self.is_context_full:
            parts.append("cut: the context is full")
        elif self.finish == "length":
            parts.append("cut by the token limit: --max-tokens N or /set max_tokens N raises it")
        return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model in this process. The event loop runs only while an answer is made."""

    client: EngineClient
    text: TextSide
    runner: asyncio.Runner
    max_tokens: int = 0
    """Of an answer, where the request says nothing; 0 = no limit of its own."""

    def answer(self, request: ChatRequest, write: Write) -> ChatAnswer:
        """Without max_tokens an answer gets half of the context at most, to leave room for the next question.

        Raises ContextLengthExceeded where older turns could be left out to make room.
        """
        context = self.client.info.context_length
        limit = request.output.max_tokens or min(self.max_tokens or context, max(1, context // 2))
        room = min(limit, context // _LEAST_ROOM)
        n_questions = sum(message.role == "user" for message in request.messages)
        if n_questions > 1 and self.text.count(request) + room > context:
            raise ContextLengthExceeded("the conversation leaves too little of the context to the answer")
        request = replace(request, output=replace(request.output, max_tokens=limit))
        result = self.runner.run(answer(self.client, self.text, request, write))
        result.is_context_full = result.finish == "length" and result.prompt_tokens + result.tokens >= context
        return result


async def answer(client: EngineClient, text: TextSide, request: ChatRequest, write: Write) -> ChatAnswer:
    """Runs `request` to its end. Raises ImpError (context too long, template refused, engine crashed)."""
    started = time.perf_counter()
    result = ChatAnswer()
    with _ctrl_c_cancels(result) as cancels:
        prepared = text.begin_chat(request)(PROVES_HERE)
        generation = await client.submit(replace(prepared.request, key=client.new_key()))
        session = DeltaSession(prepared)
        result.prompt_tokens = generation.prompt_tokens
        cancels(generation)
        async for delta in generation:
            now = time.perf_counter() - started
            if delta.ids:
                result.tokens += len(delta.ids) // 4
                if not result.first_s:
                    result.first_s, result.first_tokens = now, result.tokens
                result.total_s = now
            result.cached_tokens = max(result.cached_tokens, delta.n_cached)
            for event in session.feed(delta):
                _take(event, result, write)
    return result


def _take(event: OutputEvent, result: ChatAnswer, write: Write) -> None:
    if isinstance(event, TextDelta):
        result.text += event.text
        write(event.text, False)
    elif isinstance(event, ReasoningDelta):
        result.reasoning += event.text
        write(event.text, True)
    elif isinstance(event, Finish):
        result.finish, result.detail = event.reason, event.detail or ""
        result.prefill_ms, result.decode_ms = event.timings.prefill_ms, event.timings.decode_ms
        result.tokens = event.usage.completion_tokens or result.tokens
    elif isinstance(event, Failed):
        raise EngineFaulted(event.message, code=event.code)


@contextmanager
def _ctrl_c_cancels(result: ChatAnswer) -> Iterator[Callable[[Generation], None]]:
    """Yields what takes the generation to cancel, at once if Ctrl-C came before there was one."""
    loop = asyncio.get_running_loop()
    begun: list[Generation] = []

    def stop() -> None:
        result.stopped = True
        for generation in begun:
            generation.cancel()

    def begin(generation: Generation) -> None:
        begun.append(generation)
        if result.stopped:
            stop()

    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (NotImplementedError, RuntimeError, ValueError) as error:  # not the main thread
        raise UserFault("imp chat must run in the main thread") from error
    try:
        yield begin
    finally:
        loop.remove_signal_handler(signal.SIGINT)
