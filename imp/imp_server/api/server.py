"""Runs the API process: the socket first, then its models in the background, then a clean end.

sockets = bind(config.server)               # a taken port fails here, before anything is loaded
serve(config, [ModelHost(id, client, load_text)], sockets)
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from imp_server.api.admission.listener import Listener
from imp_server.api.app import build_app
from imp_server.api.http_protocol import ImpHttpProtocol, error_bytes
from imp_server.api.model_host import ModelHost
from imp_server.api.returned_memory import map_large_blocks
from imp_server.api.router.catalogue import Catalogue
from imp_server.api.service_manager import READY, STOPPING, tell_service_manager
from imp_server.api.services import ServerServices, build_services
from imp_server.api.websocket import WebSocketFront
from imp_server.api.websocket_frames import ImpWebSocketProtocol
from imp_server.config import Config
from imp_server.config.serving import ServerSettings as ServerKnobs
from imp_server.core import UserFault
from imp_server.workers.client import Workers

_log = logging.getLogger(__name__)
Announce = Callable[[str], None]
"""Gets `Server listening on URL`, and `Also listening on URL` for each further address."""
SWITCH_INTERVAL_S = 0.0005
"""Python's own 5 ms would let a pool thread hold up the event loop for that long at every turn."""


Sockets = tuple[socket.socket, ...]
_UNIX = "unix:"


def bind(server: ServerKnobs) -> Sockets:
    """The listening sockets, one per --host; a port that is chosen freely is the same for all.

    Raises UserFault when an address can't be had.
    """
    tls_context(server)  # what is wrong with its files is told before anything is loaded
    sockets: list[socket.socket] = []
    port = server.port
    try:
        for host in server.host or ("127.0.0.1",):
            if is_path(host):
                sockets.append(_listen_on_path(host))
            else:
                sockets.append(_listen(host, port, is_alone=len(server.host) < 2))
                port = sockets[-1].getsockname()[1]
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return tuple(sockets)


def is_path(host: str) -> bool:
    """A Unix socket: unix:PATH, or a path that begins with a slash."""
    return host.startswith((_UNIX, "/"))


def _listen(host: str, port: int, *, is_alone: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not is_alone:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # [::] would keep 0.0.0.0 from it
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        where = f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
        raise UserFault(
            f"can't listen on {where}: {error.strerror or error}; choose another --port or --host"
        ) from None
    sock.setblocking(False)
    return sock


def _listen_on_path(host: str) -> socket.socket:
    """A socket that a server which has ended left behind is replaced; one that somebody listens on isn't."""
    path = Path(host.removeprefix(_UNIX)).expanduser()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
            path.unlink()
        sock.bind(str(path))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise UserFault(f"can't listen on {path}: {error.strerror or error}; choose another --host") from None
    sock.setblocking(False)
    return sock


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def tls_context(server: ServerKnobs) -> ssl.SSLContext | None:
    """None: the server speaks plain HTTP. Raises UserFault for files that can't be used."""
    if not server.ssl_certfile:
        if server.ssl_keyfile:
            raise UserFault("--ssl-keyfile needs --ssl-certfile beside it")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(server.ssl_certfile, server.ssl_keyfile or None, password=lambda: b"")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = " and ".join(filter(None, (server.ssl_certfile, server.ssl_keyfile)))
        reason = getattr(error, "strerror", None) or error
        raise UserFault(
            f"can't use the certificate in {files}: {reason}; both are PEM files, the key without a password"
        ) from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def url_of(sock: socket.socket, *, tls: bool = False) -> str:
    scheme = "https" if tls else "http"
    if sock.family == getattr(socket, "AF_UNIX", None):
        return f"{_UNIX}{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def serve(
    config: Config,
    hosts: Sequence[ModelHost],
    sockets: Sockets = (),
    announce: Announce = print,
    workers: Workers | None = None,
    catalogue: Catalogue | None = None,
) -> None:
    """Serves the models, or those of the catalogue as they are asked for, until SIGINT or SIGTERM.

    `announce` gets the line that says where, once requests are taken. Raises UserFault if a model can't be loaded,
    ConfigError if the contract is broken.
    """
    listening = sockets or bind(config.server)
    services = build_services(config, hosts, workers=workers, catalogue=catalogue)
    services.workers.start()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run(services, listening, announce, ends_process=True))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


