"""Items that a request names: each is read once, and together they are bounded like a body."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from imp_server.core import PayloadTooLarge
from imp_server.dialects.openai_responses import kept


class Finds:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def item(self, item_id: str) -> dict[str, Any]:
        self.asked.append(item_id)
        return {"id": item_id, "type": "message", "text": "x" * 1000}


def named(*ids: str) -> list[Mapping[str, Any]]:
    return [{"type": "item_reference", "id": item_id} for item_id in ids]


def test_an_item_that_is_named_often_is_read_once() -> None:
    finds: Any = Finds()
    found = asyncio.run(kept.resolved(finds, named("a", "b", "a", "a")))
    assert [item["id"] for item in found] == ["a", "b", "a", "a"] and finds.asked == ["a", "b"]


def test_what_names_bring_along_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_NAMED_BYTES", 2500)
    finds: Any = Finds()
    assert len(asyncio.run(kept.resolved(finds, named("a", "a")))) == 2
    with pytest.raises(PayloadTooLarge):
        asyncio.run(kept.resolved(finds, named("a", "a", "a")))
