"""The sampling law against its slow twin, and its statistics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import SamplingParams
from imp_server.decode.logprobs import MASKED, position_logprobs
from imp_server.decode.philox import GUMBEL_MAX, gumbel, philox4x32
from imp_server.decode.processors import process
from imp_server.decode.sampling import best_ids, sample, survivors

from tests.decode import law_twin

# Known answers of the algorithm's authors (Random123, kat_vectors).
PHILOX_KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), PHILOX_KNOWN)
def test_philox_known_answers(counter: Any, key: Any, expected: Any) -> None:
    assert tuple(philox4x32(key, np.array([counter], dtype=np.uint32))[0].tolist()) == expected


def test_gumbel_is_bounded_and_depends_on_each_coordinate() -> None:
    ids = np.arange(50_000)
    g = gumbel(7, 0, 3, ids)
    assert g.min() >= -np.log(-np.log(2.0**-33)) and g.max() <= GUMBEL_MAX
    assert abs(g.mean() - 0.5772) < 0.02 and abs(g.var() - math.pi**2 / 6) < 0.03
    for other in (gumbel(8, 0, 3, ids), gumbel(7 + 2**32, 0, 3, ids), gumbel(7, 1, 3, ids), gumbel(7, 0, 4, ids)):
        assert abs(np.corrcoef(g, other)[0, 1]) < 0.02


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.integers(2, 40))
    some = st.integers(0, size - 1)
    # quarter steps make ties frequent
    logits = np.array(draw(st.lists(st.integers(-40, 40), min_size=size, max_size=size)), dtype=np.float32) / 4
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 1, 3, 40])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.5, 0.0])),
        min_p=draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        typical_p=draw(st.sampled_from([1.0, 0.9, 0.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5, -1.25])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.3, -0.7])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.8])),
        repeat_last_n=draw(st.sampled_from([0, 1, 4])),
        dry_multiplier=draw(st.sampled_from([0.0, 0.8])),
        dry_penalty_last_n=draw(st.sampled_from([0, 5])),
        mirostat=draw(st.sampled_from([0, 0, 2])),
        dynatemp_range=draw(st.sampled_from([0.0, 0.0, 0.5, 3.0])),
        dynatemp_exponent=draw(st.sampled_from([1.0, 0.5, 2.0])),
        top_n_sigma=draw(st.sampled_from([0.0, 0.0, 1.0, 0.3])),
        xtc_probability=draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])),
        xtc_threshold=draw(st.sampled_from([0.1, 0.3, 0.0])),
        seed=draw(st.integers(0, 2**64 - 1)),
        logit_bias=tuple(draw(st.lists(st.tuples(some, st.sampled_from([-100.0, 2.5, 0.1])), max_size=2))),
        banned_ids=tuple(draw(st.lists(some, max_size=2))),
    )
    history = np.array(draw(st.lists(some, min_size=1, max_size=14)), dtype=np.int32)
    allowed = draw(st.one_of(st.none(), st.sets(some, max_size=size)))
    return {
        "logits": logits,
        "params": params,
        "history": history,
        "n_prompt": draw(st.integers(0, len(history))),
        "allowed": allowed,
        "choice": draw(st.integers(0, 3)),
        "position": draw(st.integers(0, 2**33)),
        "mu": draw(st.sampled_from([10.0, 1.5, 0.1])),
    }


def mask_of(allowed: set[int], size: int) -> np.ndarray[Any, Any]:
    mask = np.zeros(-(-size // 32), dtype=np.uint32)
    for i in allowed:
        mask[i // 32] |= np.uint32(1 << (i % 32))
    return mask


@settings(max_examples=250, deadline=None)
@given(cases())
def test_law_equals_its_twin(case: dict[str, Any]) -> None:
    logits, params, history = case["logits"], case["params"], case["history"]
    mask = None if case["allowed"] is None else mask_of(case["allowed"], len(logits))
    got = process(logits, params, history, case["n_prompt"], mask)
    wanted = law_twin.processed(logits.tolist(), params, history.tolist(), case["n_prompt"], case["allowed"])
    assert got.tolist() == wanted
    if max(wanted) > -math.inf and params.temperature > 0:
        kept = survivors(got, params, case["mu"])[0].tolist()
        twin = [i for i, _ in law_twin.survivors(wanted, params, case["mu"])]
        # a sum that meets the bound exactly may fall on either side of it
        assert kept == twin or (abs(len(kept) - len(twin)) <= 1 and min(len(kept), len(twin)) >= 1)
        if kept != twin:
            return
    token, mu = sample(got, params, case["choice"], case["position"], case["mu"])
    twin_token, twin_mu = law_twin.draw(wanted, params, case["choice"], case["position"], case["mu"])
    assert token == twin_token
    assert mu == pytest.approx(twin_mu, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("spread", [0.1, 3.0, 12.0])
def test_the_bounded_search_finds_the_winner_of_the_full_one(spread: float) -> None:
    """With thousands of survivors only those that can still win get noise; the draw must not change."""
    rng = np.random.default_rng(1)
    logits = (rng.standard_normal(20_000) * spread).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=5)
    ids, scaled = survivors(logits, params, 10.0)
    for position in range(60):
        full = ids[np.argmax(scaled + gumbel(5, 2, position, ids))]
        assert sample(logits, params, 2, position, 10.0).id == full


PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0)
LAWS = {
    "plain": PLAIN,
    "top": SamplingParams(temperature=0.7, top_k=5, top_p=0.9),
    "min_p": SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.1),
    "typical": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, typical_p=0.8),
    "dynatemp": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, dynatemp_range=0.9, dynatemp_exponent=0.5),
    "top_n_sigma": SamplingParams(temperature=1.2, top_k=0, top_p=1.0, top_n_sigma=1.0),
    "xtc": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, xtc_probability=0.6, xtc_threshold=0.12),
    "mirostat": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, mirostat=2),
    "repetition": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.5, repeat_last_n=4),
    "presence": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, presence_penalty=0.8, repeat_last_n=4),
    "frequency": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, frequency_penalty=0.5, repeat_last_n=4),
    "dry": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, dry_multiplier=0.3),
    "dry_window": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, dry_multiplier=0.9, dry_penalty_last_n=6),
    "bias": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, logit_bias=((5, 2.5), (0, -1.25), (2, -100.0))),
}
MU = 4.2  # bits: drops the four rarest of the logits below


@pytest.mark.parametrize("name", LAWS)
def test_chi_square(name: str) -> None:
    """8,000 draws at consecutive positions fit the twin's probabilities: chi-square below its 99.99 % point."""
    params = LAWS[name]
    logits = np.array([2.0, 1.0, 1.0, 0.0, -0.5, -1.0, -1.5, -3.0], dtype=np.float32)
    history, n_prompt, n_draws = [4, 0, 2, 3, 1, 0, 3, 1, 0, 3], 2, 8_000
    shaped = process(logits, params, np.array(history, dtype=np.int32), n_prompt, None)
    counts = np.zeros(len(logits))
    for position in range(n_draws):
        counts[sample(shaped, params, 0, position, MU).id] += 1
    expected = expected_share(logits, params, history, n_prompt) * n_draws
    live = expected > 1e-6
    assert counts[~live].sum() == 0
    chi_square = float(((counts[live] - expected[live]) ** 2 / expected[live]).sum())
    assert chi_square < 29.9  # 7 degrees of freedom; fewer need less
    if params is not PLAIN:  # the test would tell a law that does nothing from this one
        untouched = expected_share(logits, PLAIN, history, n_prompt) * n_draws
        assert float(((counts - untouched) ** 2 / untouched).sum()) > 100


