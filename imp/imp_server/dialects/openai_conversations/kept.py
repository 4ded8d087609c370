"""What handlers ask of whoever keeps conversations (api/conversations_kept.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from imp_server.core import NotFound

Json = dict[str, Any]


class ItemPage(NamedTuple):
    items: list[Json]
    has_more: bool


class Conversations(Protocol):
    """As one owner's requests see them; None: there is no such conversation. What is kept has ids."""

    async def create(self, name: str, metadata: Json, items: Sequence[Json]) -> Json: ...

    async def get(self, name: str) -> Json | None: ...

    async def update(self, name: str, metadata: Json) -> Json | None: ...

    async def delete(self, name: str) -> bool: ...

    async def history(self, name: str) -> list[Json] | None:
        """All items, oldest first."""
        ...

    async def append(self, name: str, items: Sequence[Json]) -> list[Json] | None:
        """As they are in the conversation now: an id that is taken there becomes another."""
        ...

    async def append_turn(self, name: str, items: Sequence[Json]) -> bool:
        """At the end of a response; never raises."""
        ...

    async def page(self, name: str, *, after: str | None, limit: int, is_ascending: bool) -> ItemPage | None: ...

    async def item(self, name: str, item_id: str) -> Json | None: ...

    async def delete_item(self, name: str, item_id: str) -> Json | None:
        """The conversation; None if either isn't there."""
        ...


class ConversationNotFound(NotFound):
    default_code = "conversation_not_found"

    def __init__(self, name: str, param: str | None = None) -> None:
        super().__init__(f"no conversation {name[:100]!r}: it was deleted, or never made here", param=param)
