"""The native sampler against the law of decode/: same tokens, same acceptance, same logprobs."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.backends.base import ON_HOST_REASONS, WANT_SAMPLE, RowResult, StepRow
from imp_server.backends.cpu import abi
from imp_server.backends.cpu.errors import KernelError
from imp_server.backends.cpu.sampling import NativeSampling
from imp_server.backends.host_sampling import sample_on_host
from imp_server.backends.sampled_rows import on_host_reason
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.native import usable_isas

VOCAB = 331
Masks = npt.NDArray[np.uint32]


def native(
    logits: npt.NDArray[np.float32],
    state: SamplerState,
    drafts: Sequence[int] = (),
    masks: npt.NDArray[np.uint32] | None = None,
    n_logprobs: int = -1,
    isa: str | None = None,
    keep: bool = False,
) -> RowResult:
    row = StepRow(WANT_SAMPLE, len(drafts), state, 0 if masks is not None else -1, n_logprobs)
    plan = abi.SamplerPlan()
    own = np.array(logits, dtype=np.float32)
    sampling = NativeSampling(plan, row, state, np.array(drafts, dtype=np.int32), masks, own.shape[1])
    plan.keep_logits = keep
    assert abi.library(isa).imp_cpu_sample(ctypes.byref(plan), own.ctypes.data, own.shape[1]) == KernelError.ok
    if keep:
        np.testing.assert_array_equal(own, logits)
    return sampling.result()


def by_the_law(
    logits: npt.NDArray[np.float32],
    state: SamplerState,
    drafts: Sequence[int] = (),
    masks: npt.NDArray[np.uint32] | None = None,
    n_logprobs: int = -1,
) -> RowResult:
    row = StepRow(WANT_SAMPLE, len(drafts), state, 0 if masks is not None else -1, n_logprobs)
    result = RowResult(tokens=np.empty(0, dtype=np.int32))
    sample_on_host(row, np.array(logits, dtype=np.float32), np.array(drafts, dtype=np.int32), masks, result)
    return result


def assert_same(a: RowResult, b: RowResult) -> None:
    np.testing.assert_array_equal(a.tokens, b.tokens)
    assert (a.n_accepted, a.dead_end) == (b.n_accepted, b.dead_end)
    assert (a.logprobs is None) == (b.logprobs is None)
    if a.logprobs is not None and b.logprobs is not None and len(a.tokens):  # of no token they have any shape
        np.testing.assert_array_equal(a.logprobs.rank, b.logprobs.rank)
        np.testing.assert_array_equal(a.logprobs.top_ids, b.logprobs.top_ids)
        np.testing.assert_allclose(a.logprobs.token, b.logprobs.token, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(a.logprobs.top, b.logprobs.top, rtol=1e-6, atol=1e-6)


def test_a_context_that_was_shifted_draws_no_noise_again() -> None:
    """Output positions go on counting; a copy of the state knows that, too."""
    logits = np.random.default_rng(5).normal(0, 1, (1, VOCAB)).astype(np.float32)
    law = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=3)
    state = SamplerState(law, 0, np.arange(6, dtype=np.int32), 40)
    ids: list[int] = []
    for _ in range(24):
        result = native(logits, state)
        assert_same(result, by_the_law(logits, state))
        assert_same(result, by_the_law(logits, state.as_of(state.length)))
        ids += result.tokens.tolist()
        state.append(result.tokens.tolist())
        if state.length > 12:
            state.shift(2, 6)
    unshifted = SamplerState(law, 0, np.arange(6, dtype=np.int32), 40)
    for token_id in ids:
        assert native(logits, unshifted).tokens.tolist() == [token_id]
        unshifted.append([token_id])


params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 330, 331, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.9, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
    repeat_last_n=st.sampled_from([0, 1, 7]),
    seed=st.integers(0, 2**64 - 1),
    logit_bias=st.sampled_from([(), ((3, 5.0), (7, -100.0), (3, 0.25))]),
    banned_ids=st.sampled_from([(), (0, 5)]),
)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    params=params,
    spread=st.sampled_from([0.0, 0.01, 1.0, 6.0]),
    data_seed=st.integers(0, 2**31),
    n_drafts=st.integers(0, 4),
    masked=st.booleans(),
    n_logprobs=st.sampled_from([-1, 0, 1, 5, 400]),
    isa=st.sampled_from(usable_isas()),
)
def test_equals_the_law(
    params: SamplingParams, spread: float, data_seed: int, n_drafts: int, masked: bool, n_logprobs: int, isa: str
) -> None:
    rng = np.random.default_rng(data_seed)
    logits = (rng.standard_normal((1 + n_drafts, VOCAB)) * spread).astype(np.float32)
    if data_seed % 3 == 0:  # ties, also across the runs of 64 that the search walks
        logits = np.round(logits)
    masks = rng.integers(0, 2**32, (1 + n_drafts, -(-VOCAB // 32)), dtype=np.uint32) if masked else None
    state = SamplerState(params, choice=data_seed % 5, prompt=rng.integers(0, VOCAB, 9).astype(np.int32), capacity=64)
    state.append(rng.integers(0, VOCAB, data_seed % 20).tolist())
    # Drafts that the law accepts for a while.
    drafts: list[int] = []
    for _ in range(n_drafts):
        drafts = by_the_law(logits[: len(drafts) + 1], state, drafts, masks).tokens.tolist()
    drafts = (drafts + [1] * n_drafts)[:n_drafts]
    if n_drafts and data_seed % 2:
        drafts[-1] = (drafts[-1] + 1) % VOCAB
    assert not on_host_reason(params)
    want = by_the_law(logits, state, drafts, masks, n_logprobs)
    assert_same(native(logits, state, drafts, masks, n_logprobs, isa, keep=bool(data_seed % 2)), want)


def state_of(**changes: Any) -> SamplerState:
    return SamplerState(SamplingParams(**changes), 0, np.array([1, 2], dtype=np.int32), 16)


def test_a_mask_that_allows_nothing_is_a_dead_end() -> None:
    masks = np.zeros((1, -(-VOCAB // 32)), dtype=np.uint32)
    for temperature in (0.0, 1.0):
        result = native(np.zeros((1, VOCAB), dtype=np.float32), state_of(temperature=temperature), masks=masks)
        assert result.dead_end and not len(result.tokens)


def test_logits_that_are_not_numbers_give_no_token() -> None:
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    logits[0, 300] = np.nan
    for temperature in (0.0, 1.0):
        result = native(logits, state_of(temperature=temperature))
        assert not result.dead_end and not len(result.tokens)


@pytest.mark.parametrize("temperature, top_k, top_p", [(1.0, 0, 1.0), (0.7, 40, 0.95), (1.5, 0, 0.9)])
def test_draws_follow_the_distribution(temperature: float, top_k: int, top_p: float) -> None:
    """Over positions, which are the noise's counter; chi-square within five sigma."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((1, 50)).astype(np.float32) * 2
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, seed=9)
    n, counts = 4000, np.zeros(50)
    state = SamplerState(params, 0, np.zeros(1, dtype=np.int32), n + 2)
    for _ in range(n):
        token = int(native(logits, state).tokens[0])
        counts[token] += 1
        state.append([token])
    p = np.exp(logits[0].astype(np.float64) / temperature)
    order = np.argsort(-p)
    keep = order[: top_k or 50]
    share = p[keep] / p[keep].sum()
    keep = keep[: int(np.searchsorted(np.cumsum(share), top_p)) + 1] if top_p < 1 else keep
    expected = np.zeros(50)
    expected[keep] = p[keep] / p[keep].sum() * n
    assert counts[expected == 0].sum() == 0
    alive = expected > 0
    chi = ((counts[alive] - expected[alive]) ** 2 / expected[alive]).sum()
    freedom = alive.sum() - 1
    assert chi < freedom + 5 * np.sqrt(2 * freedom)


