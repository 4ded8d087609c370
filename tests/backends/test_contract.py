"""What backends promise between calls (docs/backends.md), on those that there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest
from imp_server.backends.base import (
    LAST_SAMPLED,
    WANT_ALL_HIDDEN,
    WANT_HIDDEN,
    WANT_LOGITS,
    WANT_NOTHING,
    WANT_SAMPLE,
    Backend,
    Embeddings,
    KvSpec,
    Step,
    StepRow,
)
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.backends.step_builder import StepBuilder
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState

from tests.backends.array_source import ArraySource, tiny
from tests.backends.cuda.running import PlainCuda

PROMPT = np.array([5, 9, 31, 60, 7, 7, 12, 44, 2, 80, 33], dtype=np.int32)
TABLE = np.array([3, 1, 6, 2], dtype=np.int32)
LAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    # The id before counts at once: without it, each of these would be chosen once more.
    "greedy penalised": {"temperature": 0.0, "frequency_penalty": 9.0, "logit_bias": ((40, 30.0), (41, 25.0))},
    "sampled": {"temperature": 1.0, "seed": 3},
    "sampled penalised": {"temperature": 1.0, "seed": 3, "presence_penalty": 30.0, "logit_bias": ((40, 20.0),)},
    "held until": {"temperature": 1.0, "seed": 3, "min_tokens": 5, "held_ids": tuple(range(0, 97, 2))},
}


@pytest.fixture(params=[ReferenceBackend, CpuBackend, PlainCuda], ids=["reference", "cpu", "cuda"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = request.param(ArraySource(tiny()))
    made.allocate(KvSpec((8,), made.info.default_kv_dtype))
    yield made
    made.close()


def state(law: str = "greedy") -> SamplerState:
    made = SamplerState(SamplingParams(**LAWS[law]), 0, PROMPT, 40)
    made._history[made.length :] = 77  # nobody may read what isn't there yet
    return made


def step(row: StepRow, ids: Any, first: int, table: Any = None, **more: Any) -> Step:
    """One row, of slot 5 unless it says otherwise; `table` None: nothing changed."""
    builder = StepBuilder(1)
    row.slot = row.slot or 5
    if table is not None:
        builder.change_table(0, row.slot, np.arange(len(table), dtype=np.int32), table)
    builder.add(row, np.asarray(ids, dtype=np.int32), first)
    return builder.finish(**more)


def one_by_one(backend: Backend, law: str, n: int) -> list[int]:
    own = state(law)
    pending: Any = PROMPT
    table: Any = TABLE
    for _ in range(n):
        row = StepRow(WANT_SAMPLE, sampler=own)
        result = backend.run(step(row, pending, own.length - len(pending), table)).rows[0]
        own.append(result.tokens.tolist())
        pending, table = own.history[-1:], None
    found: list[int] = own.output.tolist()
    return found


@pytest.mark.parametrize("law", LAWS)
def test_rows_run_ahead_of_their_tokens(backend: Backend, law: str) -> None:
    want = one_by_one(backend, law, 12)
    own = state(law)
    launched = [backend.launch(step(StepRow(WANT_SAMPLE, sampler=own), PROMPT, 0, TABLE))]
    found: list[int] = []
    for n in range(1, 12):
        row = StepRow(WANT_SAMPLE, sampler=own, n_history=own.length + 1, is_ahead=True)
        launched.append(backend.launch(step(row, [LAST_SAMPLED], len(PROMPT) + n - 1)))
        found += launched.pop(0).collect().rows[0].tokens.tolist()
        backend.read_blocks(0, TABLE)  # the step behind is done before the sampler hears of the token
        own.append(found[-1:])
    found += launched.pop().collect().rows[0].tokens.tolist()
    assert found == want


def test_where_nothing_was_sampled_nothing_follows(backend: Backend) -> None:
    """A mask that comes too late: the step behind is void, and the row goes on as if it had never been."""
    want = one_by_one(backend, "sampled", 2)
    own = state("sampled")
    masks, flags = np.zeros((1, 4), dtype=np.uint32), np.zeros(1, dtype=np.uint32)
    row = StepRow(WANT_SAMPLE, sampler=own, mask_row=0)
    late = backend.launch(step(row, PROMPT, 0, TABLE, masks=masks, mask_flags=flags))
    ahead = StepRow(WANT_SAMPLE, sampler=own, n_history=own.length + 1, is_ahead=True)
    void = backend.launch(step(ahead, [LAST_SAMPLED], len(PROMPT)))
    assert late.collect().rows[0].mask_late
    void.collect()
    again = backend.run(step(StepRow(WANT_SAMPLE, sampler=own), PROMPT[-1:], len(PROMPT) - 1)).rows[0]
    own.append(again.tokens.tolist())
    row = StepRow(WANT_SAMPLE, sampler=own)
    behind = backend.run(step(row, own.history[-1:], own.length - 1)).rows[0]
    assert [*again.tokens.tolist(), *behind.tokens.tolist()] == want


def test_block_moves_keep_their_place_among_steps(backend: Backend) -> None:
    """A copy sees what the steps before it wrote, though they aren't collected; so does a read."""

    def logits(row_table: Any, slot: int) -> Any:
        row = StepRow(WANT_LOGITS, slot=slot)
        return backend.launch(step(row, [50], len(PROMPT), row_table))

    first = backend.launch(step(StepRow(WANT_NOTHING), PROMPT, 0, TABLE))
    backend.copy_blocks(0, np.array([[3, 7]], dtype=np.int32))
    mine, copied = logits(TABLE, 5), logits(np.array([7], dtype=np.int32), 6)
    kept = backend.read_blocks(0, np.array([7], dtype=np.int32))
    backend.write_blocks(0, np.array([0], dtype=np.int32), kept)
    moved = logits(np.array([0], dtype=np.int32), 7)
    first.collect()
    a, b, c = (pending.collect().rows[0].logits for pending in (mine, copied, moved))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, c)


