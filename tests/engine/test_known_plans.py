"""A grammar's text travels once; an engine that has given it up, or was started anew, asks for it."""

from __future__ import annotations

from typing import Any

from imp_server.core import GrammarPlan, OutputPlan, SamplingParams
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.constrained.grammars import Grammars
from imp_server.engine.known_plans import KnownPlans
from imp_server.engine.messages import NeedGrammar, Submit, ToEngine
from imp_server.grammar.check import check_schema

from tests.engine.test_constrained import IDS, SCHEMA
from tests.engine.tiny_engine import END, Tiny, ask, request, vocabulary, with_engine


def test_the_payload_travels_once_and_again_when_it_is_asked_for() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        def wanted(schema: dict[str, Any] = SCHEMA) -> Any:
            plan = OutputPlan(end_ids=(END,), max_tokens=60, grammar=check_schema(schema))
            return request(engine, IDS[:20], plan=plan, sampling=SamplingParams(temperature=0))

        sent: list[Submit] = []
        asked: list[NeedGrammar] = []
        send, receive = engine._requests._send, engine._requests.receive

        def note(message: ToEngine) -> None:
            if isinstance(message, Submit):
                sent.append(message)
            send(message)

        def note_asked(message: Any) -> None:
            if isinstance(message, NeedGrammar):
                asked.append(message)
            receive(message)

        engine._requests._send = note
        engine._requests.receive = note_asked  # type: ignore[method-assign]
        first = (await ask(engine, wanted()))[0].ids
        assert (await ask(engine, wanted()))[0].ids == first
        assert [s.has_grammar for s in sent] == [True, False] and not asked
        assert sent[1].request.plan.grammar is not None and sent[1].request.plan.grammar.payload == b""
        plan = check_schema({**SCHEMA, "title": "never seen by this engine"})
        engine._requests._sent._digests[plan.digest] = None  # type: ignore[union-attr]
        sent.clear()
        assert (await ask(engine, wanted({**SCHEMA, "title": "never seen by this engine"})))[0].ids == first
        assert [s.has_grammar for s in sent] == [False, True] and len(asked) == 1

    with_engine(body, make_constraint=Grammars(vocabulary()))


def test_the_oldest_plans_are_given_up() -> None:
    known = KnownPlans(most_bytes=1000)
    plans = [GrammarPlan("json_schema", f"d{i}", b"x" * 400) for i in range(3)]
    for plan in plans:
        assert known.whole(plan, has_payload=True) is plan
    light = [GrammarPlan("json_schema", f"d{i}", b"") for i in range(3)]
    assert [known.whole(plan, has_payload=False) for plan in light] == [None, *plans[1:]]
    assert known.n_bytes == 800
