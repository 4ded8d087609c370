"""What ProcessEngine and InlineEngine share: requests, tickets, state; messages come in on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from imp_server.core import (
    Draining,
    GenerateRequest,
    ImpError,
    InvalidRequest,
    ModelLoading,
    Unavailable,
    UserFault,
)
from imp_server.engine.errors import user_fault
from imp_server.engine.generation import LiveGeneration, Requests
from imp_server.engine.messages import (
    AdapterDone,
    AskStats,
    CloseSession,
    FromEngine,
    Heartbeat,
    LoadAdapter,
    LoadFailed,
    Loading,
    ModelInfo,
    Ready,
    SessionClosed,
    StatsReply,
    ToEngine,
    UnloadAdapter,
)

Progress = Callable[[str, float], None]
Stats = tuple[dict[str, float], tuple[dict[str, Any], ...]]


class MessageClient:
    """Owner of the state that the client of an engine sees. Subclasses move messages."""

    def __init__(self) -> None:
        self._state = "stopped"
        self._info: ModelInfo | None = None
        self._requests = Requests(self._send)
        self._adapter_tickets: dict[int, asyncio.Future[None]] = {}
        self._stats_tickets: dict[int, asyncio.Future[Stats]] = {}
        self._session_tickets: dict[int, asyncio.Future[int]] = {}
        self._last_ticket = 0
        self._on_progress: Progress | None = None
        self._loaded: asyncio.Future[None] | None = None

    def _send(self, message: ToEngine) -> None:
        raise NotImplementedError

    # --- EngineClient ---------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self._state

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise ModelLoading("the model is still loading", retry_after_s=1.0)
        return self._info

    async def submit(self, request: GenerateRequest) -> LiveGeneration:
        self._check_state()
        return await self._requests.submit(request)

    def new_key(self) -> int:
        return self._requests.new_key()

    async def close_session(self, session_id: str) -> int:
        """An engine that isn't up pins nothing."""
        if self._state not in ("ready", "draining"):
            return 0
        ticket = self._next_ticket()
        self._session_tickets[ticket] = answer = asyncio.get_running_loop().create_future()
        self._send(CloseSession(ticket, session_id))
        n_blocks: int = await answer
        return n_blocks

    async def load_adapter(self, name: str, path: str) -> None:
        await self._change_adapter(lambda ticket: LoadAdapter(ticket, name, path))

    async def unload_adapter(self, name: str) -> None:
        await self._change_adapter(lambda ticket: UnloadAdapter(ticket, name))

    async def stats(self) -> Stats:
        if self._state not in ("ready", "draining"):
            return {}, ()
        ticket = self._next_ticket()
        self._stats_tickets[ticket] = answer = asyncio.get_running_loop().create_future()
        self._send(AskStats(ticket))
        reply: Stats = await answer
        return reply

    # --- messages of the engine -----------------------------------------------------------------

    def _receive(self, message: FromEngine) -> None:
        match message:
            case Loading():
                if self._on_progress:
                    self._on_progress(message.stage, message.value)
            case Ready():
                self._info = message.info
                self._state = "ready"
                self._settle_load(None)
            case LoadFailed():
                self._state = "failed"
                self._settle_load(user_fault(message))
            case AdapterDone():
                self._settle_adapter(message)
            case SessionClosed():
                closed = self._session_tickets.pop(message.ticket, None)
                if closed is not None and not closed.done():
                    closed.set_result(message.n_blocks)
            case StatsReply():
                answer = self._stats_tickets.pop(message.ticket, None)
                if answer is not None and not answer.done():
                    answer.set_result((message.counters, message.rows))
            case Heartbeat():
                pass
            case _:
                self._requests.receive(message)

    def _check_state(self) -> None:
        if self._state in ("loading", "restarting"):
            raise ModelLoading("the model is still loading; try again soon", retry_after_s=1.0)
        if self._state == "draining":
            raise Draining("the server is shutting down; try another one")
        if self._state != "ready":
            raise Unavailable("the engine isn't running")

    def _fail_everything(self, error: ImpError) -> None:
        """Requests and tickets alike: the engine is gone for good."""
        self._requests.fail_all(error)
        self._fail_tickets(error)

    def _fail_tickets(self, error: ImpError) -> None:
        kinds: list[dict[int, asyncio.Future[Any]]] = [
            self._adapter_tickets,
            self._stats_tickets,
            self._session_tickets,
        ]
        for tickets in kinds:
            for answer in tickets.values():
                if not answer.done():
                    answer.set_exception(error)
            tickets.clear()

    def _settle_load(self, error: UserFault | None) -> None:
        if self._loaded is None or self._loaded.done():
            return
        if error is None:
            self._loaded.set_result(None)
        else:
            self._loaded.set_exception(error)

    def _settle_adapter(self, message: AdapterDone) -> None:
        answer = self._adapter_tickets.pop(message.ticket, None)
        if answer is None or answer.done():
            return
        if message.ok:
            answer.set_result(None)
        else:
            answer.set_exception(InvalidRequest(message.message, code=message.code or None, param="adapter"))

    async def _change_adapter(self, make: Callable[[int], ToEngine]) -> None:
        self._check_state()
        ticket = self._next_ticket()
        self._adapter_tickets[ticket] = answer = asyncio.get_running_loop().create_future()
        self._send(make(ticket))
        await answer

    def _next_ticket(self) -> int:
        self._last_ticket += 1
        return self._last_ticket
