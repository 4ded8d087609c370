"""Messages on their way out of the engine process; hand-offs merge while the socket isn't drained."""

from __future__ import annotations

import socket
import threading
from collections import deque

from imp_server.engine.merge import merge_steps
from imp_server.engine.messages import FromEngine, Heartbeat, StepDone, encode


class Outbox:
    """Owner of the unsent messages and of the thread that sends them.

    A step that follows an unsent step joins it, so a reader that stalls costs memory for the tokens only and
    gets all of them in one message. The order of everything else is kept.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waiting: deque[FromEngine] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._send_all, name="imp-outbox", daemon=True)
        self._thread.start()

    def put(self, message: FromEngine) -> None:
        """From any thread; never blocks."""
        with self._changed:
            last = self._waiting[-1] if self._waiting else None
            if isinstance(message, StepDone) and isinstance(last, StepDone):
                self._waiting[-1] = merge_steps(last, message)
            elif isinstance(message, Heartbeat) and isinstance(last, Heartbeat):
                self._waiting[-1] = message
            else:
                self._waiting.append(message)
            self._changed.notify()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is waiting, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _send_all(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                message = self._waiting.popleft()
            try:
                self._sock.sendall(encode(message))
            except OSError:
                return  # the other side is gone; the reader's end of file ends this process
