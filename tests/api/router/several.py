"""A server of several models with scripted engines, each of which answers with its own name."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import msgspec
from imp_server.api.model_host import ModelHost
from imp_server.api.router.residency import Room
from imp_server.config import Config
from imp_server.core import InvalidRequest
from imp_server.engine.client.base import OnLoading
from imp_server.engine.client.scripted import ScriptedEngine, text_ids

from tests.api.byte_text import ByteText
from tests.api.live_server import LiveServer, live_server
from tests.api.raw_http import BODY, CHAT


class NamedEngine(ScriptedEngine):
    """Answers with its name; its loads take a while, or fail."""

    def __init__(self, name: str, loads: list[str], *, memory_bytes: int = 0, load_seconds: float = 0.0) -> None:
        super().__init__(ByteText().vocabulary, model_id=name, load_seconds=load_seconds)
        self.always(text_ids(name))
        self._info = msgspec.structs.replace(self._info, memory_bytes=memory_bytes)
        self._name, self._loads = name, loads
        self.fault: Exception | None = None
        self.may_load = asyncio.Event()
        self.may_load.set()

    async def start(self, on_progress: OnLoading | None = None) -> None:
        self._loads.append(self._name)
        self._state = "loading"
        await self.may_load.wait()
        await super().start(on_progress)
        if self.fault is not None:
            self._state = "failed"
            raise self.fault


class ScriptedCatalogue:
    """Owner of what there is "on disk": the hosts by name, and what was fetched and removed."""

    def __init__(self, *names: str, room: Room | None = None, config: Config | None = None, **engine: Any) -> None:
        self.room = room or Room()
        self.loads: list[str] = []
        self.engines: dict[str, NamedEngine] = {}
        self.options: dict[str, dict[str, Any]] = {name: {} for name in names}
        self.removed: list[str] = []
        self.fetch_script = "print('{}')"
        self._config, self._engine = config or Config(), engine

    def __getitem__(self, name: str) -> NamedEngine:
        return self.engines[name]

    def hosts(self) -> list[ModelHost]:
        return [self._host(name, **options) for name, options in self.options.items()]

    def _host(self, name: str, **options: Any) -> ModelHost:
        engine = self.engines.get(name)
        if engine is None:
            engine = self.engines[name] = NamedEngine(name, self.loads, **self._engine)
        more = {"source": "folder", "config": self._config, **options}
        return ModelHost(name, engine, ByteText, on_demand=True, rest="unloaded", **more)

    def checked(self, name: str) -> str:
        if name.startswith("/"):
            raise InvalidRequest("no path", param="model", code="model_not_fetchable")
        return name

    def fetch_command(self, name: str) -> Sequence[str]:
        return (sys.executable, "-c", self.fetch_script)

    def remove(self, name: str) -> None:
        self.removed.append(name)
        self.options.pop(name)


@contextlib.contextmanager
def several(catalogue: ScriptedCatalogue, **settings: Any) -> Iterator[LiveServer]:
    """`settings`: section__key=value."""
    values = {name.replace("__", ".", 1): value for name, value in settings.items()}
    with live_server(None, catalogue=catalogue, settings=values) as live:
        yield live


def ask(live: LiveServer, model: str, **more: Any) -> httpx.Response:
    return httpx.post(live.url + CHAT, json={**BODY, "model": model, **more}, timeout=20)


def said(live: LiveServer, model: str) -> str:
    reply = ask(live, model).raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"])


def statuses(live: LiveServer) -> dict[str, str]:
    return {m["id"]: m["status"]["value"] for m in httpx.get(live.url + "/v1/models").json()["data"]}


class Followed:
    """Owner of a thread that reads /models/sse. `events`: what came so far."""

    def __init__(self, live: LiveServer) -> None:
        self.events: list[dict[str, Any]] = []
        self.at_s: list[float] = []
        self.comments = 0
        self._url = live.url + "/models/sse"
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def of(self, model: str) -> list[dict[str, Any]]:
        return [event["data"] for event in list(self.events) if event["model"] == model]

    def statuses(self, model: str) -> list[str]:
        """Without those that repeat."""
        found = [data["status"] for data in self.of(model)]
        return [status for i, status in enumerate(found) if i == 0 or status != found[i - 1]]

    def ended(self) -> bool:
        self._thread.join(5)
        return not self._thread.is_alive()

    def _read(self) -> None:
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("GET", self._url, timeout=httpx.Timeout(20)) as reply,
        ):
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    self.events.append(json.loads(line[6:]))
                    self.at_s.append(time.monotonic())
                elif line.startswith(":"):
                    self.comments += 1
