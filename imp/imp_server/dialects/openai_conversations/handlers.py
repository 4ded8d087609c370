"""Conversations and their items. Each item has an id; a response adds its own when it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from imp_server.core import NotFound
from imp_server.dialects.handler import Call, JsonReply, Reply, handler
from imp_server.dialects.ids import new_id
from imp_server.dialects.intents import present
from imp_server.dialects.openai_conversations.kept import ConversationNotFound
from imp_server.dialects.openai_responses.kept import resolved
from imp_server.dialects.openai_responses.stored import with_ids

Json = dict[str, Any]


async def _items(call: Call) -> list[Json]:
    """Those of the request, with ids, and with what references name in their place."""
    items = await resolved(call.services.responses, present(call.body, "items", []))
    return with_ids(items, new_id("resp_"))


def _found(call: Call, conversation: Json | None) -> Json:
    if conversation is None:
        raise ConversationNotFound(call.path["conversation_id"])
    return conversation


def _list(items: Sequence[Json], *, has_more: bool) -> Json:
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


@handler
async def create_conversation(call: Call) -> Reply:
    metadata = present(call.body, "metadata", {})
    return JsonReply(await call.services.conversations.create(new_id("conv_"), metadata, await _items(call)))


@handler
async def get_conversation(call: Call) -> Reply:
    return JsonReply(_found(call, await call.services.conversations.get(call.path["conversation_id"])))


@handler
async def update_conversation(call: Call) -> Reply:
    metadata = present(call.body, "metadata", {})
    return JsonReply(_found(call, await call.services.conversations.update(call.path["conversation_id"], metadata)))


@handler
async def delete_conversation(call: Call) -> Reply:
    name = call.path["conversation_id"]
    if not await call.services.conversations.delete(name):
        raise ConversationNotFound(name)
    return JsonReply({"id": name, "object": "conversation.deleted", "deleted": True})


@handler
async def create_items(call: Call) -> Reply:
    name = call.path["conversation_id"]
    added = await call.services.conversations.append(name, await _items(call))
    if added is None:
        raise ConversationNotFound(name)
    return JsonReply(_list(added, has_more=False))


@handler
async def list_items(call: Call) -> Reply:
    name, query = call.path["conversation_id"], call.query
    page = await call.services.conversations.page(
        name, after=query.get("after"), limit=query.get("limit", 20), is_ascending=query.get("order") == "asc"
    )
    if page is None:
        raise ConversationNotFound(name)
    return JsonReply(_list(page.items, has_more=page.has_more))


@handler
async def get_item(call: Call) -> Reply:
    name, item_id = call.path["conversation_id"], call.path["item_id"]
    if (item := await call.services.conversations.item(name, item_id)) is None:
        _found(call, await call.services.conversations.get(name))
        raise NotFound(f"no item {item_id[:100]!r} in this conversation", param="item_id")
    return JsonReply(item)


@handler
async def delete_item(call: Call) -> Reply:
    name, item_id = call.path["conversation_id"], call.path["item_id"]
    if (conversation := await call.services.conversations.delete_item(name, item_id)) is None:
        _found(call, await call.services.conversations.get(name))
        raise NotFound(f"no item {item_id[:100]!r} in this conversation", param="item_id")
    return JsonReply(conversation)