def expected_share(
    logits: np.ndarray[Any, Any], params: SamplingParams, history: list[int], n_prompt: int
) -> np.ndarray[Any, Any]:
    kept = law_twin.survivors(law_twin.processed(logits.tolist(), params, history, n_prompt, None), params, MU)
    share = np.zeros(len(logits))
    for weight, left in law_twin.outcomes(kept, params):
        share[[token for token, _ in left]] += weight * np.array(law_twin.probabilities(left))
    return share


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    logits = np.array([0, 3, 1, 3, 3], dtype=np.float32)
    assert sample(logits, SamplingParams(temperature=0.0), 0, 0, 0.0).id == 1


def test_negative_zero_ties_with_zero() -> None:
    assert best_ids(np.array([-0.0, 0.0, -0.0], dtype=np.float32), 3).tolist() == [0, 1, 2]


def test_nothing_allowed_and_not_a_number() -> None:
    dead = np.full(5, -np.inf, dtype=np.float32)
    assert sample(dead, SamplingParams(), 0, 0, 3.0) == (-1, 3.0)
    with pytest.raises(FloatingPointError):
        sample(np.array([0, np.nan], dtype=np.float32), SamplingParams(), 0, 0, 3.0)


def test_logprobs() -> None:
    logits = np.array([1.0, 2.0, -np.inf, 2.0], dtype=np.float32)
    log_sum = math.log(math.exp(1) + 2 * math.exp(2))
    entry = position_logprobs(logits, 3, 4)
    assert entry.token == pytest.approx(2 - log_sum) and entry.rank == 2
    assert entry.top_ids.tolist() == [1, 3, 0, 2]
    assert entry.top.tolist() == pytest.approx([2 - log_sum, 2 - log_sum, 1 - log_sum, MASKED])
    assert len(position_logprobs(logits, 0, 0).top) == 0