class ImpServer(uvicorn.Server):
    """uvicorn that notes in the services when it begins to drain, and takes no more connections than have room."""

    def __init__(
        self,
        config: uvicorn.Config,
        services: ServerServices,
        sockets: Sequence[socket.socket],
        when_exiting: Callable[[], None] = lambda: None,
    ) -> None:
        """`when_exiting`: called at the first signal."""
        super().__init__(config)
        self._when_exiting = when_exiting
        self._services = services
        self._sockets = sockets
        self._tls = tls_context(services.config.server)
        self._listener: Listener | None = None
        self._loop = asyncio.get_running_loop()
        self.exiting, self.hurried = asyncio.Event(), asyncio.Event()

    @property
    def has_tls(self) -> bool:
        return self._tls is not None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        protocol = partial(
            ImpHttpProtocol,
            connections=self._services.admission.connections,
            bodies=self._services.admission.bodies,
            config=self.config,
            server_state=self.server_state,
            app_state={},
        )
        refusal = partial(error_bytes, "503 Service Unavailable")
        self._listener = Listener(
            self._sockets,
            self._services.admission.connections,
            protocol,
            refusal,
            tls=self._tls,
            handshake_s=self._services.config.server.head_timeout_s,
        )
        self._listener.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.stop_listening()
        await super().shutdown(sockets=[])

    def stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the drain, a Ctrl-C after it ends the drain, one more leaves everything as it lies.

        uvicorn's own would raise the signal again once it has drained: the process must end with 0.
        """
        if not self._services.draining:
            self._when_exiting()
        self._services.draining = True
        self._loop.call_soon_threadsafe(self.exiting.set)
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = self.hurried.is_set()
            self._loop.call_soon_threadsafe(self.hurried.set)
        self.should_exit = True


async def run(services: ServerServices, sockets: Sockets, announce: Announce, *, ends_process: bool = False) -> None:
    """`serve` on a running event loop. `ends_process`: the process is gone two seconds behind the drain in any case."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    map_large_blocks()
    app = build_app(services)
    await app.start()  # type: ignore[no-untyped-call]
    assert services.front is not None
    front = WebSocketFront(services.front, services)
    last_resort = partial(_end_in_time, services) if ends_process else _nothing
    server = ImpServer(_uvicorn_config(front, services), services, sockets, last_resort)
    serving = asyncio.create_task(server.serve())
    watching = asyncio.gather(
        services.admission.connections.watch(), _look_at_lanes(services), services.residency.watch()
    )
    loading = asyncio.create_task(_load(services))
    draining = asyncio.create_task(_drain(server, services))
    try:
        await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and not serving.done():
            loading.result()
            gc.collect()
            gc.freeze()  # what start-up made lives as long as the process: the collector needn't walk it
            for i, sock in enumerate(sockets):
                announce(f"{'Also' if i else 'Server'} listening on {url_of(sock, tls=server.has_tls)}")
            tell_service_manager(READY)
        await serving
        if services.draining and not server.force_exit:
            await draining
    finally:
        server.should_exit = True
        server.stop_listening()
        loading.cancel()
        draining.cancel()
        watching.cancel()
        await asyncio.gather(serving, loading, draining, watching, return_exceptions=True)
        await services.residency.close()
        await services.control.close()
        await asyncio.gather(*(host.stop() for host in services.models))
        await services.sessions.close()
        services.pool.close()
        await services.shelf.close()
        await asyncio.to_thread(services.reports.close)
        await asyncio.to_thread(services.workers.close)
        await asyncio.to_thread(services.renderer.close)
        await app.stop()  # type: ignore[no-untyped-call]


async def _drain(server: ImpServer, services: ServerServices) -> None:
    """After a signal the engines finish what runs; what outlasts the drain ends with its dialect's error."""
    await server.exiting.wait()
    tell_service_manager(STOPPING)
    services.control.end_streams()
    limit_s = services.config.server.drain_timeout_s
    if n := len(server.server_state.tasks):
        requests = f"{n} request{'s' if n > 1 else ''}"
        _log.info("finishing %s, for at most %g s; one more Ctrl-C ends them now", requests, limit_s)
    began_s = time.monotonic()
    await _predictions_end(services, server.hurried, limit_s)
    await services.residency.close()
    left_s = max(0.0, limit_s - (time.monotonic() - began_s))
    await asyncio.gather(*(host.drain(left_s, server.hurried) for host in services.models))


async def _predictions_end(services: ServerServices, hurried: asyncio.Event, limit_s: float) -> None:
    """Those inside may have yet to be given to their engines, which take nothing new once they drain."""
    waits = [asyncio.create_task(services.predictions.ended()), asyncio.create_task(hurried.wait())]
    try:
        await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


_TO_SAY_SO_S = 1.3
"""Seconds that cut streams get, after the drain, to write their error."""
_LAST_S = 1.7
"""Seconds after the drain at which the process ends whatever hangs: a thread, a child, a client."""


def _nothing() -> None:
    return


def _end_in_time(services: ServerServices) -> None:
    """Starts the clock that ends this process, and those that it has begun. By a thread: the loop itself may hang."""

    def end() -> None:
        time.sleep(services.config.server.drain_timeout_s + _LAST_S)
        _log.warning("something still hangs behind the drain: the server ends without waiting for it")
        for host in services.models:
            host.client.kill()
        if services.workers.pid is not None:
            with suppress(OSError):
                os.kill(services.workers.pid, signal.SIGKILL)
        os._exit(0)

    threading.Thread(target=end, name="imp-end", daemon=True).start()


async def _look_at_lanes(services: ServerServices) -> None:
    while True:
        await asyncio.sleep(1.0)
        services.look_at_lanes()
        services.sessions.look()


def _uvicorn_config(app: object, services: ServerServices) -> uvicorn.Config:
    config = services.config
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=ImpHttpProtocol,
        ws=ImpWebSocketProtocol if config.responses.sockets == "on" else "none",
        ws_max_size=(config.responses.socket_message_mib or config.server.max_body_mib) * 2**20,
        ws_per_message_deflate=False,  # what is inflated has no bound
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=config.server.keep_alive_s,  # type: ignore[arg-type]
        timeout_graceful_shutdown=config.server.drain_timeout_s + _TO_SAY_SO_S,  # type: ignore[arg-type]
    )


async def _load(services: ServerServices) -> None:
    """The one model, or several at the same time; raises what the first that fails has met. Those that are loaded on
    demand aren't waited for."""
    await asyncio.gather(*(host.load(services.pool) for host in services.models if not host.on_demand))
    for host in services.models:
        if host.on_demand and host.loads_at_start and not host.broken:
            services.residency.want(host)
