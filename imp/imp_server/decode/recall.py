"""Recall: what followed the newest tokens when the last few of them stood in this text before.

Where prompt look-up (ngram.py) waits for a long match, which is nearly certain, this guesses from one to four tokens.
It says how likely each guess is: by how long the match was and how often it held, as guesses of that kind have fared in
this text and in others. Ordinary text repeats its names, phrases and habits, so where a step costs little more with a
few positions, guesses that hold half of the time pay.

A look-up and a new token cost a few dictionary accesses, and what is kept has a bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from imp_server.decode.drafter import NO_DRAFT, Draft, DraftedRow, Float32s, Int32s

_LONGEST_MATCH = 4
_MOST_HELD = 4
"""Times in a row that a successor held, beyond which it is as sure as it gets."""
_LONGEST = 16
"""Tokens of a draft."""
_LEAST = 0.1
"""Chance of being accepted below which a token isn't drafted, whatever it would cost."""
_FROM_PROMPT = 256
"""Newest tokens of the prompt that are learnt from."""
_AT_ONCE = 1024
"""Newest tokens that are learnt from where the row wasn't asked for long: others wait for its look-up."""
_MOST_KEPT = 1 << 15
"""Contexts in each of two generations: the older one goes when the younger is full."""
_ID_BITS = 21
_PRIOR = 4.0
"""Guesses that the experience with other texts counts for."""
_MEMORY = 0.99
"""What an earlier guess of the same kind still counts for after the next one."""
_PATIENCE = 4
"""Steps without a guess that pays after which the distance to the next look grows by a token."""
_LONGEST_WAIT = 8

Kind = tuple[int, int]
"""Of a guess: tokens that matched, and how often the successor has held."""


class RecallDrafter:
    """Makes the per-row part. Owner of how guesses have fared over all rows."""

    name = "recall"
    confidence = 0.5
    wants_hidden = False
    most_rows = 4

    def __init__(self) -> None:
        self._odds = Odds()

    def start(self, row: DraftedRow) -> RecallRow:
        return RecallRow(row, Odds(self._odds))


class Odds:
    """How often guesses of each kind were right, the newest counting most."""

    def __init__(self, others: Odds | None = None) -> None:
        """`others`: experience to begin with, which learns from this one's."""
        self._others = others
        kinds = [(match, held) for match in range(1, _LONGEST_MATCH + 1) for held in range(1, _MOST_HELD + 1)]
        self._right = dict.fromkeys(kinds, 0.0)
        self._tried = dict.fromkeys(kinds, 0.0)

    def of(self, kind: Kind) -> float:
        """The share that will be right."""
        prior = _first_odds(kind) if self._others is None else self._others.of(kind)
        return (self._right[kind] + _PRIOR * prior) / (self._tried[kind] + _PRIOR)

    def note(self, kind: Kind, is_right: bool) -> None:
        self._right[kind] = _MEMORY * self._right[kind] + is_right
        self._tried[kind] = _MEMORY * self._tried[kind] + 1.0
        if self._others is not None:
            self._others.note(kind, is_right)


def _first_odds(kind: Kind) -> float:
    """Before any guess was made."""
    match, held = kind
    return min(0.9, 0.2 + 0.1 * match + 0.1 * held)


class RecallRow:
    """Owner of what one row's text has taught."""

    def __init__(self, row: DraftedRow, odds: Odds) -> None:
        self._sampler = row.sampler
        self._odds = odds
        self._followers = Followers()
        self._n_learnt = max(0, row.sampler.n_prompt - _FROM_PROMPT)
        self._kinds: list[Kind] = []
        """Of the tokens proposed last."""
        self.silent_until = 0
        self._n_vain = 0

    def propose(self, limit: int) -> Draft:
        self._learn(self._sampler.history)
        ids: list[int] = []
        chances: list[float] = []
        self._kinds = []
        chance, tail = 1.0, self._followers.tail
        for _ in range(min(limit, _LONGEST)):
            found = self._followers.after(tail)
            if found is None:
                break
            token_id, kind = found
            odds = self._odds.of(kind)
            chance *= odds
            if chance < _LEAST:
                break
            ids.append(token_id)
            chances.append(odds)
            self._kinds.append(kind)
            tail = (*tail, token_id)[-_LONGEST_MATCH:]
        if not ids:
            self._note_vain()
            return NO_DRAFT
        return Draft(np.array(ids, dtype=np.int32), odds=tuple(chances))

    def _learn(self, history: Int32s) -> None:
        """What the history gained."""
        if self._n_learnt < len(history) - _AT_ONCE:
            self._n_learnt = len(history) - _AT_ONCE
            self._followers.tail = ()
        if self._n_learnt < len(history):
            self._followers.learn(history[self._n_learnt :].tolist())
            self._n_learnt = len(history)

    def settle(self, n_drafted: int, n_accepted: int) -> None:
        if not n_drafted:
            self._note_vain()
            return
        self._n_vain = 0
        for place, kind in enumerate(self._kinds[: min(n_drafted, n_accepted + 1)]):
            self._odds.note(kind, place < n_accepted)

    def take_hidden(self, position: int, hidden: Float32s) -> None:
        return None

    def close(self) -> None:
        return None

    def _note_vain(self) -> None:
        self._n_vain += 1
        self.silent_until = self._sampler.position + min(_LONGEST_WAIT, 1 + self._n_vain // _PATIENCE)


class Followers:
    """What came after each context of one to four tokens when it stood last, and how often in a row it had."""

    def __init__(self) -> None:
        self._young: dict[int, tuple[int, int]] = {}
        self._old: dict[int, tuple[int, int]] = {}
        self.tail: tuple[int, ...] = ()

    def learn(self, ids: Sequence[int]) -> None:
        """The text goes on with these."""
        for token_id in ids:
            for key in _contexts(self.tail):
                self._note(key, token_id)
            self.tail = (*self.tail, token_id)[-_LONGEST_MATCH:]

    def _note(self, key: int, token_id: int) -> None:
        known = self._young.get(key) or self._old.get(key)
        if known is None or (known[0] != token_id and known[1] == 1):
            known = token_id, 1
        elif known[0] == token_id:
            known = token_id, min(_MOST_HELD, known[1] + 1)
        else:
            known = known[0], known[1] // 2
        if len(self._young) >= _MOST_KEPT:
            self._young, self._old = {}, self._young
        self._young[key] = known

    def after(self, tail: Sequence[int]) -> tuple[int, Kind] | None:
        """By the longest context known; None if not even the last token's is."""
        keys = _contexts(tail)
        for match in range(len(keys), 0, -1):
            known = self._young.get(keys[match - 1]) or self._old.get(keys[match - 1])
            if known is not None:
                return known[0], (match, known[1])
        return None


def _contexts(tail: Sequence[int]) -> list[int]:
    """A number for the last token, the last two, ..."""
    keys: list[int] = []
    key, shift = 0, 0
    for token_id in reversed(tail):
        key |= (token_id + 1) << shift
        shift += _ID_BITS
        keys.append(key)
    return keys
