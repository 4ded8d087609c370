"""Requests inside a request: who leaves ends those that haven't begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from imp_server.api.body import ClientGone
from imp_server.api.predictions import replies_to
from imp_server.dialects.handler import SubRequests


class Leaving:
    """A watch whose client leaves when it is told to."""

    is_gone = False

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []

    def when_gone(self, action: Callable[[], None]) -> None:
        self._actions.append(action)

    def leave(self) -> None:
        self.is_gone = True
        for action in self._actions:
            action()


def test_who_leaves_begins_no_further_requests() -> None:
    watch: Any = Leaving()
    n_begun = 0

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        nonlocal n_begun
        n_begun += 1
        await receive()
        assert (await receive())["type"] == "http.disconnect"

    async def check() -> None:
        asked = SubRequests((("/x", {}),) * 100, list)
        whole = asyncio.create_task(replies_to(app, {"headers": []}, asked, {"/x": "/x"}, "", watch))
        await asyncio.sleep(0.01)
        assert n_begun == 16
        watch.leave()
        with pytest.raises(ClientGone):
            await whole

    asyncio.run(check())
    assert n_begun == 16
