"""Takes connections from the listening sockets, as many as there is room for: the rest waits in the kernel's queue.

The event loop's own server takes all that wait at once, and a flood then uses up the descriptors before anything could
be closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from imp_server.api.admission.addresses import UNIX
from imp_server.api.admission.connections import Connections

_AT_ONCE = 16
_PAUSE_S = 0.05
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Owner of the listening sockets while they are listened to."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        connections: Connections,
        protocol: Callable[[], asyncio.Protocol],
        refusal: Callable[[str], bytes],
        tls: ssl.SSLContext | None = None,
        handshake_s: float = 10.0,
    ) -> None:
        """`refusal`: the whole answer to a connection that finds no room, with its message.

        `tls`: of TCP connections, whose handshake may take `handshake_s`.
        """
        self._sockets = list(sockets)
        self._connections = connections
        self._protocol = protocol
        self._refusal = refusal
        self._loop = asyncio.get_running_loop()
        self._tls, self._handshake_s = tls, handshake_s
        self._joining: dict[asyncio.Task[None], None] = {}
        """Oldest first."""

    def start(self) -> None:
        for sock in self._sockets:
            sock.setblocking(False)
            self._loop.add_reader(sock.fileno(), self._accept, sock)

    def stop(self) -> None:
        """Nobody can connect any more. Idempotent."""
        for sock in self._sockets:
            if sock.fileno() >= 0:
                self._loop.remove_reader(sock.fileno())
                path = sock.getsockname()
                sock.close()
                if isinstance(path, str) and path:
                    Path(path).unlink(missing_ok=True)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            room = self._connections.room(len(self._joining))
            if room == "made":
                self._give_up_handshake()
                return  # what waits is announced again in the loop's next turn
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            peer = address[0] if isinstance(address, tuple) else UNIX
            if room == "none":
                self._refuse(sock, "the server has as many connections as it can take")
            elif not self._connections.may_join(peer):
                self._refuse(sock, "this address has as many connections as it may")
            else:
                self._join(sock)

    def _join(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family != getattr(socket, "AF_UNIX", None):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._connect(sock))
        self._joining[task] = None
        task.add_done_callback(partial(self._joined, sock))

    def _joined(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._joining.pop(task, None)
        if task.cancelled():  # before its first step
            sock.close()

    def _give_up_handshake(self) -> None:
        """The oldest, if handshakes take up the room: those that never end would keep everybody else out."""
        if self._tls is not None and len(self._joining) > self._connections.limit // 2:
            self._connections.log.note("too many TLS handshakes are under way: the oldest was given up")
            next(iter(self._joining)).cancel()

    async def _connect(self, sock: socket.socket) -> None:
        tls = None if sock.family == getattr(socket, "AF_UNIX", None) else self._tls
        limit_s = self._handshake_s if tls is not None else None
        try:
            await self._loop.connect_accepted_socket(self._protocol, sock, ssl=tls, ssl_handshake_timeout=limit_s)
        except (OSError, ConnectionError, asyncio.CancelledError):  # it has gone already, or took too long
            sock.close()

    def _refuse(self, sock: socket.socket, message: str) -> None:
        with contextlib.suppress(OSError):
            sock.setblocking(False)
            sock.send(self._refusal(message))
        sock.close()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """A socket that can't be accepted from would be announced again and again."""
        if error.errno in _NO_DESCRIPTORS:
            self._connections.log.note("no descriptor is left for a new connection; raise the limit of open files")
        else:
            self._connections.log.note("can't accept a connection: ", str(error))
        self._loop.remove_reader(listening.fileno())
        self._loop.call_later(_PAUSE_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening.fileno(), self._accept, listening)
