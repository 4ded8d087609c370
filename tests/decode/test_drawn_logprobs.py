"""Logprobs as drawn: of what the law samples from, and with the frequencies with which it samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from imp_server.core import SamplingParams
from imp_server.decode.logprobs import drawn_logprobs
from imp_server.decode.sampling import sample, survivors

from tests.decode import law_twin
from tests.decode.test_sampling import cases

CHAINS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.3, "top_k": 0, "top_p": 1.0},
    "top_k": {"temperature": 0.8, "top_k": 5, "top_p": 1.0},
    "top_p": {"temperature": 1.0, "top_k": 0, "top_p": 0.8},
    "min_p": {"temperature": 0.9, "top_k": 0, "top_p": 1.0, "min_p": 0.1},
    "typical": {"temperature": 1.0, "top_k": 9, "top_p": 0.9, "typical_p": 0.7},
    "mirostat": {"temperature": 1.0, "mirostat": 2},
    "dynatemp": {"temperature": 0.8, "dynatemp_range": 0.5},
}
MU = 2.5


@given(cases())
@settings(max_examples=150, deadline=None)
def test_equal_to_the_twin(case: dict[str, Any]) -> None:
    params: SamplingParams = case["params"]
    allowed = case.get("allowed")
    logits = np.array(
        law_twin.processed(case["logits"].tolist(), params, case["history"].tolist(), case["n_prompt"], allowed),
        dtype=np.float32,
    )
    token, _ = sample(logits, params, 1, 7, MU)
    if token < 0:
        return
    found = drawn_logprobs(logits, token, 100, params, 1, 7, MU)
    if params.temperature <= 0.0:
        assert (found.token, found.rank, found.top_ids.tolist(), found.top.tolist()) == (0.0, 1, [token], [0.0])
        return
    twin = law_twin.survivors(logits.tolist(), params, MU)
    if survivors(logits, params, MU)[0].tolist() != [i for i, _ in twin]:
        return  # a sum that meets a bound exactly may fall on either side of it
    wanted = [kept for _, kept in law_twin.outcomes(twin, params)]
    assert found.top_ids.tolist() in [[i for i, _ in kept] for kept in wanted]
    kept = next(kept for kept in wanted if [i for i, _ in kept] == found.top_ids.tolist())
    assert np.exp(found.top) == pytest.approx(law_twin.probabilities(kept), abs=1e-12)
    assert found.token == found.top[found.rank - 1] and found.top_ids[found.rank - 1] == token


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_tokens_come_as_often_as_it_says(chain: dict[str, Any]) -> None:
    n = 4000
    logits = np.random.default_rng(5).standard_normal(24).astype(np.float32) * 2
    params = SamplingParams(**chain, seed=11)
    drawn = [sample(logits, params, 0, position, MU).id for position in range(n)]
    found = drawn_logprobs(logits, drawn[0], 24, params, 0, 0, MU)
    said = dict(zip(found.top_ids.tolist(), np.exp(found.top).tolist(), strict=True))
    assert math.fsum(said.values()) == pytest.approx(1.0, abs=1e-12) and set(drawn) <= set(said)
    for token, p in said.items():
        assert abs(drawn.count(token) / n - p) < 4.5 * math.sqrt(p * (1 - p) / n) + 1e-9, token


def test_what_xtc_takes_away_is_not_listed() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, xtc_probability=0.5, xtc_threshold=0.1, seed=3)
    seen = set()
    for position in range(40):
        token = sample(logits, params, 0, position, MU).id
        found = drawn_logprobs(logits, token, 4, params, 0, position, MU)
        seen.add(tuple(found.top_ids.tolist()))
        assert np.exp(found.top).sum() == pytest.approx(1.0)
    assert seen == {(0, 1, 2, 3), (2, 3)}


def test_fewer_than_asked_and_none() -> None:
    logits = np.array([5.0, 4.0, -1e5, -np.inf], dtype=np.float32)
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0)
    assert drawn_logprobs(logits, 0, 4, params, 0, 0, MU).top_ids.tolist() == [0, 1]
    assert drawn_logprobs(logits, 0, 1, params, 0, 0, MU).top_ids.tolist() == [0]
    for temperature in (0.0, 1.0):
        none = drawn_logprobs(logits, 0, 0, SamplingParams(temperature=temperature, top_p=1.0), 0, 0, MU)
        assert len(none.top_ids) == len(none.top) == 0
