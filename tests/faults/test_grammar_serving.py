"""Faults of other servers around their grammar engines, and what holds here instead.

| fault elsewhere | test here |
|---|---|
| a grammar that can't be made is answered unconstrained | what_cannot_be_enforced_is_refused_before_anything_streams |
| an invalid schema or regex ends the engine | a_bad_schema_harms_its_own_request_alone |
| compiling isn't limited | a_hostile_schema_does_not_stall_other_rows, grammar/test_hostile.py |
| the check's answer depends on the machine's load | the_check_answers_the_same_on_a_busy_machine |
| endless whitespace between tokens | whitespace_is_bounded |
| a reply is cut in the middle of its value | engine/test_steering.py, grammar/test_fitting.py |
| a schema isn't enforced behind reasoning | grammar/test_envelopes.py: thinking_comes_before_a_bound_answer |
| drafts are unchecked, or fail behind the end | drafts_change_nothing_in_a_batch_half_of_which_is_constrained |
| jump-ahead changes the result, takes text back | jump_ahead_on_and_off |
| a forced text is cut within a character | engine/test_speculation.py: forced_text_is_cut_at_whole_characters |
| tools are enforced in one notation only, or two constraints at once hang | text/tools/test_enforce.py |
| a closing tag begins inside a value | text/tools/test_enforce.py, grammar/test_envelopes.py |
| a special token matches by its text | grammar/test_envelopes.py: a_special_token_is_matched_by_id_alone |
| an id beyond the tokenizer's is sampled | padding_ids_are_never_allowed |
| 128 tools take tens of seconds | 128_tools_start_at_once |
| rows get each other's masks | drafts_change_nothing_in_a_batch_half_of_which_is_constrained |
| a slow mask holds the batch | the_loop_never_waits_for_a_grammar_that_another_thread_holds |
| an inner error allows the end of text only | engine/test_constrained.py: a_mask_that_raises_fails_its_request_alone |
| a dead end in the stream looks like an end | engine/test_constrained.py: a_dead_end_fails_its_request_and_is_counted |
| keywords are dropped silently | grammar/test_faults.py |
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import numpy as np
import pytest
from imp_server.core import GrammarRefused, OutputPlan, SamplingParams
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.constrained.grammars import Grammars
from imp_server.grammar.check import check_regex, check_schema
from imp_server.vocab.table import Vocabulary

from tests.engine.test_constrained import IDS, SCHEMA, text_of
from tests.engine.test_speculation import EAGER, forced_drafter
from tests.engine.tiny_engine import END, Tiny, ask, request, vocabulary, with_engine

HOSTILE: dict[str, Any] = {
    "unique items": {"type": "array", "uniqueItems": True, "minItems": 50, "items": {"type": "string"}},
    "a long pattern": {"type": "string", "pattern": "^(a?){40}[a-z]{40}(b|c.{20})*$"},
    "many alternatives": {
        "anyOf": [{"type": "object", "properties": {f"p{i}": {"const": i}}, "required": [f"p{i}"]} for i in range(60)]
    },
    "deep": {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"},
}


def plan_of(schema: Any, max_tokens: int = 120) -> OutputPlan:
    return OutputPlan(end_ids=(END,), max_tokens=max_tokens, grammar=check_schema(schema))


def wild(seed: int) -> SamplingParams:
    return SamplingParams(temperature=1.5, top_k=0, top_p=1.0, seed=seed)


async def no_dead_end(engine: InlineEngine) -> dict[str, float]:
    counters, _rows = await engine.stats()
    assert counters["grammar_dead_ends_total"] == 0 and counters["requests_failed_total"] == 0
    return dict(counters)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_does_not_stall_other_rows(name: str) -> None:
    """Counted in the engine's own steps, which a busy machine doesn't change: wherever the hostile row stands, the free
    one takes a token in each of them.
    """

    async def body(engine: InlineEngine, setup: Tiny) -> None:
        hostile = asyncio.ensure_future(
            ask(engine, request(engine, IDS[:20], plan=plan_of(HOSTILE[name]), sampling=wild(1)))
        )
        n_free = 60
        (free,) = await ask(engine, request(engine, IDS[:20], n_free))
        assert len(free.ids) == n_free
        assert setup.loop is not None
        n_steps = setup.loop._counters["steps_total"]
        assert n_steps <= n_free + 12, "the free row sat steps out"
        (answer,) = await hostile
        assert answer.finish and answer.finish.reason in ("stop", "length")
        await no_dead_end(engine)

    with_engine(body, make_constraint=Grammars(vocabulary()))


def test_the_loop_never_waits_for_a_grammar_that_another_thread_holds() -> None:
    """The mask thread sits in one grammar for two seconds; rows of a grammar known before go on meanwhile."""
    grammars = Grammars(vocabulary())

    async def body(engine: InlineEngine, _: Tiny) -> None:
        wanted: dict[str, Any] = {
            "plan": plan_of(SCHEMA),
            "sampling": SamplingParams(temperature=0.0),
            "speculative": False,
        }
        (before,) = await ask(engine, request(engine, IDS[:20], **wanted))
        space = grammars._space
        assert space is not None
        free, taken = threading.Event(), threading.Event()

        def hold() -> None:
            with space.current.lock:
                taken.set()
                free.wait(20)

        running = await engine.submit(request(engine, IDS[:20], **wanted))
        thread = threading.Thread(target=hold)
        thread.start()
        assert taken.wait(5)
        began_s = time.monotonic()
        try:
            (loose,) = await asyncio.wait_for(ask(engine, request(engine, IDS[:9], 20)), 15)
            known = [i async for delta in running for i in np.frombuffer(delta.ids, "<i4").tolist()]
        finally:
            free.set()
            thread.join()
        assert len(loose.ids) == 20 and known == before.ids
        assert time.monotonic() - began_s < 15
        await no_dead_end(engine)

    with_engine(body, make_constraint=grammars)


def test_what_cannot_be_enforced_is_refused_before_anything_streams() -> None:
    schema: dict[str, Any]
    for schema in ({"type": "string", "pattern": r"(a)\1"}, {"enum": []}, {"$ref": "https://elsewhere/schema.json"}):
        with pytest.raises(GrammarRefused):
            check_schema(schema)
    with pytest.raises(GrammarRefused):
        check_regex("(?<=a)b")


def test_a_bad_schema_harms_its_own_request_alone() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        for bad in ({"type": "string", "pattern": "("}, {"type": "nonsense"}):
            (good,) = await ask(engine, request(engine, IDS[:20], plan=plan_of(SCHEMA), sampling=wild(2)))
            assert set(json.loads(text_of(good.ids))) == {"name", "ok"}
            with pytest.raises(GrammarRefused):
                check_schema(bad)
        await no_dead_end(engine)

    with_engine(body, make_constraint=Grammars(vocabulary()))


def test_the_check_answers_the_same_on_a_busy_machine() -> None:
    """The budget is counted in work, so neighbours can't change the verdict."""
    hard = {"allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(3, 14)], "type": "string"}

    def verdict() -> str:
        try:
            return check_schema(hard).digest
        except GrammarRefused as refusal:
            return refusal.message

    alone = verdict()
    over = threading.Event()
    neighbours = [threading.Thread(target=lambda: [None for _ in iter(over.is_set, True)]) for _ in range(3)]
    for each in neighbours:
        each.start()
    try:
        assert verdict() == alone
    finally:
        over.set()
        for each in neighbours:
            each.join()


def test_whitespace_is_bounded() -> None:
    matcher = Grammars(vocabulary())(check_schema(SCHEMA))
    place, blank = matcher.step(matcher.start, ord("{") - 32), 0
    n_blanks = 0
    while place is not None and n_blanks < 500:
        place = matcher.step(place, blank)
        n_blanks += 1
    assert n_blanks < 60


def test_128_tools_start_at_once() -> None:
    """Work is done as states are entered, so the start costs the same with 128 tools as with two, about."""
    costs = []
    for n in (2, 128):
        tools = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": f"tool_{i}"},
                    "arguments": {"type": "object", "properties": {f"p{j}": {"type": "string"} for j in range(8)}},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for i in range(n)
        ]
        plan = check_schema({"anyOf": tools})
        began_s = time.thread_time()
        constraint = Grammars(vocabulary())(plan)
        constraint.mask(constraint.start)
        costs.append(time.thread_time() - began_s)
    assert costs[1] < 5.0 and costs[1] < 64 * costs[0] + 1.0


