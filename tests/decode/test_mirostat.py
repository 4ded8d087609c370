"""Mirostat 1: how many tokens it keeps, and the surprise that it holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from imp_server.core import SamplingParams
from imp_server.decode.sampling import sample, survivors

FIRST = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, mirostat=1, mirostat_tau=3.0, mirostat_eta=0.1, seed=5)


def zipf(exponent: float, n: int) -> np.ndarray:
    return np.array([-exponent * math.log(rank) for rank in range(1, n + 1)], dtype=np.float32)


def kept(exponent: float, n: int, mu: float) -> float:
    """The paper's k for a vocabulary of `n` whose probabilities fall by Zipf's law."""
    excess = exponent - 1
    return float((excess * 2**mu / (1 - n**-excess)) ** (1 / exponent))


@pytest.mark.parametrize("exponent", [0.7, 1.3, 2.5])
@pytest.mark.parametrize("mu", [0.5, 4.0, 6.3])
def test_it_keeps_what_the_law_of_zipf_says(exponent: float, mu: float) -> None:
    n = 5000
    k = kept(exponent, n, mu)
    ids, _ = survivors(zipf(exponent, n), FIRST, mu)
    assert abs(len(ids) - min(max(k, 1), n)) < 1 + 0.001 * k and ids[0] == 0


@pytest.mark.parametrize("logits", [[3.0], [0.0] * 50, [0.0] * 3 + [-np.inf] * 9, [900.0, -900.0], zipf(1.0, 300)])
@pytest.mark.parametrize("mu", [-3.0, 0.0, 40.0, 2000.0])
def test_something_is_kept_and_nothing_that_is_forbidden(logits: list[float], mu: float) -> None:
    found = sample(np.array(logits, dtype=np.float32), FIRST, 0, 0, mu)
    assert logits[found.id] > -np.inf and math.isfinite(found.mu)


def test_the_surprise_comes_to_the_one_that_is_asked_for() -> None:
    logits, mu, surprises = zipf(1.1, 2000), 2 * FIRST.mirostat_tau, []
    for position in range(600):
        before, (_, mu) = mu, sample(logits, FIRST, 0, position, mu)
        surprises.append((before - mu) / FIRST.mirostat_eta + FIRST.mirostat_tau)
    assert abs(np.mean(surprises[200:]) - FIRST.mirostat_tau) < 0.1
