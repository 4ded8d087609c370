"""What is kept of a response, and where: in the store, in its conversation, on its connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from imp_server.core import Unavailable
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.handler import Call
from imp_server.dialects.intents import present
from imp_server.dialects.openai_responses.input import Item
from imp_server.dialects.openai_responses.resource import conversation_of, resource
from imp_server.dialects.openai_responses.stored import with_ids

Json = dict[str, Any]

CONTINUED = ("completed", "incomplete")
"""What a later turn may go on from."""


class Keeping:
    """One response on its way into what outlives it. `items`: its own input; `history`: what came before."""

    def __init__(
        self, call: Call, context: ReplyContext, items: Sequence[Item], history: Sequence[Json], *, is_stored: bool
    ) -> None:
        self._call = call
        # The owner's, told now: a stream ends when its request is no longer being answered.
        self._responses, self._conversations = call.services.responses, call.services.conversations
        self._context = context
        self._history = history
        self._is_stored = is_stored
        self._items = items
        self._conversation = conversation_of(call.body)
        self.is_background = bool(present(call.body, "background", False))
        context.extra["stored"] = is_stored

    @property
    def is_needed(self) -> bool:
        return self._is_stored or self._conversation is not None or self._call.turn is not None

    async def queue(self) -> Json:
        """The response that is answered before it is made. Raises Unavailable: nobody could ask for it later."""
        start = resource(self._context, "queued", [])
        is_streamed = bool(self._call.body.get("stream"))
        if not await self._responses.put(start, self._asked(), is_streamed=is_streamed):
            raise Unavailable("the response can't be stored, so it isn't made in the background; try again")
        return start

    async def end(self, final: Json) -> None:
        """Awaited before anybody is told of the end."""
        if self._conversation is not None and final["status"] in CONTINUED:
            turn = [*self._asked(), *final["output"]]
            await self._conversations.append_turn(self._conversation, turn)
        if self.is_background:
            await self._responses.finish(final)
        elif not (self._is_stored and await self._responses.put(final, self._asked())):
            self._context.extra["stored"] = final["store"] = False
            if self._call.turn is not None and final["status"] in CONTINUED:
                self._call.turn.memory.remember(final, self._history, self._asked())

    def _asked(self) -> list[Json]:
        return with_ids(self._items, self._context.id)