def test_padding_ids_are_never_allowed() -> None:
    """An embedding with more rows than the tokenizer has ids: the rest of the mask is zero."""
    small = Vocabulary([bytes([32 + i]) for i in range(94)], {}, end_ids=())
    constraint = Grammars(small)(check_schema({"type": "string"}))
    opened = constraint.step(constraint.start, ord('"') - 32)
    bits = np.unpackbits(constraint.mask(opened).view(np.uint8), bitorder="little")
    assert bits[:94].any() and not bits[94:].any()

    async def body(engine: InlineEngine, _: Tiny) -> None:
        plan = OutputPlan(max_tokens=30, grammar=check_schema({"type": "string"}))
        (answer,) = await ask(engine, request(engine, IDS[:20], plan=plan, sampling=wild(4)))
        assert max(answer.ids) < 94
        await no_dead_end(engine)

    with_engine(body, make_constraint=Grammars(small))


def test_drafts_change_nothing_in_a_batch_half_of_which_is_constrained() -> None:
    """Eight rows that come and go, half of them under two grammars: the same ids as each alone without drafts."""
    from imp_server.decode.ngram import NgramDrafter

    schemas = (SCHEMA, {"type": "array", "items": {"enum": ["red", "green", 7]}, "minItems": 2, "maxItems": 5})

    def wanted(engine: InlineEngine, i: int, speculative: bool) -> Any:
        sampling = SamplingParams(temperature=(0.0, 0.9)[i // 4], top_k=0, top_p=1.0, seed=i)
        plan = plan_of(schemas[i // 2 % 2], 60 + i) if i % 2 else OutputPlan(max_tokens=20 + 3 * i)
        return request(engine, IDS[i : i + 20], plan=plan, sampling=sampling, speculative=speculative)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        alone = [(await ask(engine, wanted(engine, i, False)))[0].ids for i in range(8)]
        for speculative in (True, False):
            together = await asyncio.gather(*(ask(engine, wanted(engine, i, speculative)) for i in range(8)))
            assert [answer.ids for (answer,) in together] == alone
        for i in (1, 3, 5, 7):
            json.loads(text_of(alone[i]))
        await no_dead_end(engine)

    drafters = [forced_drafter(), NgramDrafter(EAGER)]
    with_engine(body, make_constraint=Grammars(vocabulary()), drafters=drafters, n_rows=8, n_blocks=128)


def test_jump_ahead_on_and_off() -> None:
    """The same ids greedy and seeded, alone and together, as they are sent: nothing is taken back."""
    sent: dict[bool, list[list[int]]] = {}
    for jumps in (True, False):

        async def body(engine: InlineEngine, _: Tiny, jumps: bool = jumps) -> None:
            async def stream(seed: int) -> list[int]:
                sampling = SamplingParams(temperature=0.7 * (seed % 2), top_k=0, top_p=1.0, seed=seed)
                ids: list[int] = []
                wanted = request(engine, IDS[seed : seed + 20], plan=plan_of(SCHEMA, 70), sampling=sampling)
                async for delta in await engine.submit(wanted):
                    ids += np.frombuffer(delta.ids, "<i4").tolist()
                    if delta.finish:
                        assert delta.finish.usage.completion_tokens == len(ids)
                return ids

            sent[jumps] = [await stream(seed) for seed in range(4)]
            assert list(await asyncio.gather(*(stream(seed) for seed in range(4)))) == sent[jumps]
            counters = await no_dead_end(engine)
            assert (counters.get("spec_forced_accepted_total", 0) > 10) == jumps
            assert (counters["constrained_only_total"] > 10) == jumps

        drafters = [forced_drafter()] if jumps else []
        with_engine(body, make_constraint=Grammars(vocabulary()), drafters=drafters, n_blocks=96, takes_only=jumps)
    assert sent[True] == sent[False]
