"""Drafts change nothing: the same ids, logprobs and ends with and without, under any sampling, alone and in batches."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any, cast

import numpy as np
import pytest
from imp_server.core import OutputPlan, SamplingParams, Segment, pack_ids, special
from imp_server.decode.drafter import ANY_ROWS, Draft, DraftedRow, Float32s, RowDrafter
from imp_server.decode.forced import ForcedDrafter, ForcedRow
from imp_server.decode.ngram import NgramDrafter, NgramKnobs, NgramRow
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.constrained.grammars import Grammars
from imp_server.engine.drafting.drafts import Acceptance, RowDrafting
from imp_server.engine.drafting.speculation import Speculation, _Proposal
from imp_server.grammar.check import check_schema
from imp_server.schedule.cost import CostTable

from tests.backends.array_source import mixed_groups
from tests.decode.test_ngram import row as ngram_row
from tests.engine.tiny_engine import END, UNTHINK, Answer, Tiny, ask, request, vocabulary, with_engine

EAGER = NgramKnobs(k=5, min_match=1, max_match=3, miss_burst=0, give_up_after=0)
"""Drafts at every chance, mostly wrong ones."""
PLANS = (
    OutputPlan(max_tokens=40),
    OutputPlan(max_tokens=40, end_ids=tuple(range(0, 97, 9))),
    OutputPlan(max_tokens=40, stop=(b"ab", b"q", b"7")),
    OutputPlan(
        segments=(Segment("think", closers=(special("</think>"),)), Segment("answer")),
        max_tokens=40,
        think_budget=7,
        think_closer=pack_ids([UNTHINK]),
    ),
)
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3, "repeat_last_n": 8},
    {"temperature": 0.0, "dry_multiplier": 0.8},
    {"temperature": 0.05, "top_k": 0, "top_p": 1.0},
    {"temperature": 0.8, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"temperature": 0.3, "typical_p": 0.8},
    {"temperature": 0.3, "mirostat": 2},
)


def case(rng: np.random.Generator) -> dict[str, Any]:
    """A request with a prompt that repeats itself."""
    piece = rng.integers(0, 94, int(rng.integers(1, 9))).tolist()
    sampling = SamplingParams(**SAMPLINGS[rng.integers(len(SAMPLINGS))], seed=int(rng.integers(99)))
    return {
        "prompt": (piece * 20)[: int(rng.integers(1, 60))],
        "sampling": sampling,
        "plan": PLANS[rng.integers(len(PLANS))],
        "n": int(rng.integers(1, 3)),
        "logprobs": [None, 0, 2][rng.integers(3)],
        "logprobs_as_drawn": bool(rng.integers(2)),
    }


def predicted(case: dict[str, Any], answers: list[Answer], rng: np.random.Generator) -> dict[str, Any]:
    """The case with a prediction that is mostly right, for one of its choices."""
    ids = list(answers[int(rng.integers(len(answers)))].ids)
    for _ in range(int(rng.integers(3))):
        ids[int(rng.integers(len(ids)))] = 3
    return case | {"prediction": pack_ids(ids)}


async def play(engine: InlineEngine, cases: list[dict[str, Any]], speculative: bool) -> list[list[Answer]]:
    wanted = [request(engine, **each, speculative=speculative) for each in cases]
    return list(await asyncio.gather(*(ask(engine, each) for each in wanted)))


def check_equal(plain: list[list[Answer]], drafted: list[list[Answer]]) -> None:
    for one, other in zip(chain(*plain), chain(*drafted), strict=True):
        assert one.ids == other.ids
        assert one.logprobs == other.logprobs
        assert one.finish and other.finish
        assert one.finish.usage.drafted_tokens == 0
        assert (one.finish.reason, one.finish.stop_string, one.finish.detail) == (
            other.finish.reason,
            other.finish.stop_string,
            other.finish.detail,
        )
        assert one.finish.usage.completion_tokens == other.finish.usage.completion_tokens
        assert one.finish.usage.reasoning_tokens == other.finish.usage.reasoning_tokens


@pytest.mark.parametrize("groups", ["full", "mixed"])
def test_ids_are_the_same_with_and_without(groups: str) -> None:
    rng = np.random.default_rng(5)
    fields: dict[str, Any] = {"architecture": mixed_groups()} if groups == "mixed" else {}

    async def body(engine: InlineEngine, _: Tiny) -> None:
        n_drafted = n_accepted = 0
        for n_cases in [1, 3, 1, 4, 2, 4]:
            cases = [case(rng) for _ in range(n_cases)]
            plain = await play(engine, cases, False)
            cases = [predicted(each, answers, rng) for each, answers in zip(cases, plain)]
            drafted = await play(engine, cases, True)
            check_equal(plain, drafted)
            for answer in chain(*drafted):
                assert answer.finish
                usage = answer.finish.usage
                n_drafted += usage.drafted_tokens
                n_accepted += usage.accepted_tokens
                assert usage.accepted_prediction_tokens <= usage.accepted_tokens
        assert n_drafted > 300 and n_accepted > 200, "so few that nothing was tested"
        counters, _rows = await engine.stats()
        assert counters["spec_ngram_drafted_total"] == counters["spec_drafted_total"] == n_drafted
        assert counters["spec_accepted_total"] == n_accepted
        assert counters["spec_emitted_total"] == n_accepted + counters["spec_verify_steps_total"]

    with_engine(body, drafters=[NgramDrafter(EAGER)], n_rows=4, n_blocks=96, **fields)


def test_a_prediction_saves_steps_and_is_counted() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        prompt = [5, 17, 80, 3]
        (plain,) = await ask(engine, request(engine, prompt, 40, speculative=False))
        wrong = [*plain.ids[:20], (plain.ids[20] + 1) % 90]
        (drafted,) = await ask(engine, request(engine, prompt, 40, prediction=pack_ids(wrong)))
        assert drafted.ids == plain.ids and drafted.finish
        usage = drafted.finish.usage
        assert usage.accepted_prediction_tokens >= 16
        assert 1 <= usage.rejected_prediction_tokens < 16

    with_engine(body, drafters=[NgramDrafter()])


class Fixed:
    """Proposes nonsense of a length."""

    name = "fixed"
    confidence = 0.8
    wants_hidden = False
    most_rows = ANY_ROWS
    silent_until = 0

    def start(self, row: DraftedRow) -> Fixed:
        return self

    def propose(self, limit: int) -> Draft:
        return Draft(np.full(min(limit, 8), 1, dtype=np.int32))

    def settle(self, n_drafted: int, n_accepted: int) -> None:
        pass

    def take_hidden(self, position: int, hidden: Float32s) -> None:
        pass

    def close(self) -> None:
        pass


def table(ms_by_tokens: dict[int, float]) -> CostTable:
    costs = CostTable()
    for n, ms in ms_by_tokens.items():
        costs.observe(n, ms)
    return costs


def test_the_cost_table_decides_how_long_a_draft_is() -> None:
    def length(speculation: Speculation, n: int, rate: float) -> int:
        return speculation._best(n, lambda n: sum(rate**i for i in range(1, n + 1)), 1, 1.0)[0]

    cheap = Speculation(costs=table({1: 10.0, 9: 12.0, 17: 14.0}))
    assert length(cheap, 16, 0.9) == 16
    steep = Speculation(costs=table({1: 10.0, 2: 11.0, 4: 14.0, 9: 90.0}))
    assert 1 <= length(steep, 8, 0.9) <= 3
    assert length(steep, 8, 0.05) == 0
    linear = Speculation(costs=table({1: 10.0, 2: 20.0, 16: 160.0}))
    assert length(linear, 8, 0.9) == 0
    assert length(Speculation(costs=None), 8, 0.0) == 8


def test_a_drafter_that_knows_its_odds_decides_by_them() -> None:
    costs = table({1: 10.0, 2: 11.0, 3: 12.0, 9: 18.0})
    acceptance = Acceptance(0.9)
    for odds, wanted in (((0.95, 0.9, 0.02, 0.9), 2), ((0.05, 0.9, 0.9), 0), ((), 4)):
        proposal = _Proposal(np.zeros(4, dtype=np.int32), cast(RowDrafter, None), acceptance, odds)
        assert Speculation(costs=costs)._best(4, proposal.expected, 1, 1.0)[0] == wanted


def test_failing_drafts_are_given_up_and_tried_again_later() -> None:
    acceptance = Acceptance(0.8)
    for _ in range(6):
        acceptance.note(8, 0)
    assert acceptance.rate < 0.3
    acceptance.decline(10)
    acceptance.decline(100)
    assert acceptance.rate < 0.3
    acceptance.decline(10 + 128)
    assert acceptance.rate == 0.8


def test_a_row_is_silent_only_while_all_its_drafters_are() -> None:
    """Forced text and a draft model may have something to say at any token, however long n-grams found nothing."""
    _, ngram = ngram_row([1, 2, 3])
    ngram.silent_until = 40
    with_forced = RowDrafting(
        {
            "ngram": (ngram, Acceptance(0.8)),
            "forced": (ForcedRow(forced_drafter(), bytes, DraftedRow(ngram._sampler)), Acceptance(0.95)),
        }
    )
    alone = RowDrafting({"ngram": (ngram, Acceptance(0.8))})
    for drafting in (with_forced, alone, nobody := RowDrafting({})):
        drafting.note_silence()
    assert (with_forced.silent_until, alone.silent_until) == (0, 40)
    assert nobody.silent_until > 1 << 40


def test_a_drafter_begins_with_a_short_draft_unless_it_is_sure() -> None:
    guessing, sure = Acceptance(0.8), Acceptance(0.95)
    assert guessing.limit == 3 and sure.limit is None
    guessing.note(3, 3)
    assert guessing.limit is None


def test_useless_drafts_cost_little() -> None:
    """A drafter that is always wrong: few of a long reply's steps carry its drafts."""

    async def body(engine: InlineEngine, setup: Tiny) -> None:
        assert setup.loop
        costs = table({1: 10.0, 3: 13.0, 9: 20.0})
        costs.observe = lambda *_: None  # type: ignore[method-assign]
        setup.loop.parts.speculation = Speculation([Fixed()], costs=costs)
        banned = SamplingParams(temperature=0.0, banned_ids=(1,))
        (answer,) = await ask(engine, request(engine, [3, 4], 200, sampling=banned))
        assert answer.finish and answer.finish.usage.verify_steps <= 12

    with_engine(body)


