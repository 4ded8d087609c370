"""Guesses from short matches: what they are, how sure they say they are, and what is kept for them."""

from __future__ import annotations

import numpy as np
import pytest
from imp_server.core import SamplingParams
from imp_server.decode import recall
from imp_server.decode.drafter import DraftedRow
from imp_server.decode.recall import Followers, Odds, RecallDrafter, RecallRow
from imp_server.decode.state import SamplerState


def row_of(text: str, drafter: RecallDrafter | None = None) -> tuple[RecallRow, SamplerState]:
    state = SamplerState(SamplingParams(), 0, np.frombuffer(text.encode(), np.uint8).astype(np.int32), len(text) + 4000)
    return (drafter or RecallDrafter()).start(DraftedRow(state)), state


def guessed(row: RecallRow, limit: int = 16) -> str:
    return bytes(row.propose(limit).ids.tolist()).decode()


def test_it_goes_on_as_the_longest_match_did() -> None:
    row, state = row_of("the cat sat. a dog ran. the c")
    assert guessed(row, 3) == "at "
    state.append([ord("o")])
    assert not guessed(row).startswith("at")


def test_the_newest_of_two_successors_is_taken_unless_the_older_held_more_often() -> None:
    followers = Followers()
    followers.learn([*b"xa xb "])
    assert followers.after([*b"x"]) == (ord("b"), (1, 1))
    followers.learn([*b"xb xb xa "])
    token_id, (match, held) = followers.after([*b"x"]) or (0, (0, 0))
    assert (token_id, match) == (ord("b"), 1) and held == 1, "a successor that failed once has less credit"
    followers.learn([*b"xa "])
    assert (followers.after([*b"x"]) or (0,))[0] == ord("a")


def test_odds_follow_what_happens_in_this_text_and_begin_with_what_did_elsewhere() -> None:
    shared = Odds()
    kind = (2, 1)
    begun = shared.of(kind)
    first = Odds(shared)
    for _ in range(30):
        first.note(kind, False)
    assert first.of(kind) < 0.1 and shared.of(kind) < 0.1 < begun
    other = Odds(shared)
    assert other.of(kind) == pytest.approx(shared.of(kind))
    for _ in range(30):
        other.note(kind, True)
    assert other.of(kind) > 0.8


def test_what_was_refused_is_guessed_no_more() -> None:
    row, _ = row_of("ab cd ab")
    n_tried = 0
    while len(draft := row.propose(1).ids):
        row.settle(len(draft), 0)
        n_tried += 1
        assert n_tried < 60
    assert n_tried > 2


def test_odds_come_with_each_token_and_settling_teaches_as_far_as_it_was_tried() -> None:
    row, _ = row_of("one two three. one two three. one two")
    draft = row.propose(4)
    assert len(draft.odds) == len(draft.ids) == 4 and all(0.0 < odds < 1.0 for odds in draft.odds)
    before = [row._odds.of(kind) for kind in row._kinds]
    kinds = list(row._kinds)
    row.settle(3, 1)
    assert row._odds.of(kinds[0]) != before[0]
    assert sum(row._odds._tried.values()) == pytest.approx(2.0, abs=0.1), "the third was never looked at"


def test_a_row_without_ideas_is_asked_less_often() -> None:
    row, state = row_of("abcdefgh")
    waits = []
    for number in range(60):
        row.settle(0, 0)
        waits.append(row.silent_until - state.position)
        state.append([200 + number])
    assert waits[0] == 1 and waits[-1] == recall._LONGEST_WAIT


def test_memory_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "_MOST_KEPT", 100)
    followers = Followers()
    followers.learn(range(5000))
    assert len(followers._young) <= 100 and len(followers._old) <= 100
    assert followers.after([4996, 4997, 4998]) == (4999, (3, 1))
    assert followers.after([1]) is None


def test_only_the_end_of_a_long_prompt_is_read() -> None:
    row, _ = row_of("the cat " + "." * 4000 + "the c")
    assert guessed(row, 2) != "at"


def test_of_what_was_written_while_it_was_not_asked_the_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "_AT_ONCE", 30)
    late, state = row_of("a fox. ")
    assert guessed(late, 3) == "fox"
    state.append([*b"the cat sat. " + b"." * 100 + b"a dog ran. a dog ran. the c"])
    assert guessed(late, 2) != "at"
    state.append([*b"! a d"])
    assert guessed(late, 2) == "og"
