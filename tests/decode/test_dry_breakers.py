"""DRY with sequence breakers: the tail that is looked for begins behind the last breaker."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import SamplingParams
from imp_server.decode.dry import dry_penalties
from imp_server.decode.processors import process

from tests.decode import law_twin

WORDS = [b"a", b"b", b"\n", b":", b"a\nb", b'"', b"ab", b"", b"\xff<|end|>\xfe", b"\xc3", b"\xbc", b"b:"]
BREAKERS = st.sampled_from(["\n", ":", '"', "*", "ab", "aa", "b:a", "<|end|>", "\u00fc", "abab"])
LOGITS = np.zeros(len(WORDS), np.float32)


@settings(max_examples=400, deadline=None)
@given(
    history=st.lists(st.integers(0, len(WORDS) - 1), min_size=1, max_size=24),
    breakers=st.lists(BREAKERS, max_size=3),
    allowed=st.sampled_from([0, 1, 2, 3, 70]),
    window=st.sampled_from([0, 0, 3, 8]),
)
def test_equal_to_the_twin_whatever_tokens_write_the_breakers(
    history: list[int], breakers: list[str], allowed: int, window: int
) -> None:
    params = SamplingParams(
        dry_multiplier=0.8,
        dry_allowed_length=allowed,
        dry_penalty_last_n=window,
        dry_sequence_breakers=tuple(breakers),
    )
    got = process(LOGITS, params, np.array(history, np.int32), 0, None, WORDS)
    assert got.tolist() == law_twin.processed(LOGITS.tolist(), params, history, 0, None, WORDS)


def penalised(history: list[bytes], *breakers: str, words: list[bytes] = WORDS) -> dict[int, float]:
    params = SamplingParams(dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=1, dry_sequence_breakers=breakers)
    ids, penalty = dry_penalties(np.array([words.index(w) for w in history], np.int32), params, words)
    return dict(zip(ids.tolist(), penalty.tolist()))


def test_a_breaker_cuts_the_repetition_and_no_breaker_changes_nothing() -> None:
    text = [b"a", b":", b"b", b'"', b"a", b":", b"b"]
    assert penalised(text) == {WORDS.index(b'"'): 4.0}
    assert penalised(text, ":") == {WORDS.index(b'"'): 1.0}, "only b stands behind the colon"
    assert penalised([*text, b'"', b"a", b":"], ":") == {}, "nothing stands behind it"
    assert penalised(text, "a:") == penalised(text, ":"), "one that two tokens write"
    assert penalised(text, "*") == penalised(text)


def test_a_long_breaker_far_back_costs_no_more_than_the_longest_repetition() -> None:
    history = np.zeros(200_000, np.int32)
    params = SamplingParams(dry_multiplier=0.1, dry_sequence_breakers=("a" * 3 + "\n",))
    ids, penalty = dry_penalties(history, params, WORDS)
    assert ids.tolist() == [0] and penalty[0] == pytest.approx(0.1 * 1.75**64, rel=1e-6)


def test_llamacpps_breakers_are_the_default() -> None:
    assert SamplingParams().dry_sequence_breakers == ("\n", ":", '"', "*")
