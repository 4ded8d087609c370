"""Rendering within limits: by turns of clients, ended for those who left, begun again after a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from imp_server.core.errand import Errand, NotWanted, running
from imp_server.ui.renderer import Renderer

ENDLESS = ["[" * 60_000]


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    found = Renderer()
    yield found
    found.close()


def test_nothing_is_started_for_nobody() -> None:
    unused = Renderer()
    assert unused._workers.pid is None
    unused.close()


def test_clients_go_by_turns(renderer: Renderer) -> None:
    """One with many questions holds up another for those that are being worked on, not for all of them."""
    order: list[str] = []

    async def ask(client: str) -> None:
        assert await renderer.rendered([f"a *{client}*"], client)
        order.append(client)

    async def main() -> None:
        await asyncio.gather(*(ask("many") for _ in range(30)), *(ask("one") for _ in range(2)))

    asyncio.run(main())
    assert max(i for i, client in enumerate(order) if client == "one") < 12


def test_a_kill_costs_one_question(renderer: Renderer) -> None:
    async def main() -> None:
        endless, other = await asyncio.gather(renderer.rendered(ENDLESS, "a"), renderer.rendered(["b"], "b"))
        assert endless is None and other == [[["p", {}, "b"]]]
        for _ in range(4):
            assert await renderer.rendered(ENDLESS, "a") is None
        assert await renderer.rendered(["c"], "b") == [[["p", {}, "c"]]]

    asyncio.run(main())
    assert renderer.n_killed == 5


def test_what_nobody_waits_for_isnt_begun(renderer: Renderer) -> None:
    async def main() -> None:
        errand = Errand()
        errand.end()
        with running(errand), pytest.raises(NotWanted):
            await renderer.rendered(["a"], "a")

    asyncio.run(main())
