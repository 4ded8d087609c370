"""Questions and answers of a client and its engine."""

from __future__ import annotations

import asyncio

import pytest
from imp_server.core import EngineCrashed
from imp_server.engine.client.tickets import Tickets
from imp_server.engine.messages import AskStats, CloseSession, SessionClosed, StatsReply, ToEngine


def test_answers_find_their_questions_in_any_order() -> None:
    async def body() -> None:
        sent: list[ToEngine] = []
        tickets = Tickets(sent.append)
        stats = asyncio.ensure_future(tickets.ask(AskStats, StatsReply))
        closed = asyncio.ensure_future(tickets.ask(lambda ticket: CloseSession(ticket, "s"), SessionClosed))
        await asyncio.sleep(0)
        first, second = sent
        assert isinstance(first, AskStats) and isinstance(second, CloseSession) and first.ticket != second.ticket
        tickets.answer(SessionClosed(second.ticket, 7))
        tickets.answer(StatsReply(first.ticket, {"steps_total": 3.0}))
        assert (await closed).n_blocks == 7
        assert (await stats).counters == {"steps_total": 3.0}

    asyncio.run(body())


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    async def body() -> None:
        tickets = Tickets(lambda _: None)
        asked = asyncio.ensure_future(tickets.ask(AskStats, StatsReply))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.sleep(0)
        tickets.answer(StatsReply(1, {}))
        tickets.answer(StatsReply(1, {}))

    asyncio.run(body())


def test_the_end_of_the_engine_fails_every_question() -> None:
    async def body() -> None:
        tickets = Tickets(lambda _: None)
        asked = [asyncio.ensure_future(tickets.ask(AskStats, StatsReply)) for _ in range(2)]
        await asyncio.sleep(0)
        tickets.fail_all(EngineCrashed("gone"))
        for each in asked:
            with pytest.raises(EngineCrashed):
                await each

    asyncio.run(body())
