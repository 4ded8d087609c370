"""Conversations as one owner's requests see them: asked of the store's thread, which holds nobody up for long."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from imp_server.api.conversations_store import ConversationsStore
from imp_server.api.responses_kept import ResponseShelf
from imp_server.core import ImpError, Unavailable, UnsupportedParameter
from imp_server.core.owner import Owner
from imp_server.dialects.openai_conversations.kept import ItemPage

Json = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger(__name__)


class _Broken:
    """The file can't be used."""


_BROKEN = _Broken()


class KeptConversations:
    """Every method raises UnsupportedParameter where nothing is kept, and Unavailable where the disk won't have it."""

    def __init__(self, shelf: ResponseShelf, owner: Owner) -> None:
        self._shelf = shelf
        self._owner = owner

    async def create(self, name: str, metadata: Json, items: Sequence[Json]) -> Json:
        return await self._ask(self._store.create, self._owner, name, metadata, items)

    async def get(self, name: str) -> Json | None:
        return await self._ask(self._store.get, self._owner, name)

    async def update(self, name: str, metadata: Json) -> Json | None:
        return await self._ask(self._store.update, self._owner, name, metadata)

    async def delete(self, name: str) -> bool:
        return await self._ask(self._store.delete, self._owner, name)

    async def history(self, name: str) -> list[Json] | None:
        await self._shelf.charge(self._store.history_bytes, self._owner, name)
        return await self._ask(self._store.history, self._owner, name)

    async def append(self, name: str, items: Sequence[Json]) -> list[Json] | None:
        return await self._ask(self._store.append, self._owner, name, items)

    async def append_turn(self, name: str, items: Sequence[Json]) -> bool:
        """At the end of a response, which is good in any case. False: they aren't known to be there."""
        try:
            added = await self.append(name, items)
        except ImpError as error:
            _log.warning("the items of a response weren't added to their conversation: %s", error.code)
            return False
        return added is not None

    async def page(self, name: str, *, after: str | None, limit: int, is_ascending: bool) -> ItemPage | None:
        return await self._ask(self._store.page, self._owner, name, after=after, limit=limit, is_ascending=is_ascending)

    async def item(self, name: str, item_id: str) -> Json | None:
        return await self._ask(self._store.item, self._owner, name, item_id)

    async def delete_item(self, name: str, item_id: str) -> Json | None:
        return await self._ask(self._store.delete_item, self._owner, name, item_id)

    @property
    def _store(self) -> ConversationsStore:
        if self._shelf.conversations is None:
            raise UnsupportedParameter(
                "this server keeps no conversations (--responses-store); send the whole conversation as input",
                param="conversation",
            )
        return self._shelf.conversations

    async def _ask(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        found = await self._shelf.ask(_BROKEN, function, *args, **kwargs)
        if isinstance(found, _Broken):
            raise Unavailable("the store of conversations can't be used; try again, or send the whole conversation")
        return found
