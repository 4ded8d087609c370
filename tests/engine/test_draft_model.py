"""A draft model changes nothing but the number of steps; it drafts for all rows at once and leaves no memory behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from threading import Event
from typing import Any

import numpy as np
import pytest
from imp_server.backends.base import WANT_HIDDEN, Backend, KvSpec, Step, StepResult, StepRow
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.backends.step_builder import StepBuilder
from imp_server.core import OutputPlan, SamplingParams, pack_ids
from imp_server.decode.drafter import ANY_ROWS, Draft, DraftedRow, Float32s, RowDrafter
from imp_server.decode.ngram import NgramDrafter
from imp_server.decode.state import SamplerState
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.constrained.grammars import Grammars
from imp_server.engine.drafting.draft_model import ModelDrafter
from imp_server.engine.drafting.drafters import vocabulary_difference
from imp_server.engine.drafting.speculation import Speculation
from imp_server.grammar.check import check_schema
from imp_server.models.architecture import Architecture
from imp_server.vocab.table import Vocabulary

from tests.backends.array_source import ArraySource, mixed_groups, tiny
from tests.engine.test_speculation import EAGER, PLANS, SCHEMA, case, check_equal, encode, forced_drafter, play, table
from tests.engine.tiny_engine import END, SAMPLED, VOCAB, Tiny, ask, request, vocabulary, with_engine


class Counting:
    """The draft model's backend, with the sizes of its steps. While the gate is shut it waits, and all with it."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.rows: list[int] = []
        self.n_tokens = 0
        self.fails = False
        self.gate = Event()
        self.gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, step: Step) -> StepResult:
        if self.fails:
            raise RuntimeError("out of order")
        self.rows.append(len(step.rows))
        self.n_tokens += len(step.ids)
        self.gate.wait()
        return self._inner.run(step)


def drafter(
    seed: int = 0, n_blocks: int = 64, architecture: Architecture | None = None, **more: Any
) -> tuple[ModelDrafter, Counting]:
    """Seed 0 is the tiny engine's own model: its drafts are right."""
    backend = Counting(ReferenceBackend(ArraySource(architecture or tiny(), seed)))
    kv = KvSpec((n_blocks,) * len(backend.architecture.cache_groups), "f32")
    return ModelDrafter(backend, kv, VOCAB, **more), backend


def is_empty(model: ModelDrafter) -> bool:
    """And whole."""
    model.memory.check()
    return all(counts.held == 0 for counts in model.memory.counts())


@pytest.mark.parametrize(
    ("seed", "groups"), [(0, "full"), (7, "full"), (0, "mixed"), pytest.param(7, "mixed", marks=pytest.mark.slow)]
)
def test_ids_are_the_same_with_and_without(seed: int, groups: str) -> None:
    rng = np.random.default_rng(11)
    # Read at once: how many rows get drafts in time, and with what success, would be a matter of the machine's load.
    model, _ = drafter(seed, architecture=mixed_groups() if groups == "mixed" else None, catch_up_ms=1e6)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        for n_cases in (1, 4):
            cases = [case(rng) for _ in range(n_cases)]
            check_equal(await play(engine, cases, False), await play(engine, cases, True))
        counters, _rows = await engine.stats()
        assert counters["spec_model_drafted_total"] > 40
        rate = counters["spec_model_accepted_total"] / counters["spec_model_drafted_total"]
        assert rate > 0.5 if seed == 0 and groups == "full" else rate < 0.9
        assert is_empty(model)

    with_engine(body, drafters=[model], n_blocks=96)


def test_the_same_model_is_right_under_sampling_too() -> None:
    """It draws with the row's own noise, so equal models draw equal tokens."""
    model, _ = drafter(k=8)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        for sampling in (
            SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=5),
            SamplingParams(temperature=0.7, seed=6, repetition_penalty=1.2, repeat_last_n=16),
            SamplingParams(temperature=0.9, seed=7, mirostat=2),
            SamplingParams(temperature=0.8, seed=8, dry_multiplier=0.8),
        ):
            (answer,) = await ask(engine, request(engine, [5, 17, 80, 3], 64, sampling=sampling))
            assert answer.finish
            usage = answer.finish.usage
            assert usage.accepted_tokens == usage.drafted_tokens > 40, sampling

    with_engine(body, drafters=[model])


def test_rows_draft_in_one_forward() -> None:
    model, backend = drafter(k=4)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, request(engine, [5, 40, 41], 40, n=4, sampling=SAMPLED))
        assert backend.rows.count(4) > 20
        n_drafted = (await engine.stats())[0]["spec_model_drafted_total"]
        assert len(backend.rows) < n_drafted / 2

    with_engine(body, drafters=[model])


