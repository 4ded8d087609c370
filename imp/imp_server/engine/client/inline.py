"""An engine in this process, on a thread of its own: for tests, `imp chat` and `imp bench`."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from imp_server.core import EngineCrashed, InternalError, Unavailable, UserFault
from imp_server.engine.build import BuiltEngine
from imp_server.engine.client.base import OnLoading
from imp_server.engine.client.message_client import MessageClient
from imp_server.engine.errors import load_failed
from imp_server.engine.messages import PROTOCOL, Drain, FromEngine, LoadFailed, Ready, ToEngine
from imp_server.engine.parts import GrammarReady
from imp_server.engine.runner import InboxMessage, run_loop

log = logging.getLogger(__name__)

Emit = Callable[[FromEngine], None]
Post = Callable[[GrammarReady], None]
Build = Callable[[Emit, Post], BuiltEngine]


class InlineEngine(MessageClient):
    """Owner of the engine's thread. `build(emit, post)` runs there; usually engine.build.build_engine, partially."""

    def __init__(self, build: Build, *, check_each_step: bool = False) -> None:
        """`check_each_step`: run the scheduler's integrity check after every step (tests)."""
        super().__init__()
        self._build = build
        self._check_each_step = check_each_step
        self._inbox: SimpleQueue[InboxMessage] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None

    async def start(self, on_progress: OnLoading | None = None) -> None:
        self._event_loop = asyncio.get_running_loop()
        self._loaded, self._ended = self._event_loop.create_future(), self._event_loop.create_future()
        self._on_progress = on_progress
        self._state = "loading"
        self._thread = threading.Thread(target=self._run, name="imp-engine", daemon=True)
        self._thread.start()
        await self._loaded

    async def drain(self, timeout_s: float) -> None:
        if self._state == "ready" and self._ended is not None:
            self._state = "draining"
            self._send(Drain(timeout_s))
            await asyncio.shield(self._ended)
        await self.stop()

    async def stop(self) -> None:
        self._inbox.put(None)
        if self._ended is not None:
            await asyncio.shield(self._ended)
        self._state = "stopped" if self._state != "failed" else "failed"
        self._fail_everything(Unavailable("the engine was stopped"))

    def kill(self) -> None:
        """A thread ends with its process."""

    def _send(self, message: ToEngine) -> None:
        self._inbox.put(message)

    # --- the engine's thread --------------------------------------------------------------------

    def _run(self) -> None:
        try:
            built = self._build(self._emit, self._inbox.put)
            self._emit(Ready(PROTOCOL, built.info))
            check = built.loop.scheduler.check if self._check_each_step else None
            try:
                run_loop(built.loop, self._inbox, after_step=check)
            finally:
                built.loop.close()
            self._call(self._finish, None)
        except UserFault as error:
            self._emit(load_failed(error))
            self._call(self._finish, None)
        except BaseException as error:
            log.exception("the engine's thread ended")
            self._emit(LoadFailed(InternalError.default_code, f"the engine failed: {error}", 1))
            self._call(self._finish, EngineCrashed(f"the engine failed: {type(error).__name__}: {error}"))

    def _emit(self, message: FromEngine) -> None:
        self._call(self._receive, message)

    def _call(self, function: Callable[..., None], argument: object) -> None:
        assert self._event_loop is not None
        if not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(function, argument)

    def _finish(self, error: EngineCrashed | None) -> None:
        if error is not None:
            self._state = "failed"
            self._fail_everything(error)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
