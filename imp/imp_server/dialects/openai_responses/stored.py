"""Input items as the store keeps and lists them: each with an id, message text always as parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from imp_server.dialects.openai_responses.input import Item

Json = dict[str, Any]

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}


def with_ids(items: Sequence[Item], response_id: str) -> list[Json]:
    """Ids are unique per response and stable; ids that the client sent (replayed items) stay."""
    suffix = response_id.removeprefix("resp_")
    return [_stored(item, f"{suffix}_in{i}") for i, item in enumerate(items)]


def _stored(item: Item, name: str) -> Json:
    kind = item.get("type", "message")
    stored = {"id": item.get("id") or f"{_PREFIXES.get(kind, 'item')}_{name}", "type": kind, "status": "completed"}
    stored |= {key: value for key, value in item.items() if value is not None and (value or key not in stored)}
    if kind == "message" and isinstance(item["content"], str):
        stored["content"] = [_text_part(item["role"], item["content"])]
    if kind == "reasoning":
        stored.setdefault("summary", [])
    return stored


def _text_part(role: str, text: str) -> Json:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


def page(items: Sequence[Json], query: dict[str, Any]) -> Json:
    """One page of the list. `query`: after, limit (20), order (desc)."""
    ordered = list(items) if query.get("order") == "asc" else list(reversed(items))
    ids = [item["id"] for item in ordered]
    after = query.get("after")
    start = ids.index(after) + 1 if after in ids else 0
    limit = query.get("limit", 20)
    data = ordered[start : start + limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + limit < len(ordered),
    }
