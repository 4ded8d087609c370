"""Drafts never change what is sampled, whatever they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.decode.verify import sample_row

VOCAB = 24
PARAMS = [
    SamplingParams(temperature=0.0, repetition_penalty=1.3),
    SamplingParams(temperature=1.0, top_k=0, top_p=1.0, presence_penalty=1.0, frequency_penalty=0.5, seed=3),
    SamplingParams(temperature=0.9, mirostat=2, mirostat_tau=2.0, seed=4),
    SamplingParams(temperature=1.0, dry_multiplier=0.8, top_k=8, seed=5),
    SamplingParams(temperature=1.0, dry_multiplier=0.8, dry_sequence_breakers=("f", "hi"), top_k=8, seed=6),
]
WORDS = [bytes([97 + i]) for i in range(VOCAB)]


def model(history: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Logits that depend on the last three ids."""
    seed = int("".join(f"{i:02d}" for i in history[-3:]))
    return np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32) * 2


def mask_at(history: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    bits = np.random.default_rng(1000 + len(history)).integers(1, 2**VOCAB, dtype=np.uint32)
    return np.array([bits], dtype=np.uint32)


def fresh(params: SamplingParams) -> SamplerState:
    return SamplerState(params, choice=1, prompt=np.array([3, 1, 4], dtype=np.int32), capacity=200, token_bytes=WORDS)


def run_plain(params: SamplingParams, n: int, *, masked: bool, as_drawn: bool) -> tuple[list[int], list[float], float]:
    state = fresh(params)
    logprobs = []
    for _ in range(n):
        masks = mask_at(state.history)[None] if masked else None
        result = sample_row(model(state.history)[None], state, masks=masks, n_logprobs=2, as_drawn=as_drawn)
        state.append(result.tokens)
        state.mirostat_mu = result.mu
        logprobs.append(result.logprobs[0].token)
    return state.output.tolist(), logprobs, state.mirostat_mu


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled", "mirostat", "dry", "breakers"])
@pytest.mark.parametrize("quality", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("as_drawn", [False, True], ids=["before", "as_drawn"])
def test_same_ids_and_logprobs_with_drafts(
    params: SamplingParams, quality: float, masked: bool, as_drawn: bool
) -> None:
    wanted, wanted_logprobs, wanted_mu = run_plain(params, 60, masked=masked, as_drawn=as_drawn)
    rng = np.random.default_rng(2)
    state = fresh(params)
    got_logprobs: list[float] = []
    n_steps = n_accepted = 0
    while len(state.output) < 60:
        done = len(state.output)
        limit = min(int(rng.integers(0, 6)), 59 - done)
        drafts = [w if rng.random() < quality else int(rng.integers(VOCAB)) for w in wanted[done : done + limit]]
        histories = [np.append(state.history, np.array(drafts[:j], dtype=np.int32)) for j in range(len(drafts) + 1)]
        logits = np.stack([model(h) for h in histories])
        masks = np.stack([mask_at(h) for h in histories]) if masked else None
        before = state.history.copy()
        result = sample_row(logits, state, drafts, masks, n_logprobs=2, as_drawn=as_drawn)
        assert (state.history == before).all(), "the backend's side must not advance the state"
        assert len(result.tokens) == len(result.logprobs) == result.n_accepted + 1
        state.append(result.tokens)
        state.mirostat_mu = result.mu
        got_logprobs += [entry.token for entry in result.logprobs]
        n_steps += 1
        n_accepted += result.n_accepted
    assert state.output.tolist() == wanted
    assert got_logprobs == wanted_logprobs and state.mirostat_mu == wanted_mu
    assert n_accepted == 60 - n_steps
    if quality == 1.0:
        assert n_steps < 40


def test_a_dead_end_keeps_the_accepted_prefix() -> None:
    state = fresh(SamplingParams(temperature=0.0))
    first = int(np.argmax(model(state.history)))
    logits = np.stack([model(state.history)] * 2)
    masks = np.array([[2**VOCAB - 1], [0]], dtype=np.uint32)
    result = sample_row(logits, state, [first], masks)
    assert result.tokens == [first] and result.dead_end and result.n_accepted == 1