def test_a_cancelled_row_leaves_nothing() -> None:
    model, backend = drafter()
    backend.gate.clear()

    async def body(engine: InlineEngine, _: Tiny) -> None:
        generation = await engine.submit(request(engine, [1, 2, 3], 200))
        n_bytes = 0
        async for delta in generation:
            n_bytes += len(delta.ids)
            if n_bytes:  # the first token comes before the first draft
                break
        try:
            while not backend.rows:
                await asyncio.sleep(0.01)
            assert not is_empty(model)
            generation.cancel()
        finally:
            backend.gate.set()
        while (await engine.stats())[0]["rows_running"]:
            await asyncio.sleep(0.01)
        assert is_empty(model)

    with_engine(body, drafters=[model])


def test_without_memory_rows_go_on_alone() -> None:
    model, _ = drafter(n_blocks=3)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        prompts = [list(range(number, number + 30)) for number in range(4)]
        wanted = [{"prompt": prompt, "max_tokens": 60} for prompt in prompts]
        check_equal(await play(engine, wanted, False), await play(engine, wanted, True))
        assert is_empty(model)

    with_engine(body, drafters=[model], n_blocks=96)


def test_a_draft_model_that_fails_is_left_alone() -> None:
    model, backend = drafter()

    async def body(engine: InlineEngine, _: Tiny) -> None:
        (plain,) = await ask(engine, request(engine, [1, 2, 3], 30, speculative=False))
        backend.fails = True
        (drafted,) = await ask(engine, request(engine, [1, 2, 3], 30))
        assert drafted.ids == plain.ids

    with_engine(body, drafters=[model])


def test_a_long_prompt_is_learnt_piece_by_piece() -> None:
    model, backend = drafter(k=4, catch_up_ms=1.0)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        prompt = np.random.default_rng(3).integers(0, 94, 200).tolist()
        (plain,) = await ask(engine, request(engine, prompt, 50, speculative=False))
        (drafted,) = await ask(engine, request(engine, prompt, 50))
        assert drafted.ids == plain.ids and len(backend.rows) > 3

    with_engine(body, drafters=[model])


def test_a_long_prompt_keeps_nobody_from_drafting() -> None:
    """Not even where the budget is too small for any forward: the short one first, then a block at a time."""
    model, _ = drafter(k=4, catch_up_ms=1e-6)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        rng = np.random.default_rng(4)
        long, short = (rng.integers(0, 94, n).tolist() for n in (200, 30))
        (one,), (other,) = await asyncio.gather(
            ask(engine, request(engine, long, 50)), ask(engine, request(engine, short, 50))
        )
        assert one.finish and one.finish.usage.drafted_tokens > 20
        assert other.finish and other.finish.usage.drafted_tokens > 20

    with_engine(body, drafters=[model])


def test_an_unlikely_token_ends_a_draft() -> None:
    sure, _ = drafter(7, k=8, p_min=0.999)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, request(engine, [5, 6], 60))
        counters, _rows = await engine.stats()
        assert counters["spec_model_drafted_total"] < 20

    with_engine(body, drafters=[sure])


def test_drafting_that_costs_more_than_it_saves_is_not_done() -> None:
    model, backend = drafter()

    async def body(engine: InlineEngine, setup: Tiny) -> None:
        assert setup.loop
        costs = table({1: 10.0, 3: 11.0, 9: 12.0})
        costs.observe = lambda *_: None  # type: ignore[method-assign]
        # What drafting really takes, on a busy machine, isn't the table's business.
        setup.loop.parts.speculation = Speculation([model], costs=costs, clock=lambda: 0.0)
        model.price_ms = lambda n_rows: 50.0  # type: ignore[method-assign]
        (answer,) = await ask(engine, request(engine, [3, 4], 60))
        assert answer.finish and not answer.finish.usage.drafted_tokens and not backend.rows
        model.price_ms = lambda n_rows: 1.0  # type: ignore[method-assign]
        (answer,) = await ask(engine, request(engine, [3, 4], 60))
        assert answer.finish and answer.finish.usage.accepted_tokens > 30

    with_engine(body, drafters=[model])


class Hidden:
    """Asks for hidden states and compares them with those of the whole text, run at once."""

    name = "hidden"
    confidence = 0.8
    wants_hidden = True
    most_rows = ANY_ROWS
    silent_until = 0

    def __init__(self, guess: Sequence[int]) -> None:
        self.seen: list[tuple[int, Float32s]] = []
        self._guess = np.array(guess, dtype=np.int32)
        self._row: SamplerState | None = None

    def start(self, row: DraftedRow) -> RowDrafter:
        self._row = row.sampler
        return self

    def propose(self, limit: int) -> Draft:
        assert self._row is not None
        at = self._row.position
        return Draft(self._guess[at : at + min(3, limit)])

    def settle(self, n_drafted: int, n_accepted: int) -> None:
        return None

    def take_hidden(self, position: int, hidden: Float32s) -> None:
        self.seen.append((position, hidden.copy()))

    def close(self) -> None:
        return None


