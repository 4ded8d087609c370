"""Responses that can be asked for again: the store, on a thread of its own, and those that are being made.

Nothing but the end of a reply waits for a write, and that for a second at most: a disk that hangs holds nobody up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from imp_server.api.admission.body_memory import current_charge
from imp_server.api.conversations_store import ConversationsStore
from imp_server.api.json_size import memory_of
from imp_server.api.pool import named
from imp_server.api.responses_store import ResponsesStore, as_lost
from imp_server.config import Config, imp_home
from imp_server.core import Unavailable
from imp_server.core.lanes import Lane
from imp_server.core.owner import Owner
from imp_server.dialects.openai_responses.events import ResponseEvents
from imp_server.dialects.openai_responses.kept import KeptResponse, KeptTotals

Json = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L")
B = TypeVar("B")
_log = logging.getLogger(__name__)
_KEEP_S = 1.0
"""How long the end of a reply waits until it is kept."""
_FIND_S = 5.0
"""How long a request waits for what it names."""
NAMED = "what the request names of earlier ones"
_TOTALS_S = 0.25
_MOST_WAITING = 256
"""Questions to a store that doesn't answer; further ones are refused at once."""
_MOST_UNWRITTEN = 64
"""Responses that wait for the disk; further ones aren't kept."""


class _Late:
    """No answer in time."""


_LATE = _Late()


