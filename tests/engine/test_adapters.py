"""Adapters come and go while requests are on their way."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from imp_server.core import AdapterUse, GrammarPlan, InvalidRequest, OutputPlan
from imp_server.engine.client.inline import InlineEngine

from tests.engine.test_constrained import FAKE, Fake
from tests.engine.test_prefix_reuse import SHARED, with_one_slot
from tests.engine.tiny_engine import END, Tiny, ask, request, with_engine


@pytest.mark.parametrize("use", [AdapterUse("a"), AdapterUse(0), AdapterUse("a", 0.0)])
def test_one_that_a_starting_request_chose_stays(use: AdapterUse) -> None:
    """The request was told that it is loaded, and its grammar takes its time."""
    begun, door = threading.Event(), threading.Event()

    def make(plan: GrammarPlan) -> Any:
        begun.set()
        door.wait(10)
        return Fake()

    async def body(engine: InlineEngine, _: Tiny) -> None:
        await engine.load_adapter("a", "/a")
        plan = OutputPlan(end_ids=(END,), max_tokens=4, grammar=FAKE)
        asked = asyncio.ensure_future(ask(engine, request(engine, SHARED, plan=plan, adapters=(use,))))
        try:
            assert await asyncio.to_thread(begun.wait, 10)
            with pytest.raises(InvalidRequest, match="in use"):
                await asyncio.wait_for(engine.unload_adapter("a"), 10)
        finally:
            door.set()
        (answer,) = await asyncio.wait_for(asked, 10)
        assert len(answer.ids) == 4
        await engine.unload_adapter("a")

    with_engine(body, make_constraint=make, wrap=with_one_slot)
