"""Responses that can be asked for again: the store, off the event loop, and those that are being made."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from imp_server.api.pool import WorkerPool
from imp_server.api.responses_store import ResponsesStore
from imp_server.config import Config, imp_home
from imp_server.dialects.openai_responses_events import ResponseEvents
from imp_server.dialects.openai_responses_kept import KeptTotals

Json = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger(__name__)
_KEY = "responses"
"""Key of the pool: one piece of work at a time, in order."""


class KeptResponses:
    """Owner of the live responses; the store owns the others. Without a store nothing is found."""

    def __init__(self, store: ResponsesStore | None, pool: WorkerPool) -> None:
        self._store = store
        self._pool = pool
        self._live: WeakValueDictionary[str, ResponseEvents] = WeakValueDictionary()

    @property
    def is_on(self) -> bool:
        return self._store is not None

    async def put(self, resource: Json, items: list[Json]) -> None:
        assert self._store
        if await self._ask(False, self._store.put, resource, items) is False:
            _log.warning("response %s was not kept", resource["id"])

    async def resource(self, response_id: str) -> Json | None:
        return await self._ask(None, self._store.resource, response_id) if self._store else None

    async def conversation(self, response_id: str, *, with_output: bool) -> list[Json] | None:
        if not self._store:
            return None
        return await self._ask(None, self._store.conversation, response_id, with_output=with_output)

    async def item(self, item_id: str) -> Json | None:
        return await self._ask(None, self._store.item, item_id) if self._store else None

    async def delete(self, response_id: str) -> bool:
        return bool(self._store and await self._ask(False, self._store.delete, response_id))

    async def totals(self) -> KeptTotals:
        if not self._store:
            return KeptTotals(0, 0, 0, 0)
        entries, n_bytes = await self._ask((0, 0), self._store.totals)
        return KeptTotals(entries, n_bytes, self._store.counts.evicted, self._store.counts.expired)

    async def _ask(self, otherwise: T, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`otherwise` if the file can't be used: a broken store finds nothing, and answers are still given."""
        try:
            return await self._pool.run_in_order(_KEY, function, *args, **kwargs)
        except (sqlite3.Error, OSError) as error:
            _log.error("the store of responses failed (responses.store_path): %s", error)
            return otherwise

    def begin(self, response_id: str, events: ResponseEvents) -> None:
        self._live[response_id] = events

    def live(self, response_id: str) -> ResponseEvents | None:
        return self._live.get(response_id)


def kept_responses(config: Config, pool: WorkerPool) -> KeptResponses:
    knobs = config.responses
    if knobs.store == "off" or not (knobs.store_ttl_s and knobs.store_max_entries and knobs.store_max_mib):
        return KeptResponses(None, pool)
    path = knobs.store_path or str(imp_home() / "responses.sqlite")
    store = ResponsesStore(
        path, ttl_s=knobs.store_ttl_s, max_entries=knobs.store_max_entries, max_bytes=knobs.store_max_mib * 2**20
    )
    return KeptResponses(store, pool)