def test_a_slot_belongs_to_whoever_comes_last(backend: Backend) -> None:
    """Of a table that was there before nothing is read, not even a longer one."""
    want = one_by_one(backend, "greedy", 3)
    other = np.array([4, 5, 0, 7], dtype=np.int32)
    backend.run(step(StepRow(WANT_NOTHING), np.arange(60) % 90, 0, other))
    assert one_by_one(backend, "greedy", 3) == want


def test_all_hidden_states_and_given_inputs(backend: Backend) -> None:
    def hidden(ids: Any, wants: int = WANT_ALL_HIDDEN, **more: Any) -> Any:
        return backend.run(step(StepRow(wants), ids, 0, TABLE, **more)).rows[0].hidden

    every = hidden(PROMPT)
    assert every.shape[0] == len(PROMPT)
    for n in (1, 5, len(PROMPT)):
        own = hidden(PROMPT[:n], WANT_HIDDEN)
        # On cuda a position's last bits may depend on those beside it.
        np.testing.assert_allclose(own, every[n - 1], rtol=0, atol=1e-5 if backend.info.name == "cuda" else 0)
    source = ArraySource(tiny())
    table = np.asarray(source.array("embedding"), dtype=np.float32) * source.architecture.embedding_scale
    masked = PROMPT.copy()
    masked[[2, 7]] = 1
    given = Embeddings(np.array([2, 7], dtype=np.int32), table[PROMPT[[2, 7]]])
    assert np.abs(hidden(masked) - every).max() > 1e-3
    np.testing.assert_allclose(hidden(masked, embeddings=given), every, atol=1e-5)


@pytest.mark.parametrize("make", [ReferenceBackend, CpuBackend, PlainCuda])
def test_what_was_never_collected_ends_with_the_backend(make: Callable[[Any], Backend]) -> None:
    backend = make(ArraySource(tiny()))
    backend.allocate(KvSpec((8,), backend.info.default_kv_dtype))
    for n in range(3):
        backend.launch(step(StepRow(WANT_NOTHING), PROMPT, 0, TABLE if not n else None))
    backend.close()


def test_a_step_that_is_launched_when_those_before_are_done_runs(backend: Backend) -> None:
    """Nobody has collected them yet, so nobody has noticed that there is nothing left to be done."""

    def launched() -> Any:
        return backend.launch(step(StepRow(WANT_LOGITS), PROMPT, 0, TABLE))

    first, second = launched(), launched()
    first.collect()
    time.sleep(0.05)  # the second one is done by now, where steps run by themselves
    third = launched()
    second.collect()
    collected = Thread(target=third.collect, daemon=True)
    collected.start()
    collected.join(20)
    assert not collected.is_alive()
