"""What the Responses handlers ask of whoever keeps responses (api/responses_kept.py): stored ones and live ones."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import msgspec

from imp_server.core import NotFound, PayloadTooLarge
from imp_server.dialects.intents import Body, present
from imp_server.dialects.openai_responses.events import ResponseEvents
from imp_server.dialects.openai_responses.input import Item, is_reference
from imp_server.dialects.resumable import Readable

Json = dict[str, Any]


class KeptTotals(NamedTuple):
    """For the metrics; the last two count since the process started."""

    entries: int
    n_bytes: int
    evictions: int
    expired: int


class KeptResponse(NamedTuple):
    """A response that is stored, or that is being made."""

    resource: Json
    is_streamed: bool
    """Its events can be asked for, for a while."""


class Kept(Protocol):
    """The store of responses and conversations, as one owner's requests see it (api/responses_kept.py)."""

    @property
    def is_on(self) -> bool: ...

    async def put(self, resource: Json, items: list[Json], *, is_streamed: bool = False) -> bool:
        """`items`: the new input, each with an id. False: it couldn't be kept; the answer itself is good."""
        ...

    async def finish(self, resource: Json) -> bool:
        """The end of one that was put unfinished. False: it isn't there any more, or couldn't be kept."""
        ...

    async def find(self, response_id: str) -> KeptResponse | None: ...

    async def conversation(self, response_id: str, *, with_output: bool) -> list[Json] | None:
        """All items up to and including this response's input (and output), oldest first; None if it is unknown."""
        ...

    async def item(self, item_id: str) -> Json | None:
        """A stored input or output item."""
        ...

    async def delete(self, response_id: str) -> bool: ...

    async def totals(self) -> KeptTotals: ...

    def begin(self, response_id: str, events: ResponseEvents) -> None:
        """The response is being made; forgotten when its reply is."""
        ...

    def live(self, response_id: str) -> ResponseEvents | None: ...


class BackgroundRuns(Protocol):
    """Responses that are made without a client, as one owner's requests see them."""

    def events(self, response_id: str, after: int) -> Readable:
        """Those with a higher sequence number, live. Raises InvalidRequest for those that aren't kept any more."""
        ...

    def stop(self, response_id: str) -> None:
        """Its end isn't told to anybody. Nothing happens for an unknown one."""
        ...


class ResponseNotFound(NotFound):
    default_code = "response_not_found"

    def __init__(self, response_id: str, param: str | None = None) -> None:
        super().__init__(
            f"no response {response_id[:100]!r}: it expired, was deleted, or was made with store false; "
            "send the whole conversation as input instead",
            param=param,
        )


class PreviousResponseNotFound(ResponseNotFound):
    default_code = "previous_response_not_found"


MOST_NAMED_BYTES = 100 << 20
"""Of all items together that a request names instead of sending them: what a body may hold by default."""


class Finds(Protocol):
    """Where a request's earlier items are looked for."""

    async def conversation(self, response_id: str, *, with_output: bool) -> list[Json] | None: ...

    async def item(self, item_id: str) -> Json | None: ...


async def history_of(finds: Finds, body: Body) -> list[dict[str, Any]]:
    previous = present(body, "previous_response_id")
    if previous is None:
        return []
    items = await finds.conversation(previous, with_output=True)
    if items is None:
        raise PreviousResponseNotFound(previous, "previous_response_id")
    return items


async def resolved(finds: Finds, items: list[Item]) -> list[Item]:
    """Item references replaced by what they name. Raises PayloadTooLarge beyond MOST_NAMED_BYTES of it."""
    found: list[Item] = []
    known: dict[str, tuple[Json, int]] = {}
    n_bytes = 0
    for i, item in enumerate(items):
        if not is_reference(item):
            found.append(item)
            continue
        if item["id"] not in known:
            named = await finds.item(item["id"])
            if named is None:
                raise NotFound(f"no stored item {item['id'][:100]!r}; send the item itself", param=f"input[{i}].id")
            known[item["id"]] = named, len(msgspec.json.encode(named))
        named, size = known[item["id"]]
        n_bytes += size
        if n_bytes > MOST_NAMED_BYTES:
            raise PayloadTooLarge(f"the items that are named hold more than {MOST_NAMED_BYTES >> 20} MiB; name fewer")
        found.append(named)
    return found