def test_the_host_keeps_what_the_native_sampler_lacks() -> None:
    lacking: dict[str, dict[str, Any]] = {
        "typical_p": {"typical_p": 0.9},
        "mirostat": {"mirostat": 2},
        "dry": {"dry_multiplier": 0.8},
    }
    lacking |= {"dynatemp": {"dynatemp_range": 0.5}, "top_n_sigma": {"top_n_sigma": 1.0}}
    lacking |= {"xtc": {"xtc_probability": 0.5}}
    assert on_host_reason(SamplingParams(temperature=0.7)) == ""
    assert {on_host_reason(SamplingParams(temperature=0.7, **changes)) for changes in lacking.values()} == set(lacking)
    as_drawn = on_host_reason(SamplingParams(temperature=0.0), logprobs_as_drawn=True)
    assert {*lacking, as_drawn} == set(ON_HOST_REASONS)


def filling(masks: Masks, flags: Masks, whole: Masks, which: list[int]) -> threading.Thread:
    """Another thread that fills masks one by one while somebody samples."""

    def fill() -> None:
        for index in which:
            time.sleep(0.002)
            masks[index] = whole[index]
            flags[index] = 1

    return threading.Thread(target=fill)


@pytest.mark.parametrize("isa", usable_isas())
def test_sampling_waits_for_masks_that_are_being_filled(isa: str) -> None:
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(3, VOCAB)).astype(np.float32)
    whole = rng.integers(0, 2**32, (3, -(-VOCAB // 32)), dtype=np.uint32)
    state = state_of(temperature=0.0)
    best = [int(np.argmax(np.where(allowed(whole[j]), logits[j], -np.inf))) for j in range(3)]
    cases: list[tuple[list[int], int]] = [([], 0), ([0], 1), ([0, 1], 2), ([0, 1, 2], 3)]
    for which, n_tokens in cases:
        masks, flags = np.zeros_like(whole), np.zeros(3, dtype=np.uint32)
        row = StepRow(WANT_SAMPLE, 2, state, 0)
        plan, own = abi.SamplerPlan(), logits.copy()
        sampling = NativeSampling(plan, row, state, np.array(best[:2], dtype=np.int32), masks, VOCAB, flags)
        plan.mask_patience_us = 2_000_000 if n_tokens == 3 else 60_000
        thread = filling(masks, flags, whole, which)
        thread.start()
        assert abi.library(isa).imp_cpu_sample(ctypes.byref(plan), own.ctypes.data, VOCAB) == KernelError.ok
        thread.join()
        result = sampling.result()
        assert result.tokens.tolist() == best[:n_tokens], "drafts whose masks are late are left out"
        assert result.mask_late == (n_tokens == 0) and not result.dead_end
        assert result.n_accepted == max(0, n_tokens - 1)
        assert result.mask_wait_ms > 0 and result.n_left_out == 3 - max(1, n_tokens)


def allowed(mask: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB].astype(bool)
