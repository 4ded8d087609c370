"""What ProcessEngine and InlineEngine share: requests, tickets, state; messages come in on one event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from msgspec.structs import replace

from imp_server.core import (
    Draining,
    EngineRestarting,
    GenerateRequest,
    ImpError,
    InvalidRequest,
    ModelLoading,
    Unavailable,
    UserFault,
)
from imp_server.engine.client.base import EngineState, EngineStats, OnLoading
from imp_server.engine.client.generation import LiveGeneration, Requests
from imp_server.engine.client.tickets import Tickets
from imp_server.engine.errors import user_fault
from imp_server.engine.known_plans import SentPlans
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
    SlotAction,
    SlotDone,
    StatsReply,
    ToEngine,
    UnloadAdapter,
)


class MessageClient(ABC):
    """Owner of the state that the client of an engine sees. Subclasses move messages."""

    def __init__(self) -> None:
        self._state: EngineState = "stopped"
        self._info: ModelInfo | None = None
        self._requests = Requests(self._send, SentPlans())
        self._tickets = Tickets(self._send)
        self._on_progress: OnLoading | None = None
        self._loaded: asyncio.Future[None] | None = None

    @abstractmethod
    def _send(self, message: ToEngine) -> None:
        """Never blocks. What is sent while no engine is there is lost."""

    # --- EngineClient ---------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def stalled_s(self) -> float:
        return 0.0

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
        """An engine that isn't up, or goes down meanwhile, pins nothing."""
        if not self._is_up:
            return 0
        try:
            return (await self._tickets.ask(lambda ticket: CloseSession(ticket, session_id), SessionClosed)).n_blocks
        except ImpError:
            return 0

    async def slot_action(self, action: SlotAction) -> SlotDone:
        self._check_state()
        return await self._tickets.ask(lambda ticket: replace(action, ticket=ticket), SlotDone)

    async def load_adapter(self, name: str, path: str) -> None:
        await self._change_adapter(lambda ticket: LoadAdapter(ticket, name, path))

    async def unload_adapter(self, name: str) -> None:
        await self._change_adapter(lambda ticket: UnloadAdapter(ticket, name))

    async def stats(self) -> EngineStats:
        """An engine that isn't up, or goes down meanwhile, tells nothing."""
        if not self._is_up:
            return EngineStats({}, ())
        try:
            reply = await self._tickets.ask(AskStats, StatsReply)
        except ImpError:
            return EngineStats({}, ())
        return EngineStats(reply.counters, reply.rows)

    @property
    def _is_up(self) -> bool:
        return self._state in ("ready", "draining")

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
            case AdapterDone() | SessionClosed() | SlotDone() | StatsReply():
                self._tickets.answer(message)
            case Heartbeat():
                pass
            case _:
                self._requests.receive(message)

    def _check_state(self) -> None:
        if self._state == "restarting":
            raise EngineRestarting("the engine is restarting; try again in a moment", retry_after_s=1.0)
        if self._state == "loading":
            raise ModelLoading("the model is still loading; try again soon", retry_after_s=1.0)
        if self._state == "draining":
            raise Draining("the server is shutting down; try another one")
        if self._state != "ready":
            raise Unavailable("the engine isn't running")

    def _fail_everything(self, error: ImpError) -> None:
        """Requests and tickets alike: the engine is gone for good."""
        self._requests.fail_all(error)
        self._tickets.fail_all(error)

    def _settle_load(self, error: UserFault | None) -> None:
        if self._loaded is None or self._loaded.done():
            return
        if error is None:
            self._loaded.set_result(None)
        else:
            self._loaded.set_exception(error)

    async def _change_adapter(self, make: Callable[[int], ToEngine]) -> None:
        self._check_state()
        done = await self._tickets.ask(make, AdapterDone)
        if not done.ok:
            raise InvalidRequest(done.message, code=done.code or None, param="adapter")
