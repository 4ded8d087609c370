"""Notices that a client has gone while its answer is being made.

uvicorn drops writes to a closed connection silently, so nobody would notice otherwise and the row would
run to its end. Works while the handler is blocked on the engine; the request body must have been read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

Receive = Callable[[], Awaitable[dict[str, Any]]]


class DisconnectWatch:
    """Owner of the task that waits for the end of one connection."""

    def __init__(self, receive: Receive | None) -> None:
        self.is_gone = False
        self._actions: list[Callable[[], None]] = []
        self._task = asyncio.get_running_loop().create_task(self._wait(receive)) if receive else None

    def when_gone(self, action: Callable[[], None]) -> None:
        """Called at once if the client has gone already."""
        self._actions.append(action)
        if self.is_gone:
            action()

    def forget(self) -> None:
        """Nothing that was asked for so far is done when the client goes."""
        self._actions.clear()

    def leave(self) -> None:
        """Nobody wants the answer any more."""
        self.is_gone = True
        for action in self._actions:
            action()

    def close(self) -> None:
        """The answer is complete: stop watching."""
        self._actions.clear()
        if self._task is not None:
            self._task.cancel()

    async def _wait(self, receive: Receive) -> None:
        while (await receive()).get("type") != "http.disconnect":
            pass
        self.leave()
