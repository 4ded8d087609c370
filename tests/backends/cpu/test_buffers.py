"""A buffer's address is always that of its array, whatever it has grown to."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from imp_server.backends.base import WANT_LOGITS, WANT_SAMPLE, RowResult, StepRow
from imp_server.backends.cpu.buffers import Buffer, StepRoom
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState

from tests.backends.cpu.running import open_backend, step_of, table_of
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource
from tests.backends.driver import logits_of


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=300), max_size=8))
def test_what_is_held_is_found_at_the_address(lists: list[list[int]]) -> None:
    buffer = Buffer(np.int32, 4)
    for values in lists:
        address = buffer.hold(values)
        assert address == buffer.address == buffer.array.ctypes.data
        assert buffer.array[: len(values)].tolist() == values


def test_growing_keeps_the_type() -> None:
    buffer = Buffer(np.uint64, 1)
    assert buffer.at_least(1000) == buffer.array.ctypes.data
    assert len(buffer.array) >= 1000 and buffer.array.dtype == np.uint64


def test_the_room_for_logits_is_given_back_after_a_much_wider_step() -> None:
    room = StepRoom(1, 7)
    sizes = [len(room.logits_of(n)) for n in (1, 400, 100, 99, 64, 1, 60)]
    assert sizes == [1, 400, 400, 99, 99, 1, 60], "four times what is needed is kept, more isn't"
    assert room.logits_of(60).shape == (60, 7) and room.logits_of(15) is room.logits_of(60)


def test_results_outlive_the_next_step() -> None:
    """Rooms are overwritten by every step, results never."""
    backend = open_backend(SyntheticSource(VARIANTS[0].architecture, VARIANTS[0].types))
    greedy = SamplerState(SamplingParams(temperature=0.0), 0, np.zeros(1, dtype=np.int32), 1)

    def run(ids: list[int]) -> list[RowResult]:
        rows = [StepRow(WANT_SAMPLE, sampler=greedy), StepRow(WANT_SAMPLE | WANT_LOGITS, sampler=greedy)]
        return backend.run(step_of([(ids, 0, table_of(i, 16), row) for i, row in enumerate(rows)])).rows

    first = run([3, 4, 5])
    kept = [(row.tokens.copy(), None if row.logits is None else row.logits.copy()) for row in first]
    others = [run([n, n + 1, n + 2, n + 3]) for n in range(9, 29, 4)]
    assert any(row.tokens[0] != first[0].tokens[0] for rows in others for row in rows)
    for row, (tokens, logits) in zip(first, kept):
        np.testing.assert_array_equal(row.tokens, tokens)
        if logits is not None:
            np.testing.assert_array_equal(row.logits, logits)
    assert first[0].tokens[0] == logits_of(first[1]).argmax()
    backend.close()
