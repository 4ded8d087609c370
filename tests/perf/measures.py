"""What has a gate: each piece of work beside its yardstick, timed in turn in this thread's processor time."""

from __future__ import annotations

import codecs
import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from imp_server.core import OutputPlan, SamplingParams, pack_ids
from imp_server.decode.state import SamplerState
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace
from imp_server.grammar.masks.masks import Masks
from imp_server.text.session import OutputSession
from imp_server.text.template import ChatTemplate
from imp_server.vocab.from_gguf import tokenizer_of_gguf
from imp_server.vocab.table import Vocabulary
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.kernels.test_cpu_sampling import native
from tests.perf.api_cost import rig
from tests.perf.gates import Measure, Sample
from tests.schedule.simulated import Simulation
from tests.toy import CHATML, SENTENCES, bpe_keys, byte_tokenizer

Work = Callable[[], Any]
N_TIMES = 5
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 80},
        "kind": {"enum": ["ship", "plane", "train"]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$"}},
        "size": {"type": "object", "properties": {"width": {"type": "integer"}, "height": {"type": "number"}}},
    },
    "required": ["name", "kind"],
}
BEGINNINGS = (
    b"",
    b"{",
    b'{"name": "',
    b'{"name": "a", "kind": "',
    b'{"name": "a", "tags": ["a-b',
    b'{"size": {"width": 1',
)
_LETTERS = np.frombuffer(b'etaoinshrdlucmfwypvbgkjqxz     ,.0123456789"{}[]:', dtype=np.uint8)


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """What other tests have left in memory would be looked through in ours's time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def in_turn(ours: Work, yardstick: Work, n_ours: int = 1) -> Callable[[], Sample]:
    """`n_ours`: how many pieces of work one call of `ours` does; the yardstick does as many."""

    def once() -> Sample:
        best = {ours: float("inf"), yardstick: float("inf")}
        with no_collections():
            for _ in range(N_TIMES):
                for work in (yardstick, ours):
                    began = time.thread_time()
                    work()
                    best[work] = min(best[work], time.thread_time() - began)
        return Sample(best[yardstick] / best[ours], 1e6 * best[ours] / n_ours)

    ours(), yardstick()
    return once


def steps_of_python(n: int) -> Work:
    """So many turns of a loop: what else Python could do in the time, whatever the machine."""

    def work() -> int:
        total = 0
        for i in range(n):
            total += i & 7
        return total

    return work


def logprobs() -> Callable[[], Sample]:
    logits = (3 * np.random.default_rng(2).standard_normal((1, 131_072))).astype(np.float32)
    state = SamplerState(SamplingParams(temperature=0.0), 0, np.arange(500, dtype=np.int32), 600)

    def sorted_whole() -> Any:
        shifted = logits[0] - logits[0].max()
        every = shifted - np.log(np.exp(shifted).sum())
        order = np.argsort(-every, kind="stable")
        return order[:20], every[order[:20]]

    return in_turn(lambda: native(logits, state, n_logprobs=20), sorted_whole)


def words(n: int) -> Vocabulary:
    rng = np.random.default_rng(1)
    made = {bytes([i]) for i in range(256)}
    while len(made) < n:
        made.add(rng.choice(_LETTERS, rng.integers(2, 9)).tobytes())
    return Vocabulary([*sorted(made), None], {n: "<eos>"}, end_ids=(n,))


def masks() -> Callable[[], Sample]:
    """The masks of places in a new grammar, each of another kind."""
    vocabulary = words(4_000)
    shared = GrammarSpace(vocabulary)
    matcher = shared.matcher(check_schema(SCHEMA))
    places = []
    for text in BEGINNINGS:
        place = matcher.advance_bytes(matcher.start, text)
        assert place is not None
        places.append(place)

    def walked(use_native: bool) -> Any:
        fresh = Masks(shared.space, shared.stepper, vocabulary, use_native=use_native)
        return [fresh.row(place) for place in places]

    return in_turn(lambda: walked(True), lambda: walked(False), len(places))


def steps() -> Callable[[], Sample]:
    vocabulary = words(1_000)
    matcher = GrammarSpace(vocabulary).matcher(check_schema(SCHEMA))
    text = b'{"name": "a long name with words", "kind": "ship", "tags": ["a", "b-c", "def"], "size": {"width": 12}}'
    ids = [vocabulary.token_bytes.index(bytes([byte])) for byte in text]

    def stepped() -> None:
        place = matcher.start
        for token in ids:
            after = matcher.advance(place, token)
            assert after is not None
            place = after

    return in_turn(stepped, steps_of_python(100 * len(ids)), len(ids))


def checks() -> Callable[[], Sample]:
    return in_turn(lambda: check_schema(SCHEMA), steps_of_python(20_000))


def tokeniser() -> Callable[[], Sample]:
    tokenizer = tokenizer_of_gguf(bpe_keys())
    library = tokenizer._encoder._library  # type: ignore[attr-defined]
    text = SENTENCES * 4
    return in_turn(lambda: tokenizer.encode(text), lambda: library.encode(text, add_special_tokens=False).ids)


def template() -> Callable[[], Sample]:
    turns = [{"role": ("user", "assistant")[i % 2], "content": f"number {i}"} for i in range(40)]
    ours = ChatTemplate(CHATML)
    bare = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(CHATML)
    return in_turn(lambda: ours.render(turns), lambda: bare.render(messages=turns, add_generation_prompt=True))


def detokeniser() -> Callable[[], Sample]:
    vocabulary = byte_tokenizer().vocabulary
    text = SENTENCES.encode()
    ids = [pack_ids([byte]) for byte in text]
    single = [text[i : i + 1] for i in range(len(text))]

    def ours() -> None:
        session = OutputSession(OutputPlan(max_tokens=len(ids)), vocabulary)
        for token in ids:
            session.push(0, token)

    def bare() -> None:
        decoder = codecs.getincrementaldecoder("utf-8")()
        for byte in single:
            decoder.decode(byte)

    return in_turn(ours, bare, len(ids))


def scheduler() -> Callable[[], Sample]:
    """A step of 64 decoding rows: planned, settled, their blocks published. What a model computes isn't in it."""
    n_rows = 64
    world = Simulation(n_rows * 70, n_rows=n_rows, context=1024, step_ms=1e6, step_alone_ms=1e6)
    world.submit([1, 2, 3], 1000, n=1)
    for row in range(1, n_rows):
        world.submit([row, row + 1, row + 2], 1000)
    plan = world.scheduler

    def step() -> None:
        plan.admit()
        planned = plan.plan()
        plan.settle(planned, [0] * len(planned.chunks), 1.0)
        for chunk in planned.chunks:
            if chunk.is_last:
                chunk.row.sampler.append([7])
        plan.publish(planned)

    step()
    step()
    assert len(plan.plan().chunks) == n_rows
    return in_turn(step, steps_of_python(10_000))


MEASURES = (
    Measure("logprobs", "top 20 of 128k logits / the same by a full sort", logprobs, 700),
    Measure("masks", "masks of new places, native / plain walk, 4k tokens", masks),
    Measure("grammar step", "a token of a grammar / 100 turns of Python", steps),
    Measure("schema check", "a schema checked / 20,000 turns of Python", checks),
    Measure("tokeniser", "text to ids / the library alone", tokeniser),
    Measure("template", "40 turns rendered / Jinja's sandbox alone", template),
    Measure("detokeniser", "a token to events / an incremental decoder", detokeniser),
    Measure("scheduler", "a step of 64 rows / 10,000 turns of Python", scheduler, 300),
)


@contextlib.contextmanager
def api() -> Iterator[tuple[Measure, Callable[[], Sample]]]:
    """The API process's, which is measured over HTTP and so has something to close."""
    with rig() as cost_of_a_token:

        def once() -> Sample:
            cost = cost_of_a_token()
            return Sample(cost.transport / (cost.transport + cost.api), cost.api)

        yield Measure("api", "a streamed token, 64 streams / its bytes alone", lambda: once, 15), once
