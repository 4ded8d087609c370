"""A real server on a real socket, in a thread of its own, with whatever engine the test gives it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

import uvloop
from imp_server.api.model_host import ModelHost
from imp_server.api.router.catalogue import Catalogue
from imp_server.api.server import bind, run, url_of
from imp_server.api.services import ServerServices, build_services
from imp_server.api.text_side import TextSide
from imp_server.config import Config
from imp_server.engine.client.base import EngineClient
from imp_server.engine.client.scripted import ScriptedEngine

T = TypeVar("T")
KEY = "test-key"


class LiveServer:
    """Owner of the thread and its loop. `engine` is the scripted engine, if that is what serves."""

    def __init__(
        self, url: str, services: ServerServices, loop: asyncio.AbstractEventLoop, client: EngineClient | None
    ) -> None:
        self.url = url
        self.services = services
        self.loop = loop
        self.client = client

    @property
    def engine(self) -> ScriptedEngine:
        assert isinstance(self.client, ScriptedEngine)
        return self.client

    def on_loop(self, function: Callable[..., T], *args: Any) -> T:
        """Run a plain function on the server's loop."""

        async def call() -> T:
            return function(*args)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(10)

    def wait(self, awaitable: Awaitable[T]) -> T:
        async def call() -> T:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(10)


@contextlib.contextmanager
def live_server(
    client: EngineClient | Callable[[], EngineClient] | None,
    load_text: Callable[[], TextSide] | None = None,
    *,
    model: str = "m",
    others: Mapping[str, Callable[[], EngineClient]] = {},
    settings: dict[str, Any] | None = None,
    check_replies: bool = True,
    wait_ready: bool = True,
    catalogue: Catalogue | None = None,
) -> Iterator[LiveServer]:
    """Serves on a free port until the block ends. `settings`: {"section.key": value}; `catalogue`: of several models;
    `others`: engines of further models, by the names of these; their text is `load_text`'s, too."""
    config = Config.of({"server.port": 0, "responses.store_path": ":memory:", **(settings or {})})
    sockets = bind(config.server)
    loop = uvloop.new_event_loop()
    ready = threading.Event()
    box: dict[str, Any] = {}

    async def main() -> None:
        engine = client() if callable(client) else client
        engines = {model: engine, **{name: make() for name, make in others.items()}}
        hosts = [ModelHost(name, one, load_text, config) for name, one in engines.items() if one and load_text]
        services = build_services(config, hosts, check_replies=check_replies, catalogue=catalogue)
        box["server"] = LiveServer(url_of(sockets[0]), services, loop, engine)
        if not wait_ready:
            ready.set()
        await run(services, sockets, lambda _line: ready.set())

    task: asyncio.Task[None] | None = None

    def body() -> None:
        nonlocal task
        asyncio.set_event_loop(loop)
        task = loop.create_task(main())
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            box["error"] = error
        finally:
            ready.set()

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    assert ready.wait(60)
    if "error" in box:
        raise box["error"]
    try:
        yield box["server"]
    finally:
        loop.call_soon_threadsafe(lambda: task.cancel() if task else None)
        thread.join(20)
        for sock in sockets:
            sock.close()
        if not thread.is_alive():
            loop.close()
