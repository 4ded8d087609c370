"""The n-gram index against a rescan of the whole text, its knobs, and what it costs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import SamplingParams
from imp_server.decode.drafter import DraftedRow
from imp_server.decode.ngram import NgramDrafter, NgramKnobs, NgramRow
from imp_server.decode.state import SamplerState

few_tokens = st.lists(st.integers(0, 2), max_size=60)


def row(prompt: list[int], prediction: list[int] | None = None, **knobs: Any) -> tuple[SamplerState, NgramRow]:
    state = SamplerState(SamplingParams(), 0, np.array(prompt, dtype=np.int32), len(prompt) + 1000)
    drafted = DraftedRow(state, np.array(prediction or [], dtype=np.int32))
    return state, NgramDrafter(NgramKnobs(**knobs)).start(drafted)


def rescanned(prediction: list[int], history: list[int], k: int, n_min: int, n_max: int) -> list[int]:
    """The most recent of the earlier places with the longest equal tail, found by looking at every place."""
    best: tuple[int, int, int] | None = None
    for region, text in ((1, history), (0, prediction)):
        for end in range(len(text)):
            if region and end == len(history) - 1:
                continue
            n = 0
            while n < min(n_max, end + 1, len(history)) and text[end - n] == history[-1 - n]:
                n += 1
            if n >= n_min and (best is None or (n, region, end) > best):
                best = (n, region, end)
    if best is None:
        return []
    _, region, end = best
    if not region:
        return prediction[end + 1 : end + 1 + k]
    out = list(history)
    for i in range(k):
        out.append(out[end + 1 + i])
    return out[len(history) :]


@settings(max_examples=150, deadline=None)
@given(few_tokens.filter(bool), few_tokens, few_tokens, st.integers(1, 4), st.integers(1, 6))
def test_the_index_finds_what_a_rescan_finds(
    prompt: list[int], reply: list[int], prediction: list[int], n_min: int, n_max: int
) -> None:
    """Ids up to 2 give long runs; at most 16 candidates are looked at, so texts with more are left out."""
    n_max = max(n_min, n_max)
    state, drafter = row(prompt, prediction, suffix=False, k=7, min_match=n_min, max_match=n_max)
    for token in reply:
        state.append([token])
        drafter._text.grow(state.history)
    history = prompt + reply
    if not reply or sum(_tails(text, history[-n_min:]) for text in (history, prediction)) > 16:
        return
    wanted = rescanned(prediction, history, 7, n_min, n_max)
    if len(reply) < min(n_min, len(prediction)) and reply == prediction[: len(reply)]:
        wanted = prediction[len(reply) :][:7]
    assert drafter.propose(7).ids.tolist() == wanted


def _tails(text: list[int], tail: list[int]) -> int:
    return sum(text[i : i + len(tail)] == tail for i in range(len(text)))


def test_occurrences_vote() -> None:
    a, b = [1, 2, 3, 4, 5, 6], [7, 8]
    prompt = a + b + [50, 51] + a + b + [60, 61] + a + [9, 9] + a
    state, drafter = row([*prompt, 0], min_match=6)
    state.append(a)
    assert drafter.propose(2).ids.tolist() == [7, 8], "two of three say so, though the last one is another"
    state, drafter = row([*prompt, 0], min_match=6, suffix=False)
    state.append(a)
    assert drafter.propose(2).ids.tolist() == [0, 1], "the most recent one"


def test_drafts_are_longer_where_several_agree_or_the_match_is_maximal() -> None:
    text = list(range(1, 80))
    state, drafter = row([*text, 0], k=16, suffix_k_max=40)
    state.append(text[:7])
    assert len(drafter.propose(64).ids) == 16
    state, drafter = row([*text, 0, *text, 0], k=16, suffix_k_max=40)
    state.append(text[:7])
    assert drafter.propose(64).ids.tolist() == text[7:47]
    state, drafter = row([*text, 0], k=16, suffix_k_max=40)
    state.append(text[:12])
    assert len(drafter.propose(64).ids) == 40


def test_misses_bring_silence_and_success_ends_it() -> None:
    state, drafter = row([1, 2, 3, 4] * 8, min_match=2, miss_burst=8, give_up_after=2, burst=20)
    assert len(drafter.propose(4).ids)
    drafter.settle(4, 0)
    for _ in range(8):
        assert not len(drafter.propose(4).ids)
        state.append([1, 2, 3, 4][state.length % 4 :][:1])
    assert len(drafter.propose(4).ids)
    drafter.settle(4, 0)
    for _ in range(20):
        assert not len(drafter.propose(4).ids)
        state.append([1, 2, 3, 4][state.length % 4 :][:1])
    assert len(drafter.propose(4).ids)
    state, drafter = row([1, 2, 3, 4] * 8, min_match=2, give_up_after=1, burst=1, burst_rearm=False)
    drafter.settle(4, 0)
    state.append([1, 2, 3, 4] * 100)
    assert not len(drafter.propose(4).ids)


def test_a_prediction_is_tried_from_the_start_and_found_again() -> None:
    prediction = list(range(100, 160))
    state, drafter = row([1, 2, 3], prediction)
    first = drafter.propose(8)
    assert first.is_prediction and first.ids.tolist() == prediction[:8]
    state.append([*prediction[:5], 7, *prediction[10:16]])
    again = drafter.propose(8)
    assert again.is_prediction and again.ids.tolist() == prediction[16:24]


def test_a_match_longer_than_any_text_is_looked_for_in_no_time() -> None:
    """An operator's knob has no upper end: the engine must not work it off token by token."""
    state, drafter = row([1, 2, 3] * 50, [1, 2], min_match=10**9, max_match=10**9, k=10**9)
    state.append([1, 2, 3])
    assert not len(drafter.propose(8).ids)


def test_a_token_costs_the_same_in_a_long_text() -> None:
    """Against the same work at a hundredth of the length, in turn."""
    rng = np.random.default_rng(0)

    def seconds(n_prompt: int) -> float:
        _, drafter = (pair := row(rng.integers(0, 30000, n_prompt).tolist()))
        state = pair[0]
        drafter.propose(8)
        began = time.perf_counter()
        for token in rng.integers(0, 30000, 300).tolist():
            state.append([token])
            drafter.propose(8)
        return time.perf_counter() - began

    pairs = [(seconds(1000), seconds(100_000)) for _ in range(5)]
    assert min(long for _, long in pairs) < 5 * min(short for short, _ in pairs)


def test_looking_in_vain_grows_rare_and_a_repetition_is_still_found_within_eight_tokens() -> None:
    copied = list(range(1000, 1040))
    state, drafter = row([*copied, 0])
    looked = []
    for token in range(2000, 2400):
        state.append([token])
        if state.position >= drafter.silent_until:
            looked.append(state.position)
            assert not len(drafter.propose(8).ids)
    assert looked[:4] == [1, 2, 3, 4]
    assert np.diff(looked).max() == 8 and len(looked) < 100
    waited = 0
    while not len(drafter.propose(8).ids):
        state.append(copied[waited : waited + 1])
        waited += 1
    assert 6 <= waited <= 6 + 8
    assert drafter.propose(8).ids.tolist() == copied[waited : waited + 8]
    state.append([1])
    assert state.position >= drafter.silent_until, "it looks at every step again"
