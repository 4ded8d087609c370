"""What operators do to models: load, unload, fetch, remove, suspend, resume; and what is told of all that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextvars import Context
from typing import Any

from imp_server.api.model_host import ModelHost
from imp_server.api.models import Models
from imp_server.api.pool import WorkerPool
from imp_server.api.router.catalogue import Catalogue
from imp_server.api.router.downloads import MOST, Downloads, Progress
from imp_server.api.router.events import DOWNLOADING_S, EventListener, Json, ModelEvents
from imp_server.api.router.residency import Residency, load_failed
from imp_server.core import (
    Conflict,
    InvalidRequest,
    ModelFileMissing,
    ModelLoadFailed,
    ModelNotLoaded,
    NoModel,
    NotFound,
    Overloaded,
)

_log = logging.getLogger(__name__)
_NOT_FETCHABLE = "model_not_fetchable"
_DELETED = "it is being deleted"
STAGES = ("open", "read", "pack", "adapters", "warm", "measure")
"""Of a load, in their order; a model has those that it needs."""


class Control:
    """Owner of the downloads and of the events; adds hosts to the set and takes them out."""

    def __init__(
        self,
        models: Models,
        residency: Residency,
        pool: WorkerPool,
        keep_alive_s: float,
        catalogue: Catalogue | None = None,
        *,
        stop_timeout_s: float = 10.0,
    ) -> None:
        """`catalogue`: of a server of several models; None = it has the one."""
        self._models, self._residency, self._pool, self._catalogue = models, residency, pool, catalogue
        self._stop_timeout_s = stop_timeout_s
        self._events = ModelEvents(self._states, keep_alive_s)
        self._downloads = Downloads(self._told, self._fetched)
        self._scanning = asyncio.Lock()
        self._fresh: set[str] = set()
        """Downloaded, and not found yet."""
        self._next_scan: asyncio.Task[None] | None = None
        """One that hasn't begun yet."""
        self._tasks: set[asyncio.Task[None]] = set()
        for host in models:
            self._attach(host)

    def _attach(self, host: ModelHost) -> None:
        host.on_change = lambda host: self._events.tell(host.id, _state(host))
        host.on_used = self._residency.was_used

    # --- one model ------------------------------------------------------------------------------

    def load(self, model: str) -> None:
        host = self._models.find(model)
        if host.is_queued or (self._residency.is_up(host) and host.state != "failed"):
            raise InvalidRequest(
                f"model {host.id!r} is loaded already, or on its way", param="model", code="model_already_loaded"
            )
        if host.broken:
            raise ModelLoadFailed(f"model {host.id!r} can't be loaded: {host.broken}")
        self._residency.want(host)

    async def unload(self, model: str) -> None:
        if await self._downloads.cancel(self._fetched_name(model)):
            return
        host = self._models.find(model)
        if host.rest and not host.is_queued and not (host.rest == "sleeping" and host.on_demand):
            raise ModelNotLoaded(f"model {host.id!r} isn't loaded", param="model")
        self._residency.let_go(host, "unloaded" if host.on_demand else "sleeping", self._stop_timeout_s)

    async def suspend(self, model: str) -> list[str]:
        hosts = [self._models.find(model)] if model else self._all()
        done = [
            self._residency.let_go(host, "suspended", self._stop_timeout_s)
            for host in hosts
            if model or not host.on_demand or self._residency.is_up(host)
        ]
        await asyncio.gather(*done)
        return [host.id for host in hosts if host.rest == "suspended"]

    async def resume(self, model: str) -> list[str]:
        hosts = [self._models.find(model)] if model else self._all()
        resting = [host for host in hosts if host.rest in ("suspended", "sleeping")]
        errors = await asyncio.gather(*(asyncio.shield(self._residency.want(host)) for host in resting))
        for error in errors:
            if error is not None:
                raise type(error)(error.message)
        return [host.id for host in hosts if self._residency.is_up(host)]

    def _all(self) -> list[ModelHost]:
        """Raises NoModel."""
        hosts = list(self._models)
        if not hosts:
            raise NoModel("no model is loaded; start the server with a model")
        return hosts

    # --- which models there are -----------------------------------------------------------------

    async def fetch(self, model: str) -> None:
        catalogue = self._several()
        name = await self._pool.run(catalogue.checked, model)
        if name in self._downloads:
            raise InvalidRequest(f"model {name!r} is being downloaded already", param="model", code=_NOT_FETCHABLE)
        if any(host.id == name for host in self._models):
            raise InvalidRequest(f"model {name!r} is here already", param="model", code=_NOT_FETCHABLE)
        if len(self._downloads) >= MOST:
            raise Overloaded(f"{MOST} models are being downloaded; try again when one is here", retry_after_s=10.0)
        self._downloads.begin(name, catalogue.fetch_command(model))
        self._events.tell(name, _downloading({}))

    async def remove(self, model: str) -> None:
        catalogue = self._several()
        if await self._downloads.cancel(self._fetched_name(model)):
            return
        host = self._models.find(model)
        if host.source != "catalogue":
            message = f"model {host.id!r} wasn't fetched by imp, which deletes no other"
            raise InvalidRequest(message, param="model", code="model_not_removable")
        if host.broken == _DELETED:
            raise NotFound(f"model {host.id!r} is being deleted")
        was_broken, host.broken = host.broken, _DELETED  # nobody begins to load it
        try:
            await self._residency.let_go(host, "unloaded", self._stop_timeout_s)
            await self._delete(catalogue, host)
        finally:
            host.broken = was_broken
            self._events.forget(host.id)

    async def _delete(self, catalogue: Catalogue, host: ModelHost) -> None:
        """Raises NotFound if its files are gone already."""
        async with self._scanning:  # one that has seen the files would bring the model back
            were_gone = False
            try:
                await self._pool.run(catalogue.remove, host.id)
            except ModelFileMissing:
                were_gone = True
            self._models.remove(host)
            self._retire(host)
        if were_gone:
            raise NotFound(f"the files of model {host.id!r} are gone")

    def _several(self) -> Catalogue:
        if self._catalogue is None:
            raise Conflict("this server has the one model that it was started with; --models-dir serves several")
        return self._catalogue

    def _fetched_name(self, model: str) -> str:
        """A download goes by what was asked for, or by the name under which it will be kept."""
        return model if model in self._downloads else f"hf:{model}"

    async def scan(self) -> None:
        """Finds models that have come; those that have gone, and aren't in memory, are forgotten.

        All who ask before a scan begins share it.
        """
        if self._catalogue is None:
            return
        if self._next_scan is None:
            # not for who happens to ask first, who may leave while others wait for it
            scan = self._scan(self._catalogue)
            self._next_scan = asyncio.get_running_loop().create_task(scan, context=Context())
        await asyncio.shield(self._next_scan)

    async def _scan(self, catalogue: Catalogue) -> None:
        async with self._scanning:
            self._next_scan = None
            fresh = set(self._fresh)
            found = {host.id: host for host in await self._pool.run(catalogue.hosts)}
            self._fresh -= fresh
            known = {host.id: host for host in self._models}
            for model_id in fresh - found.keys():
                self._events.tell(model_id, {"status": "downloaded"})
            for model_id, host in found.items():
                old = known.get(model_id)
                if old is not None:
                    old.is_hidden = host.is_hidden
                if model_id in fresh:  # told once it is listed
                    self._events.tell(model_id, {"status": "downloaded"})
                if old is None or _is_other(old, host):
                    self._models.add(host)
                    self._retire(old)
                    self._attach(host)
                    host.tell()
            for model_id, host in known.items():
                if model_id not in found and host.rest and not host.is_queued and host.is_idle:
                    self._models.remove(host)
                    self._retire(host)
                    self._events.forget(model_id)

    def _retire(self, host: ModelHost | None) -> None:
        """Nobody finds it any more; who uses its text side may finish."""
        if host is not None:
            self._in_background(host.retire())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _told(self, model: str, progress: Progress) -> None:
        self._events.tell(model, _downloading(progress), pause_s=DOWNLOADING_S)

    def _fetched(self, model: str, error: str) -> None:
        if error:
            _log.warning("model %r wasn't fetched: %s", model[:200], error)
            self._events.tell(model, {"status": "unloaded", "error": error})
            return
        self._fresh.add(model)
        self._in_background(self.scan())

    # --- events and the end ---------------------------------------------------------------------

    def events(self) -> EventListener:
        return self._events.listener()

    def _states(self) -> Iterator[tuple[str, Json]]:
        for host in self._models:
            yield host.id, _state(host)
        for model, progress in self._downloads.progress().items():
            yield model, _downloading(progress)

    def end_streams(self) -> None:
        self._events.close()

    async def close(self) -> None:
        self._events.close()
        await self._downloads.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _is_other(old: ModelHost, new: ModelHost) -> bool:
    """What is known of it by now is something else, and nobody has it in memory, or deletes it."""
    if old.broken == _DELETED:
        return False
    is_at_rest = old.rest == "unloaded" and not old.is_queued and old.is_idle
    return (bool(old.broken) and old.broken != new.broken) or (is_at_rest and old.config != new.config)


def _state(host: ModelHost) -> Json:
    data: dict[str, Any] = {"status": host.status}
    if data["status"] == "loading" and host.stage:
        data["progress"] = {
            "stages": list(STAGES),
            "current": host.stage,
            "value": min(1.0, max(0.0, host.stage_value)),
        }
    if (host.failure is not None and data["status"] != "loading") or host.broken:
        data["error"] = host.broken or load_failed(host).message
    return data


def _downloading(progress: Progress) -> Json:
    return {"status": "downloading", "progress": progress}