def test_drafts_that_do_not_pay_are_looked_for_less_and_less_until_they_do() -> None:
    """A reply of one token over and over: there is always a draft, but its price is too high."""
    looked: list[int] = []

    class Watched(NgramDrafter):
        def start(self, row: DraftedRow) -> NgramRow:
            started = super().start(row)
            propose = started.propose

            def watched(limit: int) -> Draft:
                looked.append(row.sampler.position)
                return propose(limit)

            started.propose = watched  # type: ignore[method-assign]
            return started

    async def body(engine: InlineEngine, setup: Tiny) -> None:
        assert setup.loop
        dear, cheap = table({1: 10.0, 2: 40.0, 64: 900.0}), table({1: 10.0, 64: 11.0})
        dear.observe = cheap.observe = lambda *_: None  # type: ignore[method-assign]
        speculation = setup.loop.parts.speculation = Speculation([Watched()], costs=dear)
        only = SamplingParams(temperature=0.0, logit_bias=((7, 100.0),))
        (answer,) = await ask(engine, request(engine, [3, 4], 150, sampling=only))
        assert answer.finish and answer.finish.usage.drafted_tokens == 0
        assert len(looked) < 70 and np.diff(looked[:8]).tolist() == [1] * 7
        assert speculation.counters()['spec_declined_total{reason="cost"}'] > 20
        speculation._costs = cheap
        (answer,) = await ask(engine, request(engine, [3, 4], 150, sampling=only))
        assert answer.finish and answer.finish.usage.accepted_tokens > 100

    with_engine(body)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "is_confirmed": {"type": "boolean"}},
    "required": ["name", "is_confirmed"],
    "additionalProperties": False,
}


