"""The engine process: one model, its loop on the main thread, threads for the socket and the heartbeat."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import NoReturn

from imp_server.backends.base import DeviceLost
from imp_server.core import EXIT_DEVICE_LOST, HostOutOfMemory, InternalError, UserFault
from imp_server.engine.build import build_engine
from imp_server.engine.errors import load_failed
from imp_server.engine.flight_recorder import FlightRecorder
from imp_server.engine.loop import EngineLoop
from imp_server.engine.messages import PROTOCOL, Heartbeat, LoadFailed, Ready, Start, decode_to_engine
from imp_server.engine.outbox import Outbox
from imp_server.engine.runner import InboxMessage, Pulse, run_loop
from imp_server.logs import set_up_logging

log = logging.getLogger(__name__)
EXIT_STUCK = 75
SWITCH_INTERVAL_S = 0.0005
"""Python's own 5 ms would let hard work on the mask thread hold up the loop for that long behind every native call."""


def run_child(fd: int, recorder_fd: int) -> int:
    """Serve one client over the inherited socket; the exit code. Never survives its parent."""
    sock = socket.socket(fileno=fd)
    start = _read_message(sock)
    outbox = Outbox(sock)
    if not isinstance(start, Start) or start.protocol != PROTOCOL:
        outbox.put(LoadFailed(InternalError.default_code, f"the engine speaks protocol {PROTOCOL}", 1))
        outbox.close()
        return 1
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    config = start.config
    set_up_logging(config.log)
    inbox: SimpleQueue[InboxMessage] = SimpleQueue()
    pulse = Pulse()
    threading.Thread(target=_read_all, args=(sock, inbox), name="imp-inbox", daemon=True).start()
    looks: list[Callable[[], None]] = []
    threading.Thread(
        target=_beat, args=(outbox, pulse, config.engine.heartbeat_s, looks), name="imp-pulse", daemon=True
    ).start()
    try:
        built = build_engine(
            os.fsdecode(start.model_path),
            start.model_id,
            config,
            outbox.put,
            inbox.put,
            FlightRecorder(recorder_fd).write,
        )
    except DeviceLost as error:
        _leave_the_device(error, outbox)
    except (UserFault, MemoryError) as error:
        fault = error if isinstance(error, UserFault) else HostOutOfMemory("there isn't enough memory for this model")
        outbox.put(load_failed(fault))
        outbox.close()
        return fault.exit_code
    looks.append(partial(_leave_if_lost, built.loop, outbox, config.engine.stuck_mask_s))
    gc.collect()
    gc.freeze()  # what start-up made lives as long as the process: the collector needn't walk it
    outbox.put(Ready(PROTOCOL, built.info))
    try:
        run_loop(built.loop, inbox, pulse)
    except DeviceLost as error:
        _leave_the_device(error, outbox)
    built.loop.close()
    outbox.close()
    return 0


def _leave_the_device(error: DeviceLost, outbox: Outbox) -> NoReturn:
    # Not the usual way out: whatever is given back to the device may wait for it for ever.
    log.critical("%s; the engine ends, and another one begins", error)
    outbox.close()
    os._exit(EXIT_DEVICE_LOST)


def _read_message(sock: socket.socket) -> object:
    """The next message; None at end of file."""
    head = _read_exactly(sock, 4)
    body = _read_exactly(sock, int.from_bytes(head, "little")) if head else b""
    return decode_to_engine(body) if body else None


def _read_exactly(sock: socket.socket, n: int) -> bytes:
    parts = []
    while n:
        part = sock.recv(min(n, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def _read_all(sock: socket.socket, inbox: SimpleQueue[InboxMessage]) -> None:
    while True:
        try:
            message = _read_message(sock)
        except OSError:
            message = None
        if message is None or isinstance(message, Start):
            _leave()
        inbox.put(message)  # type: ignore[arg-type]


def _leave() -> NoReturn:
    # The parent is gone or spoke nonsense. The loop's thread may be inside a long native call: don't ask it.
    os._exit(0)


def _beat(outbox: Outbox, pulse: Pulse, interval_s: float, looks: list[Callable[[], None]]) -> None:
    """`looks`: after what else to see; it grows once the engine is built."""
    pause = threading.Event()
    while not pause.wait(interval_s or 1.0):
        outbox.put(Heartbeat(pulse.n_steps, pulse.busy))
        for look in looks:
            look()


def _leave_if_lost(loop: EngineLoop, outbox: Outbox, stuck_s: float) -> None:
    """No mask thread is left: nothing constrained can go on here, and a thread can't be ended. A new process can."""
    last = loop.requests.find_stuck(stuck_s)
    if last is not None:
        outbox.put(last)
        outbox.close()
        os._exit(EXIT_STUCK)
