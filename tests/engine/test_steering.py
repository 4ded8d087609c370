"""Near the token limit a constrained reply is brought to its end."""

from __future__ import annotations

import json

import pytest
from imp_server.core import OutputPlan, SamplingParams
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.constrained.grammar_row import GrammarRow
from imp_server.engine.constrained.grammars import Grammars
from imp_server.engine.constrained.masking import MaskThread
from imp_server.grammar.check import check_schema

from tests.engine.any_request import encode, words
from tests.engine.test_constrained import IDS, text_of
from tests.engine.tiny_engine import END, VOCAB, Tiny, ask, request, vocabulary, with_engine

LONG = {
    "type": "object",
    "properties": {"words": {"type": "array", "items": {"type": "string"}}, "note": {"type": "string"}},
    "required": ["words", "note"],
    "additionalProperties": False,
}


def sampled(seed: int) -> SamplingParams:
    return SamplingParams(temperature=1.5, top_k=0, top_p=1.0, seed=seed)


@pytest.mark.parametrize("max_tokens", [25, 31, 48, 60])
def test_the_value_parses_at_any_limit_that_holds_the_shortest(max_tokens: int) -> None:
    plan = OutputPlan(end_ids=(END,), max_tokens=max_tokens, steers=True, grammar=check_schema(LONG))

    async def body(engine: InlineEngine, _: Tiny) -> None:
        n_steered = 0
        for seed in range(8):
            (answer,) = await ask(engine, request(engine, IDS[:20], plan=plan, sampling=sampled(seed)))
            assert set(json.loads(text_of(answer.ids))) == {"words", "note"}
            assert answer.finish and answer.finish.reason == ("length" if answer.finish.detail else "stop")
            n_steered += answer.finish.detail == "length_steered"
        assert n_steered, "a limit this short was never felt"
        counters, _rows = await engine.stats()
        assert counters["grammar_dead_ends_total"] == 0 and counters["grammar_steered_total"] > 0

    with_engine(body, make_constraint=Grammars(vocabulary()))


def test_what_steering_left_as_it_was_ends_as_it_would_have() -> None:
    """`length_steered` is told of a value exactly if it is another than without a limit, however near the limit was."""
    schema = check_schema({"type": "array", "items": {"enum": [1, 22]}, "minItems": 2})

    async def body(engine: InlineEngine, _: Tiny) -> None:
        endings = set()
        for seed in range(12):
            answers = []
            for limit in (13, 400):
                plan = OutputPlan(end_ids=(END,), max_tokens=limit, steers=True, grammar=schema)
                answers += await ask(engine, request(engine, IDS[:20], plan=plan, sampling=sampled(seed)))
            near, far = answers
            assert near.finish and far.finish and far.finish.reason == "stop"
            if near.ids == far.ids:
                expected: tuple[str, str | None] = ("stop", None)
            else:  # the same value, whose end no token was left to mark, or a shorter one
                expected = ("length", None if near.ids == far.ids[:-1] else "length_steered")
            assert (near.finish.reason, near.finish.detail) == expected
            endings.add(expected)
        assert {("stop", None), ("length", "length_steered")} <= endings, "one of the two never happened"

    with_engine(body, make_constraint=Grammars(vocabulary()))


def test_steering_costs_one_forward() -> None:
    """A model set on going on inside a string: behind the first change the masks lack what doesn't fit."""
    n_tokens = 6
    plan = OutputPlan(end_ids=(END,), max_tokens=n_tokens, steers=True, grammar=check_schema({"type": "string"}))

    async def body(engine: InlineEngine, _: Tiny) -> None:
        (answer,) = await ask(engine, request(engine, IDS[:20], plan=plan, sampling=sampled(5)))
        assert isinstance(json.loads(text_of(answer.ids)), str)
        counters, _rows = await engine.stats()
        assert 1 <= counters["grammar_steered_total"] <= n_tokens
        assert counters["computed_tokens_total"] <= 20 + n_tokens + 1

    with_engine(body, make_constraint=Grammars(vocabulary()))


def test_a_limit_below_the_shortest_value_just_cuts() -> None:
    plan = OutputPlan(end_ids=(END,), max_tokens=8, steers=True, grammar=check_schema(LONG))

    async def body(engine: InlineEngine, _: Tiny) -> None:
        (answer,) = await ask(engine, request(engine, IDS[:20], plan=plan, sampling=sampled(1)))
        assert answer.finish and answer.finish.reason == "length" and answer.finish.detail is None
        assert len(answer.ids) == 8

    with_engine(body, make_constraint=Grammars(vocabulary()))


def test_a_plan_that_forbids_it_is_never_steered() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        for seed in range(4):
            plan = OutputPlan(end_ids=(END,), max_tokens=25, grammar=check_schema(LONG))
            (answer,) = await ask(engine, request(engine, IDS[:20], plan=plan, sampling=sampled(seed)))
            assert answer.finish and (answer.finish.reason, answer.finish.detail) == ("length", None)
        counters, _rows = await engine.stats()
        assert counters["grammar_steered_total"] == 0

    with_engine(body, make_constraint=Grammars(vocabulary()))


def test_far_from_the_limit_nothing_changes() -> None:
    ids = {}
    for max_tokens in (400, 401):
        plan = OutputPlan(
            end_ids=(END,), max_tokens=max_tokens, steers=True, grammar=check_schema(LONG | {"maxProperties": 2})
        )

        async def body(engine: InlineEngine, _: Tiny, plan: OutputPlan = plan, key: int = max_tokens) -> None:
            (answer,) = await ask(engine, request(engine, IDS[:20], plan=plan, sampling=sampled(3)))
            ids[key] = answer.ids[:100]

        with_engine(body, make_constraint=Grammars(vocabulary()))
    assert ids[400] == ids[401]


def test_masks_behind_drafts_are_made_anew_when_the_rule_of_steering_changes() -> None:
    """They were asked for under another rule: too wide behind the first change, too narrow where nothing is steered."""
    masks = MaskThread(VOCAB, grammars := Grammars(words()))
    try:
        for change in ("refused", "unsteered"):
            row = GrammarRow(grammars(check_schema({"type": "string"})), (END,), masks, 3)
            drafts = encode('"a"')
            assert len(row.walk(drafts)) == len(drafts)
            assert row.judge(drafts[0]) == "ok" and row.advance(drafts[0]) and row.is_on_walk
            if change == "refused":
                row._spot = row._spot._replace(n_left=1)
                assert row.judge(drafts[1]) == "refused"
            else:
                row.steers = False
            assert row.draft_masks(3) == [] and not row.is_on_walk
    finally:
        masks.stop()
