"""What becomes of models, as server-sent events for whoever listens: states at once, progress at a bearable rate."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from imp_server.api.sse import KEEP_ALIVE

EVENT = "model_status"
"""The one name of an event; what has happened is its `status`."""
LOADING_S, DOWNLOADING_S = 0.2, 0.1
"""Least seconds between two events of one model that differ in their progress only."""
_MOST_PENDING = 1024
"""Events that wait for one listener; beyond it he gets the states as they are instead."""

Json = dict[str, Any]


@dataclass(slots=True)
class _Told:
    """Of one model: what was told last and when, and what waits for its time."""

    data: Json = field(default_factory=dict)
    at_s: float = float("-inf")
    held: Json | None = None
    timer: asyncio.TimerHandle | None = None


class ModelEvents:
    """Owner of the listeners, and of what they were told of each model. Used from one event loop."""

    def __init__(self, states: Callable[[], Iterable[tuple[str, Json]]], keep_alive_s: float) -> None:
        """`states`: model and data of an event for each, as it is now."""
        self._states = states
        self._keep_alive_s = keep_alive_s or None
        self._told: dict[str, _Told] = {}
        self._listeners: set[EventListener] = set()
        self.is_closed = False

    def tell(self, model: str, data: Json, *, pause_s: float = LOADING_S) -> None:
        """What is new beside progress is sent at once, behind progress that was held back."""
        told = self._told.setdefault(model, _Told())
        if data == told.data:
            return
        if data.get("status") != told.data.get("status") or "progress" not in told.data:
            self._flush(model)
            self._send(model, data)
            return
        now_s = asyncio.get_running_loop().time()
        wait_s = told.at_s + pause_s - now_s
        if wait_s <= 0 and told.held is None:
            self._send(model, data)
            return
        told.held = data
        if told.timer is None:
            told.timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._flush, model)

    def forget(self, model: str) -> None:
        """The model is gone, which listeners are told."""
        self.tell(model, {"status": "removed"})
        self._told.pop(model, None)

    def listener(self) -> EventListener:
        """It listens once it is read."""
        return EventListener(self, self._keep_alive_s)

    def close(self) -> None:
        """The server ends: so do all streams."""
        self.is_closed = True
        for listener in list(self._listeners):
            listener.leave()

    def come(self, listener: EventListener) -> None:
        self._listeners.add(listener)
        if self.is_closed:
            listener.leave()

    def gone(self, listener: EventListener) -> None:
        self._listeners.discard(listener)

    def snapshot(self) -> list[bytes]:
        return [_frame(model, data) for model, data in self._states()]

    def _flush(self, model: str) -> None:
        told = self._told[model]
        if told.timer is not None:
            told.timer.cancel()
            told.timer = None
        held, told.held = told.held, None
        if held is not None:
            self._send(model, held)

    def _send(self, model: str, data: Json) -> None:
        told = self._told[model]
        told.data, told.at_s = data, asyncio.get_running_loop().time()
        frame = _frame(model, data)
        for listener in self._listeners:
            listener.put(frame)


class EventListener:
    """Owner of what one listener hasn't been sent yet."""

    def __init__(self, events: ModelEvents, keep_alive_s: float | None) -> None:
        self._events = events
        self._keep_alive_s = keep_alive_s
        self._pending: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._is_gone = False

    def put(self, frame: bytes) -> None:
        if len(self._pending) >= _MOST_PENDING:
            self._pending.clear()
            self._pending.extend(self._events.snapshot())
        else:
            self._pending.append(frame)
        self._wake.set()

    def leave(self) -> None:
        self._is_gone = True
        self._events.gone(self)
        self._wake.set()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The state of each model first, then what is new."""
        self._events.come(self)
        try:
            yield b"".join(self._events.snapshot()) or KEEP_ALIVE
            while not self._is_gone:
                try:
                    async with asyncio.timeout(self._keep_alive_s):
                        await self._wake.wait()
                except TimeoutError:
                    yield KEEP_ALIVE
                    continue
                self._wake.clear()
                frames = b"".join(self._pending)
                self._pending.clear()
                if frames:
                    yield frames
        finally:
            self._events.gone(self)


def _frame(model: str, data: Json) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode({"model": model, "event": EVENT, "data": data})
