"""The sampler in torch against the law of decode/: same ids, same acceptance, same logprobs."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.backends.base import WANT_SAMPLE, RowResult, StepRow
from imp_server.backends.cuda.device import CpuDevice
from imp_server.backends.cuda.operations import PackedMatrix, SlotState
from imp_server.backends.cuda.plain import sampling
from imp_server.backends.cuda.plain.operations import PlainOperations
from imp_server.backends.cuda.sampling import SampledRow, SamplerFrame, mask_words, shape_of
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState

from tests.kernels.test_cpu_sampling import VOCAB, assert_same, by_the_law, params

OPS, DEVICE = PlainOperations(), CpuDevice()
N_SLOTS = 8


def empty_masks() -> torch.Tensor:
    return torch.zeros((64, mask_words(VOCAB)), dtype=torch.int32)


def on_device(
    logits: list[Any], states: list[SamplerState], drafts: list[Any], masks: Any = None, n_logprobs: int = -1
) -> tuple[list[RowResult], SlotState]:
    """Rows side by side; `logits[r]` [1 + drafts, vocab]."""
    rows, first = [], 0
    for r, state in enumerate(states):
        row = StepRow(WANT_SAMPLE, len(drafts[r]), state, -1 if masks is None else first, n_logprobs, slot=r)
        first += 1 + len(drafts[r])
        rows.append(SampledRow(r, row, np.asarray(drafts[r], dtype=np.int32)))
    shape = shape_of(rows, VOCAB)
    frame = SamplerFrame(shape, empty_masks(), DEVICE)
    histories = torch.full((N_SLOTS + 1, 64), 7, dtype=torch.int32)
    for r, state in enumerate(states):
        histories[r, : state.length] = torch.from_numpy(state.history.copy())
    slots = SlotState(torch.full((N_SLOTS + 1,), -1, dtype=torch.int32), histories)
    wide = np.zeros((shape.n_rows, shape.width, VOCAB), dtype=np.float32)
    for r, own in enumerate(logits):
        wide[r, : len(own)] = own
    prepared = frame.prepare(rows, N_SLOTS)
    prepared.send(masks, [1 + len(own) for own in drafts])
    flat = torch.from_numpy(wide.reshape(-1, VOCAB))
    if shape.is_best:
        best = torch.empty(len(flat), dtype=torch.int32)
        identity = torch.eye(VOCAB)
        OPS.head_argmax(flat, PackedMatrix("F32", VOCAB, VOCAB, identity), None, 1.0, 0.0, best)
        OPS.take_best(best, frame.inputs, slots, frame.outputs)
    else:
        OPS.sample(flat, frame.inputs, slots, frame.outputs)
    return frame.results(frame.download().wait(), rows, prepared.n_positions), slots


@settings(max_examples=30, deadline=None)
@given(data=st.data(), at_once=st.sampled_from([1, 2, 16]))
def test_ids_and_logprobs_are_those_of_the_law(data: st.DataObject, at_once: int) -> None:
    with mock.patch.object(sampling, "POSITIONS_AT_ONCE", at_once):
        check(data)


def check(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    n_rows = data.draw(st.integers(1, 3))
    n_logprobs = data.draw(st.sampled_from([-1, 0, 4]))
    is_masked = data.draw(st.booleans())
    logits, states, drafts, masks = [], [], [], []
    for r in range(n_rows):
        state = SamplerState(data.draw(params), r, rng.integers(0, VOCAB, 12).astype(np.int32), 40)
        state.append(rng.integers(0, VOCAB, data.draw(st.integers(0, 6))).tolist())
        n = data.draw(st.integers(0, 3))
        own = np.round(rng.standard_normal((1 + n, VOCAB)) * 3, data.draw(st.sampled_from([0, 6]))).astype(np.float32)
        mask = rng.integers(0, 2**32, (1 + n, -(-VOCAB // 32)), dtype=np.uint32)
        mask &= rng.integers(0, 2**32, mask.shape, dtype=np.uint32) if rng.random() < 0.5 else mask
        mask *= np.uint32(rng.random() > 0.1)
        guess: list[int] = []
        for j in range(n):  # drafts that are right half of the time
            so_far = by_the_law(own[: j + 1], state, guess, mask[: j + 1] if is_masked else None)
            right = len(so_far.tokens) == j + 1
            guess.append(int(so_far.tokens[-1]) if right and rng.random() < 0.6 else int(rng.integers(VOCAB)))
        logits.append(own)
        states.append(state)
        drafts.append(guess)
        masks.append(mask)
    stacked = np.concatenate(masks) if is_masked else None
    got, slots = on_device(logits, states, drafts, stacked, n_logprobs)
    for r in range(n_rows):
        want = by_the_law(logits[r], states[r], drafts[r], masks[r] if is_masked else None, n_logprobs)
        assert_same(got[r], want)
        assert int(slots.last[r]) == (want.tokens[-1] if len(want.tokens) else -1)


def test_what_is_no_number_fails_its_row_alone() -> None:
    rng = np.random.default_rng(0)
    states = [SamplerState(SamplingParams(temperature=t), 0, np.arange(4, dtype=np.int32), 9) for t in (0.0, 1.0, 0.0)]
    logits = [rng.standard_normal((1, VOCAB)).astype(np.float32) for _ in states]
    logits[1][0, 5] = np.nan
    got, slots = on_device(logits, states, [[], [], []])
    assert [len(each.tokens) for each in got] == [1, 0, 1] and not got[1].dead_end
    assert slots.last[:3].tolist() == [int(logits[0].argmax()), -1, int(logits[2].argmax())]
    greedy = [states[0], states[2], states[0]]
    got, _ = on_device(logits, greedy, [[], [], []])
    assert [len(each.tokens) for each in got] == [1, 0, 1]


def test_a_row_whose_masks_come_late_is_left_alone() -> None:
    state = SamplerState(SamplingParams(temperature=0.0), 0, np.arange(4, dtype=np.int32), 9)
    row = SampledRow(0, StepRow(WANT_SAMPLE, 0, state, 0, slot=3), np.empty(0, dtype=np.int32))
    frame = SamplerFrame(shape_of([row], VOCAB), empty_masks(), DEVICE)
    slots = SlotState(
        torch.full((N_SLOTS + 1,), 5, dtype=torch.int32), torch.zeros((N_SLOTS + 1, 8), dtype=torch.int32)
    )
    prepared = frame.prepare([row], N_SLOTS)
    prepared.send(np.zeros((1, -(-VOCAB // 32)), dtype=np.uint32), [0])
    OPS.sample(torch.zeros((1, VOCAB)), frame.inputs, slots, frame.outputs)
    result = frame.results(frame.download().wait(), [row], prepared.n_positions)[0]
    assert result.mask_late and not len(result.tokens)
    assert int(slots.last[3]) == 5


def test_a_sampled_id_joins_the_text_on_the_device() -> None:
    """For the step that is queued before anybody has seen it."""
    state = SamplerState(
        SamplingParams(temperature=1.0, seed=4, presence_penalty=1.0), 0, np.arange(4, dtype=np.int32), 9
    )
    logits = np.random.default_rng(2).standard_normal((1, VOCAB)).astype(np.float32)
    got, slots = on_device([logits], [state], [[]])
    assert slots.histories[0, :5].tolist() == [0, 1, 2, 3, int(got[0].tokens[0])]
