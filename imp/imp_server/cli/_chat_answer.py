"""One answer: prompt in, text to the terminal as it comes, Ctrl-C ends the answer and nothing else."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from imp_server.core import (
    ChatRequest,
    EngineFaulted,
    Failed,
    Finish,
    GenerateRequest,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    UserFault,
)
from imp_server.engine.client import EngineClient, Generation
from imp_server.engine.messages import RowDelta

Write = Callable[[str, bool], None]
"""(text, is reasoning)"""


class Session(Protocol):
    """Turns the deltas of one generation into events."""

    def feed(self, delta: RowDelta) -> list[OutputEvent]: ...


class Prepared(Protocol):
    @property
    def request(self) -> GenerateRequest: ...

    @property
    def session(self) -> Session: ...


class ChatText(Protocol):
    """What a chat needs of a model's text side (text/model.py)."""

    def prepare_chat(self, chat: ChatRequest, key: int) -> Prepared: ...


@dataclass(slots=True)
class Answer:
    """`first_s`: from the question to the first token. `stopped`: by Ctrl-C; what had come is kept."""

    text: str = ""
    reasoning: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_s: float = 0.0
    total_s: float = 0.0
    finish: str = ""
    detail: str = ""
    stopped: bool = False

    @property
    def tokens_per_s(self) -> float:
        """After the first token, whose time is the prompt's."""
        return (self.tokens - 1) / (self.total_s - self.first_s) if self.tokens > 1 else 0.0

    def line(self) -> str:
        """What is told below an answer."""
        parts = [f"{self.tokens} tokens"]
        if self.tokens > 1:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.tokens:
            parts.append(f"first token after {self.first_s:.2f} s")
        if self.prompt_tokens:
            cached = f", {self.cached_tokens} cached" if self.cached_tokens else ""
            parts.append(f"prompt {self.prompt_tokens}{cached}")
        if self.stopped:
            parts.append("stopped")
        elif self.finish == "length":
            parts.append("cut by the token limit")
        return " · ".join(parts)


async def answer(client: EngineClient, text: ChatText, request: ChatRequest, write: Write) -> Answer:
    """Runs `request` to its end. Raises ImpError (context too long, template refused, engine crashed)."""
    started = time.perf_counter()
    prepared = text.prepare_chat(request, client.new_key())
    generation = await client.submit(prepared.request)
    result = Answer(prompt_tokens=generation.prompt_tokens)
    with _ctrl_c_cancels(generation, result):
        async for delta in generation:
            now = time.perf_counter() - started
            if delta.ids:
                result.tokens += len(delta.ids) // 4
                result.first_s = result.first_s or now
                result.total_s = now
            result.cached_tokens = max(result.cached_tokens, delta.n_cached)
            for event in prepared.session.feed(delta):
                _take(event, result, write)
    return result


def _take(event: OutputEvent, result: Answer, write: Write) -> None:
    if isinstance(event, TextDelta):
        result.text += event.text
        write(event.text, False)
    elif isinstance(event, ReasoningDelta):
        result.reasoning += event.text
        write(event.text, True)
    elif isinstance(event, Finish):
        result.finish, result.detail = event.reason, event.detail or ""
        result.tokens = event.usage.completion_tokens or result.tokens
    elif isinstance(event, Failed):
        raise EngineFaulted(event.message, code=event.code)


@contextmanager
def _ctrl_c_cancels(generation: Generation, result: Answer) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        result.stopped = True
        generation.cancel()

    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (NotImplementedError, RuntimeError, ValueError) as error:  # not the main thread
        raise UserFault("imp chat must run in the main thread") from error
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