@dataclass(slots=True)
class ResponseShelf:
    """Owner of the store's thread and of the live responses. Without a store nothing is found."""

    store: ResponsesStore | None
    lane: Lane
    conversations: ConversationsStore | None = None
    live: WeakValueDictionary[tuple[Owner, str], ResponseEvents] = field(default_factory=WeakValueDictionary)
    n_unwritten: int = 0
    totals: KeptTotals = field(default_factory=lambda: KeptTotals(0, 0, 0, 0))
    """As they were told last."""
    counting: asyncio.Future[tuple[int, int]] | None = None
    """The question for them that is under way."""

    @property
    def is_lost(self) -> bool:
        """Nothing can be kept or found any more."""
        return self.store is not None and self.lane.is_lost

    def of(self, owner: Owner) -> KeptResponses:
        return KeptResponses(self, owner)

    def begin(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """On the store's thread."""
        return self.lane.submit(named(function, *args, **kwargs))

    async def ask(self, otherwise: L, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | L:
        """`otherwise` if the file can't be used. Raises Unavailable if it takes too long."""
        found: T | L | _Late = _LATE
        if self.lane.n_waiting < _MOST_WAITING:
            job = self.begin(function, *args, **kwargs)
            found = await _within(_FIND_S, asyncio.wrap_future(job), late=_LATE, broken=otherwise)
            job.cancel()  # nobody waits for it any more, if it hasn't begun
        if isinstance(found, _Late):
            raise Unavailable("the store of responses doesn't answer; send the whole conversation, or try again")
        return found

    async def charge(self, size_of: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> int:
        """Count what is about to be read for the request at hand; the bytes. Raises Unavailable, PayloadTooLarge."""
        n_bytes = await self.ask(0, size_of, *args, **kwargs)
        current_charge().add(n_bytes, NAMED)
        return n_bytes

    async def close(self, wait_s: float = 0.5) -> None:
        """What is in the store's log goes into its file, unless that takes long."""
        if self.store is not None:
            with suppress(TimeoutError, asyncio.CancelledError, sqlite3.Error, OSError):
                await asyncio.wait_for(asyncio.wrap_future(self.lane.submit(self.store.close)), wait_s)
        self.lane.close()


class KeptResponses:
    """What one owner's requests see of the shelf."""

    def __init__(self, shelf: ResponseShelf, owner: Owner) -> None:
        self._shelf = shelf
        self._owner = owner

    @property
    def is_on(self) -> bool:
        return self._shelf.store is not None

    async def put(self, resource: Json, items: list[Json], *, is_streamed: bool = False) -> bool:
        """False: it isn't known to be kept, after a second at most."""
        assert self._shelf.store
        return await self._write(resource, self._shelf.store.put, self._owner, resource, items, is_streamed)

    async def finish(self, resource: Json) -> bool:
        """As `put`."""
        assert self._shelf.store
        return await self._write(resource, self._shelf.store.finish, self._owner, resource)

    async def _write(self, resource: Json, function: Callable[P, bool], *args: P.args, **kwargs: P.kwargs) -> bool:
        shelf = self._shelf
        if shelf.n_unwritten >= _MOST_UNWRITTEN:
            _log.warning("the response %s isn't kept: %d others wait for the disk", resource["id"], shelf.n_unwritten)
            return False
        job = shelf.begin(function, *args, **kwargs)
        shelf.n_unwritten += 1
        written = asyncio.wrap_future(job)
        written.add_done_callback(self._note_written)
        is_kept = await _within(_KEEP_S, written, late=False, broken=False)
        if not is_kept:
            _log.warning("the response %s was not kept", resource["id"])
        return is_kept

    async def find(self, response_id: str) -> KeptResponse | None:
        """As it is now, if it is being made."""
        store = self._shelf.store
        found = await self._shelf.ask(None, store.find, self._owner, response_id) if store else None
        live = self.live(response_id)
        if found is None:
            return KeptResponse(live.snapshot(), False) if live else None
        if found.is_ours:
            return KeptResponse(live.snapshot() if live else as_lost(found.resource), found.is_streamed)
        return KeptResponse(found.resource, found.is_streamed)

    async def resource(self, response_id: str) -> Json | None:
        found = await self.find(response_id)
        return found.resource if found else None

    async def conversation(self, response_id: str, *, with_output: bool) -> list[Json] | None:
        store = self._shelf.store
        if store is None:
            return None
        await self._shelf.charge(store.history_bytes, self._owner, response_id)
        return await self._shelf.ask(None, store.conversation, self._owner, response_id, with_output=with_output)

    async def item(self, item_id: str) -> Json | None:
        """Of a stored response, or of a conversation."""
        store, conversations = self._shelf.store, self._shelf.conversations
        found = None
        if store is not None:
            n_bytes = await self._shelf.charge(store.item_bytes, self._owner, item_id)
            found = await self._shelf.ask(None, store.item, self._owner, item_id)
            current_charge().give_back(n_bytes)
        if found is None and conversations is not None:
            found = await self._shelf.ask(None, conversations.item_anywhere, self._owner, item_id)
        if found is not None:
            current_charge().add(await self._shelf.ask(0, _memory_of, found), NAMED)
        return found

    async def delete(self, response_id: str) -> bool:
        store = self._shelf.store
        return await self._shelf.ask(False, store.delete, self._owner, response_id) if store else False

    async def totals(self) -> KeptTotals:
        """Of all owners. Metrics don't wait for a disk: what was true last is told then. One question at a time."""
        shelf = self._shelf
        if shelf.store is None:
            return shelf.totals
        if shelf.counting is None or shelf.counting.done():
            shelf.counting = asyncio.wrap_future(shelf.begin(shelf.store.totals))
        known = shelf.totals.entries, shelf.totals.n_bytes
        entries, n_bytes = await _within(_TOTALS_S, shelf.counting, late=known, broken=(0, 0))
        shelf.totals = KeptTotals(entries, n_bytes, shelf.store.counts.evicted, shelf.store.counts.expired)
        return shelf.totals

    def begin(self, response_id: str, events: ResponseEvents) -> None:
        self._shelf.live[self._owner, response_id] = events

    def live(self, response_id: str) -> ResponseEvents | None:
        return self._shelf.live.get((self._owner, response_id))

    def _note_written(self, _: asyncio.Future[bool]) -> None:
        self._shelf.n_unwritten -= 1


def _memory_of(item: Json) -> int:
    return memory_of(json.dumps(item))


async def _within(limit_s: float, job: asyncio.Future[T], *, late: L, broken: B) -> T | L | B:
    """The result of `job`, which goes on behind the limit; `broken` if the file can't be used."""
    job.add_done_callback(_retrieved)
    try:
        return await asyncio.wait_for(asyncio.shield(job), limit_s)
    except TimeoutError:
        return late
    except (sqlite3.Error, OSError) as error:
        _log.error("the store of responses failed (responses.store_path): %s", error)
        return broken


def _retrieved(job: asyncio.Future[Any]) -> None:
    if not job.cancelled():
        job.exception()


def response_shelf(config: Config) -> ResponseShelf:
    lane = Lane("imp-store", stuck_s=config.server.stuck_thread_s)
    knobs = config.responses
    if knobs.store == "off" or not (knobs.store_ttl_s and knobs.store_max_entries and knobs.store_max_mib):
        return ResponseShelf(None, lane)
    path = knobs.store_path or str(imp_home() / "responses.sqlite")
    most, n_bytes = knobs.store_max_entries, knobs.store_max_mib * 2**20
    store = ResponsesStore(path, ttl_s=knobs.store_ttl_s, max_entries=most, max_bytes=n_bytes)
    return ResponseShelf(store, lane, ConversationsStore(store.file, max_entries=most, max_bytes=n_bytes))
