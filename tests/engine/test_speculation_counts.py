"""What usage and metrics say of drafts: verified, accepted by position, declined and why."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
from imp_server.core import GrammarPlan, OutputPlan, Usage
from imp_server.decode.ngram import NgramDrafter, NgramKnobs
from imp_server.dialects.handler import ServerState
from imp_server.dialects.llamacpp.metrics import exposition
from imp_server.dialects.openai.usage import usage_body
from imp_server.dialects.openai_responses.kept import KeptTotals
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.drafting.speculation import Speculation
from imp_server.schedule.cost import CostTable

from tests.engine.tiny_engine import END, Tiny, ask, request, with_engine

EAGER = NgramKnobs(k=5, min_match=1, max_match=3, miss_burst=0, give_up_after=0)
LOOP = [5, 17, 80, 3] * 12


def declined(counters: dict[str, float], reason: str) -> float:
    return counters[f'spec_declined_total{{reason="{reason}"}}']


def test_usage_and_metrics_agree() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        (answer,) = await ask(engine, request(engine, LOOP, 40))
        assert answer.finish
        usage, (counters, _rows) = answer.finish.usage, await engine.stats()
        assert usage.verify_steps > 0 and usage.drafted_tokens >= usage.accepted_tokens > 0
        assert counters["spec_verify_steps_total"] == counters["spec_ngram_verify_steps_total"] == usage.verify_steps
        assert counters["spec_drafted_total"] == usage.drafted_tokens
        assert counters["spec_accepted_total"] == usage.accepted_tokens
        assert usage.accepted_tokens + usage.verify_steps >= usage.verified_tokens >= usage.accepted_tokens
        by_place = [v for n, v in sorted(counters.items()) if n.startswith("spec_accepted_per_position_total")]
        assert sum(by_place) == usage.accepted_tokens and by_place[0] == max(by_place)
        assert list(usage.accepted_by_position) == by_place
        details = usage_body(usage)["completion_tokens_details"]
        assert details["imp_spec_accepted_per_position"] == by_place
        assert details["imp_spec_mean_acceptance_length"] == counters["spec_mean_acceptance_length"]
        length = counters["spec_mean_acceptance_length"]
        assert length == 1 + usage.accepted_tokens / usage.verify_steps
        assert counters["spec_verify_wall_ms_total"] == counters["spec_ngram_verify_wall_ms_total"] > 0
        lines = set(_scraped(counters))
        assert f"imp_spec_drafted_total {usage.drafted_tokens}" in lines
        assert f'imp_spec_accepted_per_position_total{{position="0"}} {int(by_place[0])}' in lines
        assert f"llamacpp:spec_decode_num_drafts_total {usage.verify_steps}" in lines
        assert f"llamacpp:spec_decode_num_draft_tokens_total {usage.drafted_tokens}" in lines
        assert f"llamacpp:spec_decode_num_accepted_tokens_total {usage.accepted_tokens}" in lines
        assert f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {int(by_place[0])}' in lines

    with_engine(body, drafters=[NgramDrafter(EAGER)])


def _scraped(counters: dict[str, float]) -> list[str]:
    return exposition(counters, ServerState("ready", "m", 0), KeptTotals(0, 0, 0, 0)).decode().splitlines()


def test_without_speculation_the_metrics_are_there_and_zero() -> None:
    lines = _scraped({})
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert f"llamacpp:spec_decode_{name}_total 0" in lines
    assert not any(line.startswith("llamacpp:spec_decode_num_accepted_tokens_per_pos_total{") for line in lines)


def test_drafts_that_cost_too_much_are_declined() -> None:
    async def body(engine: InlineEngine, setup: Tiny) -> None:
        costs = CostTable()
        for n, ms in {1: 10.0, 2: 30.0, 9: 200.0}.items():
            costs.observe(n, ms)
        costs.observe = lambda *_: None  # type: ignore[method-assign]
        assert setup.loop
        setup.loop.parts.speculation = Speculation([NgramDrafter(EAGER)], costs=costs)
        (answer,) = await ask(engine, request(engine, LOOP, 20))
        assert answer.finish and answer.finish.usage.verify_steps == 0
        counters, _ = await engine.stats()
        assert declined(counters, "cost") == answer.finish.usage.declined_cost > 0
        details = usage_body(answer.finish.usage)["completion_tokens_details"]
        assert details["imp_spec_declined"] == "cost" and details["imp_spec_verify_steps"] == 0

    with_engine(body)


def test_drafts_that_memory_does_not_hold_are_declined() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        wanted = [request(engine, LOOP[i : i + 12], 36, speculative=True) for i in range(2)]
        answers = await asyncio.gather(*(ask(engine, each) for each in wanted))
        alone = [await ask(engine, request(engine, LOOP[i : i + 12], 36, speculative=False)) for i in range(2)]
        assert [a.ids for (a,) in answers] == [a.ids for (a,) in alone]
        counters, _rows = await engine.stats()
        told = sum(a.finish.usage.declined_memory for (a,) in answers if a.finish)
        assert declined(counters, "memory") == told > 0

    with_engine(body, drafters=[NgramDrafter(EAGER)], n_blocks=4, context=64)


class Slow:
    """Fourteen tokens of ten ids; its masks take longer than a step waits."""

    start = 0

    def step(self, state: int, token_id: int, patience_s: float | None = None) -> int | None:
        return state + 1 if state < 14 and token_id < 10 else None

    def known_mask(self, state: int) -> None:
        return None

    def mask(self, state: int) -> Any:
        time.sleep(0.006)
        return np.array([1023 if state < 14 else 0, 0, 0, 0], dtype=np.uint32)

    def fitting(self, state: int, n_left: int) -> tuple[Any, bool]:
        return self.mask(state), False

    def is_done(self, state: int) -> bool:
        return state >= 14

    def forced(self, state: int, patience_s: float | None = None) -> bytes:
        return b""

    def n_out(self, state: int, patience_s: float | None = None) -> int:
        return 0

    def route(self, state: int, patience_s: float | None = None) -> tuple[int, ...]:
        return ()


def test_drafts_whose_masks_are_late_are_declined() -> None:
    plan = OutputPlan(max_tokens=15, end_ids=(END,), grammar=GrammarPlan("fake", "1", b""))

    async def body(engine: InlineEngine, _: Tiny) -> None:
        prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9] * 4
        (drafted,) = await ask(engine, request(engine, prompt, plan=plan))
        (plain,) = await ask(engine, request(engine, prompt, plan=plan, speculative=False))
        assert drafted.ids == plain.ids and drafted.finish
        counters, _rows = await engine.stats()
        assert declined(counters, "masks") == drafted.finish.usage.declined_masks > 0

    with_engine(body, drafters=[NgramDrafter(EAGER)], make_constraint=lambda _plan: Slow())


def test_usage_names_the_most_frequent_reason_and_counts_all() -> None:
    usage = Usage(declined_cost=1, declined_masks=3, verify_steps=2, drafted_tokens=6, verified_tokens=5)
    details = usage_body(usage)["completion_tokens_details"]
    assert (details["imp_spec_declined"], details["imp_spec_declined_detail"]) == ("masks", "cost 1, masks 3")
    assert (details["imp_spec_emitted"], details["imp_spec_drafted"]) == (5, 6)
    assert not any(name.startswith("imp_spec") for name in usage_body(Usage())["completion_tokens_details"])
