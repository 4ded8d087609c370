"""What a WebSocket connection remembers of its responses that aren't stored, for previous_response_id."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from imp_server.dialects.openai_responses.kept import Kept

Json = dict[str, Any]
MOST_RESPONSES = 8
MOST_BYTES = 16 << 20
"""Of the longest conversation; a longer one is forgotten, and its client sends it as input."""


TURN = "imp.turn"
"""Where the ASGI scope of a message's request has its Turn."""


class _Remembered(NamedTuple):
    items: Sequence[Json]
    """The whole conversation up to the response, which included."""
    n_bytes: int


class TurnMemory:
    """Owner of the last responses of one connection."""

    def __init__(self) -> None:
        self._responses: OrderedDict[str, _Remembered] = OrderedDict()

    def conversation(self, response_id: str) -> list[Json] | None:
        found = self._responses.get(response_id)
        return None if found is None else list(found.items)

    def item(self, item_id: str) -> Json | None:
        for remembered in reversed(self._responses.values()):
            for item in remembered.items:
                if item.get("id") == item_id:
                    return item
        return None

    def remember(self, resource: Json, history: Sequence[Json], items: Sequence[Json]) -> None:
        """`history`: the items before `items`, which are the input of the response."""
        before = self._responses.get(resource["previous_response_id"] or "")
        own = [*items, *resource["output"]]
        known = before.n_bytes if before else len(msgspec.json.encode(history))
        remembered = _Remembered([*history, *own], known + len(msgspec.json.encode(own)))
        if remembered.n_bytes > MOST_BYTES:
            return
        self._responses[resource["id"]] = remembered
        while len(self._responses) > MOST_RESPONSES or self._n_bytes() > 2 * MOST_BYTES:
            self._responses.popitem(last=False)

    def forget(self, response_id: str) -> None:
        self._responses.pop(response_id, None)

    def _n_bytes(self) -> int:
        return sum(one.n_bytes for one in self._responses.values())


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a connection."""

    memory: TurnMemory
    generates: bool = True
    """False: the prompt is computed, for the turns after it, and nothing is written."""


def turn_of(scope: Mapping[str, Any]) -> Turn | None:
    found = scope.get(TURN)
    return found if isinstance(found, Turn) else None


@dataclass(frozen=True, slots=True)
class Beside:
    """Looks on the connection first, then in the store."""

    memory: TurnMemory
    kept: Kept

    async def conversation(self, response_id: str, *, with_output: bool) -> list[Json] | None:
        own = self.memory.conversation(response_id) if with_output else None
        return await self.kept.conversation(response_id, with_output=with_output) if own is None else own

    async def item(self, item_id: str) -> Json | None:
        return self.memory.item(item_id) or await self.kept.item(item_id)
