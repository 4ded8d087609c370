"""Questions that an engine answers by one message each, matched by their tickets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from imp_server.core import ImpError
from imp_server.engine.messages import AdapterDone, SessionClosed, SlotDone, StatsReply, ToEngine

Answer = AdapterDone | SessionClosed | SlotDone | StatsReply
A = TypeVar("A", AdapterDone, SessionClosed, SlotDone, StatsReply)


class Tickets:
    """Owner of the questions of one client that wait for their answer. Used from one event loop."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._last = 0

    async def ask(self, question: Callable[[int], ToEngine], kind: type[A]) -> A:
        """Sends `question(ticket)` and returns its answer. Raises what `fail_all` is called with."""
        self._last += 1
        waiting = self._waiting[self._last] = asyncio.get_running_loop().create_future()
        self._send(question(self._last))
        answer = await waiting
        assert isinstance(answer, kind)
        return answer

    def answer(self, message: Answer) -> None:
        """Whoever asked may have gone."""
        waiting = self._waiting.pop(message.ticket, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def fail_all(self, error: ImpError) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
        self._waiting.clear()