def encode(text: str) -> list[int]:
    return [ord(c) - 32 for c in text]


def forced_drafter() -> ForcedDrafter:
    return ForcedDrafter(encode, vocabulary().token_bytes)


def test_drafts_under_a_grammar_change_nothing_and_save_steps() -> None:
    """Cut by length, steered to the end, free: alone and together, with logprobs."""
    grammar = check_schema(SCHEMA)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        n_forced = 0
        for max_tokens in (35, 48, 120):
            plan = OutputPlan(end_ids=(END,), max_tokens=max_tokens, steers=True, grammar=grammar)
            cases: list[dict[str, Any]] = [
                {
                    "prompt": encode('{"name":"ab","is_confirmed":true}' * 2)[: 20 + seed],
                    "plan": plan,
                    "sampling": SamplingParams(
                        temperature=0.5 * (seed % 3), top_k=0, top_p=1.0, seed=seed, mirostat=miro
                    ),
                    "logprobs": 1,
                }
                for seed, miro in enumerate((0, 0, 0, 0, 2, 2))
            ]
            plain, drafted = await play(engine, cases, False), await play(engine, cases, True)
            check_equal(plain, drafted)
            n_forced += sum(a.finish.usage.accepted_tokens for (a,) in drafted if a.finish)
        counters, _rows = await engine.stats()
        assert counters["grammar_dead_ends_total"] == 0
        assert counters["spec_forced_accepted_total"] > 60 and n_forced > 60

    drafters = [forced_drafter(), NgramDrafter(EAGER)]
    with_engine(body, drafters=drafters, make_constraint=Grammars(vocabulary()), n_blocks=96)


def test_forced_text_is_cut_at_whole_characters_and_open_ends() -> None:
    token_bytes = [b"a", b"b", b"ab", b"abc", b"\xc3\xa9", b"z"]
    drafter = ForcedDrafter(lambda text: [token_bytes.index(c.encode()) for c in text], token_bytes)
    assert drafter.ids_of(b"zba") == [5, 1], "a may begin ab"
    assert drafter.ids_of(b"bz") == [1, 5]
    assert drafter.ids_of("zé".encode()) == [5, 4]
    assert drafter.ids_of("zé".encode()[:-1]) == [5]
    assert drafter.ids_of(b"z" + special("</think>") + b"a") == [5]


def test_a_cut_that_the_model_prefers_is_proposed_the_next_time() -> None:
    token_bytes = [b"name", b"na", b"me", b"s", b'"']
    drafter = ForcedDrafter(lambda text: [0] * (text[:4] == "name"), token_bytes)
    assert drafter.ids_of(b"name") == [0]
    drafter.learn(b'names"', [1, 2])
    assert drafter.ids_of(b'names"') == [1, 2] and drafter.ids_of(b"name") == [0]
    drafter.learn(b"name", [4])
    assert drafter.ids_of(b"name") == [0], "what isn't the forced text teaches nothing"
