"""Runs an EngineLoop on the thread that owns it: messages in, steps, and sleep without polling when idle."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from imp_server.engine.loop import EngineLoop
from imp_server.engine.messages import ToEngine
from imp_server.engine.parts import GrammarReady

InboxMessage = ToEngine | GrammarReady | None
"""None ends the loop."""


class Pulse:
    """What the heartbeat reports: steps done and whether work is there. Written by the loop's thread alone."""

    def __init__(self) -> None:
        self.n_steps = 0
        self.busy = False


def run_loop(
    loop: EngineLoop,
    inbox: SimpleQueue[InboxMessage],
    pulse: Pulse | None = None,
    after_step: Callable[[], None] | None = None,
) -> None:
    """Returns when None was read or a drain is complete. `after_step` is called after each (integrity checks)."""
    pulse = pulse or Pulse()
    while not loop.is_over:
        pulse.busy = loop.has_work
        sleeps = not loop.has_work and not loop.rest()
        for message in _messages(inbox, None if sleeps else 0.0, loop.requests.wait_limit_s()):
            if message is None:
                return
            loop.handle(message)
        if loop.has_work:
            loop.step()
            pulse.n_steps += 1
            if after_step is not None:
                after_step()


def _messages(inbox: SimpleQueue[InboxMessage], wait_s: float | None, limit_s: float | None) -> list[InboxMessage]:
    """All messages that are there; with `wait_s` None at least one, unless `limit_s` passes first."""
    found: deque[InboxMessage] = deque()
    try:
        if wait_s is None:
            found.append(inbox.get(timeout=limit_s))
        while True:
            found.append(inbox.get_nowait())
    except Empty:
        return list(found)