def test_a_drafter_gets_the_hidden_state_behind_the_newest_token() -> None:
    """Under drafts that are right for a while and then wrong."""
    answers: list[list[int]] = []

    async def plain(engine: InlineEngine, _: Tiny) -> None:
        (answer,) = await ask(engine, request(engine, [5, 17, 80, 3], 24))
        answers.append(answer.ids)

    with_engine(plain)
    guess = [i if place % 5 else (i + 1) % 90 for place, i in enumerate(answers[0])]
    asking = Hidden(guess)

    async def drafted(engine: InlineEngine, _: Tiny) -> None:
        (answer,) = await ask(engine, request(engine, [5, 17, 80, 3], 24))
        assert answer.ids == answers[0] and answer.finish and answer.finish.usage.accepted_tokens > 6

    with_engine(drafted, drafters=[asking])
    assert len(asking.seen) >= 8
    expected = hidden_states([5, 17, 80, 3, *answers[0]])
    for place, hidden in asking.seen:
        np.testing.assert_array_equal(hidden, expected[place])


def hidden_states(ids: list[int]) -> list[Float32s]:
    """At each position, by running every prefix."""
    backend = ReferenceBackend(ArraySource(tiny()))
    backend.allocate(KvSpec((8,), "f32"))
    out = []
    for n in range(1, len(ids) + 1):
        part = np.array(ids[:n], dtype=np.int32)
        builder = StepBuilder(1)
        builder.add_alone(StepRow(WANT_HIDDEN), part, 0, [np.arange(8, dtype=np.int32)])
        (row,) = backend.run(builder.finish()).rows
        assert row.hidden is not None
        out.append(row.hidden)
    return out


MATRIX: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_k": 0, "top_p": 0.95},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    "dry": {"temperature": 0.4, "dry_multiplier": 0.8},
    "mirostat": {"temperature": 0.8, "mirostat": 2},
    "typical": {"temperature": 0.8, "typical_p": 0.7},
    "bias": {"temperature": 0.6, "logit_bias": ((3, 4.0), (9, -100.0)), "banned_ids": (11,)},
}
DRAFTERS: dict[str, Callable[[], list[Any]]] = {
    "forced": lambda: [forced_drafter()],
    "ngram": lambda: [NgramDrafter(EAGER)],
    "model": lambda: [drafter()[0]],
    "wrong model": lambda: [drafter(7)[0]],
    "all": lambda: [forced_drafter(), NgramDrafter(EAGER), drafter(7)[0]],
}


@pytest.mark.parametrize("drafters", [pytest.param(n, marks=pytest.mark.slow) if n != "all" else n for n in DRAFTERS])
@pytest.mark.parametrize("sampling", MATRIX)
def test_every_drafter_under_every_sampling(sampling: str, drafters: str) -> None:
    """In a batch: plain with logprobs, a prediction, under a grammar, reasoning on a budget, two choices."""
    bound = OutputPlan(end_ids=(END,), max_tokens=60, steers=True, grammar=check_schema(SCHEMA))

    def params(seed: int) -> SamplingParams:
        return SamplingParams(**MATRIX[sampling], seed=seed)

    cases: list[dict[str, Any]] = [
        {"prompt": [7, 8, 9] * 6, "sampling": params(1), "plan": PLANS[0], "logprobs": 3},
        {"prompt": [7, 8, 9] * 6, "sampling": params(2), "plan": PLANS[1], "prediction": pack_ids([8, 9, 7] * 4)},
        {"prompt": encode('{"name":"ab"'), "sampling": params(3), "plan": bound, "logprobs": 1},
        {"prompt": [30, 31] * 5, "sampling": params(4), "plan": PLANS[3], "logprobs": 0},
        {"prompt": [60] * 12, "sampling": params(5), "plan": PLANS[2], "n": 2},
    ]

    async def body(engine: InlineEngine, _: Tiny) -> None:
        plain, drafted = await play(engine, cases, False), await play(engine, cases, True)
        check_equal(plain, drafted)
        counters, _rows = await engine.stats()
        assert counters["spec_drafted_total"] > 0 and counters["grammar_dead_ends_total"] == 0
        for one, other in zip(chain(*plain), chain(*drafted)):
            assert len(one.logprobs) in (0, len(one.ids)) and one.logprobs == other.logprobs

    with_engine(body, drafters=DRAFTERS[drafters](), make_constraint=Grammars(vocabulary()), n_rows=6, n_blocks=128)


def test_what_differs_between_two_tokenizers_is_named() -> None:
    ours = Vocabulary([b"a", b"b", b"c", None], {3: "<end>"})
    assert vocabulary_difference(ours, Vocabulary([b"a", b"b", b"c", None], {3: "<end>"})) == ""
    assert "id 1 writes 'b' in the model and 'x'" in vocabulary_difference(ours, Vocabulary([b"a", b"x", b"c"], {}))
    assert "4 ids and the draft model's 3" in vocabulary_difference(ours, Vocabulary([b"a", b"b", b"c"], {}))
    special = vocabulary_difference(ours, Vocabulary([b"a", b"b", b"c", b"<end>"], {}))
    assert "id 3" in special
