"""Prompt look-up: the last tokens stood somewhere before, in the prompt, the reply or the client's prediction, so what
followed there may follow here.

A look-up and a new token cost a constant: n-grams of the prompt are hashed and sorted once, those of the reply
join a dictionary as they are written, and nothing is scanned again. Most look-ups find nothing: that way is kept free
of array operations, and a row that goes on finding nothing, or nothing that pays, looks less and less often, down to
every eighth token. So text without repetition costs next to nothing, and text that begins to repeat is found a few
tokens later at most.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from imp_server.decode.drafter import ANY_ROWS, NO_DRAFT, Draft, DraftedRow, Float32s, Int32s

_MOST_CANDIDATES = 16
"""Earlier occurrences looked at, the most recent ones."""
_PATIENCE = 8
"""Look-ups in vain after which the distance to the next one grows by a token."""
_LONGEST_WAIT = 8
"""Most tokens from one look-up to the next."""
_GAP = -1
"""Between two texts; equals no token."""
_FACTOR = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class NgramKnobs:
    """Tokens; see config.running.Speculative."""

    k: int = 16
    suffix: bool = True
    suffix_k_max: int = 64
    min_match: int = 6
    max_match: int = 12
    give_up_after: int = 64
    burst: int = 128
    miss_burst: int = 8
    burst_rearm: bool = True


class NgramDrafter:
    """Makes the per-row part."""

    name = "ngram"
    confidence = 0.8
    wants_hidden = False
    most_rows = ANY_ROWS

    def __init__(self, knobs: NgramKnobs | None = None) -> None:
        self._knobs = knobs or NgramKnobs()

    def start(self, row: DraftedRow) -> NgramRow:
        return NgramRow(row, self._knobs)


class NgramRow:
    """Owner of one row's n-gram index and of its patience."""

    def __init__(self, row: DraftedRow, knobs: NgramKnobs) -> None:
        self._sampler = row.sampler
        self._knobs = knobs
        self._prediction = row.prediction
        self._text = _Text(row.prediction, row.sampler.history, knobs.min_match, knobs.max_match)
        self.silent_until = 0
        self._n_misses = 0
        self._n_vain = 0

    def propose(self, limit: int) -> Draft:
        position = self._sampler.position
        if limit < 1 or position < self.silent_until:
            return NO_DRAFT
        self._text.grow(self._sampler.history)
        if position < min(self._knobs.min_match, len(self._prediction)) and self._is_as_predicted(position):
            return Draft(self._prediction[position : position + min(limit, self._knobs.k)], is_prediction=True)
        ends, n_equal = self._text.earlier()
        if not ends:
            self._note_vain()
            return NO_DRAFT
        knobs = self._knobs
        if not knobs.suffix:
            return self._draft(self._text.after(ends[:1], min(limit, knobs.k)), ends[0])
        longest = max(knobs.k, knobs.suffix_k_max)
        ids = self._text.after(ends, min(limit, longest), n_alone=0 if n_equal >= knobs.max_match else knobs.k)
        return self._draft(ids, ends[0])

    def settle(self, n_drafted: int, n_accepted: int) -> None:
        if not n_drafted:
            self._note_vain()
            return
        if n_accepted:
            self._n_misses = self._n_vain = 0
            return
        self._n_misses += 1
        given_up = bool(self._knobs.give_up_after) and self._n_misses >= self._knobs.give_up_after
        if given_up and not self._knobs.burst_rearm:
            self.silent_until = 1 << 62
            return
        self.silent_until = self._sampler.position + (self._knobs.burst if given_up else self._knobs.miss_burst)

    def take_hidden(self, position: int, hidden: Float32s) -> None:
        return None

    def close(self) -> None:
        return None

    def _note_vain(self) -> None:
        self._n_vain += 1
        self.silent_until = self._sampler.position + min(_LONGEST_WAIT, 1 + self._n_vain // _PATIENCE)

    def _is_as_predicted(self, position: int) -> bool:
        """A reply too short to be looked up is the prediction's beginning."""
        written = self._sampler.output
        return len(written) == position and bool((written == self._prediction[:position]).all())

    def _draft(self, ids: Int32s, end: int) -> Draft:
        return Draft(ids, is_prediction=end < len(self._prediction))


class _Text:
    """Owner of the ids that can be looked up: prediction, a gap, prompt and reply."""

    def __init__(self, prediction: Int32s, history: Int32s, min_match: int, max_match: int) -> None:
        self._n_min = min_match
        self._n_max = max(min_match, max_match)
        self._first = len(prediction) + 1
        self._length = self._first + len(history)
        self._ids = np.full(max(64, self._length + self._length // 4), _GAP, dtype=np.int32)
        self._ids[: len(prediction)] = prediction
        self._ids[self._first : self._length] = history
        hashes, self._ends = _sorted_ngrams(self._ids[: self._length], min_match)
        # A search in a view costs a tenth of one through numpy, whose code is out of the cache after a forward.
        self._hashes = hashes.data
        self._later: dict[int, list[int]] = {}
        self._tail = deque(history[-min_match:].tolist(), maxlen=min_match)
        self._highest = pow(_FACTOR, min_match - 1, 1 << 64)
        self._tail_hash = 0
        for token_id in self._tail:
            self._tail_hash = (self._tail_hash * _FACTOR + token_id + 1) & _MASK

    def grow(self, history: Int32s) -> None:
        """Take in what the history gained."""
        known = self._length - self._first
        if len(history) == known:
            return
        new = history[known:]
        if self._length + len(new) > len(self._ids):
            more = np.full(2 * (self._length + len(new)), _GAP, dtype=np.int32)
            more[: self._length] = self._ids[: self._length]
            self._ids = more
        self._ids[self._length : self._length + len(new)] = new
        tail = self._tail
        for token_id in new.tolist():
            gone = (tail[0] + 1) * self._highest if len(tail) == self._n_min else 0
            tail.append(token_id)
            self._tail_hash = ((self._tail_hash - gone) * _FACTOR + token_id + 1) & _MASK
            if len(tail) == self._n_min:
                self._later.setdefault(self._tail_hash, []).append(self._length)
            self._length += 1

    def earlier(self) -> tuple[list[int], int]:
        """Ends of the earlier occurrences of the longest known tail, most recent first, and that tail's length."""
        if len(self._tail) < self._n_min:
            return [], 0
        last, wanted = self._length - 1, self._tail_hash
        recent = [end for end in self._later.get(wanted, ())[-_MOST_CANDIDATES - 1 :] if end != last]
        ends = recent[::-1] + self._in_prompt(last, wanted)
        if not ends:
            return [], 0
        matches = [(end, self._n_equal(end, last)) for end in ends[:_MOST_CANDIDATES]]
        best = max((n for _, n in matches), default=0)
        if best < self._n_min:
            return [], 0
        return [end for end, n in matches if n == best], best

    def after(self, ends: list[int], limit: int, n_alone: int = 0) -> Int32s:
        """What followed there: at each place the most frequent token, and from then on only those that had it.

        Text that reaches the present goes on with the draft itself, so a loop is continued round and round.
        `n_alone`: longest draft once a single occurrence is left; 0 = no such limit.
        """
        out = np.empty(limit, dtype=np.int32)
        for n in range(limit):
            if len(ends) == 1:
                return self._copied(out, n, ends[0] + 1 + n, min(limit, n_alone or limit))
            tokens = [self._token(end + 1 + n, out) for end in ends]
            votes = Counter(token for token in tokens if token != _GAP)
            if not votes:
                return out[:n]
            winner = votes.most_common(1)[0][0]
            ends = [end for end, token in zip(ends, tokens, strict=True) if token == winner]
            out[n] = winner
        return out

    def _copied(self, out: Int32s, n: int, at: int, limit: int) -> Int32s:
        """`out[:n]` and then the text from `at` on, up to a gap; at most `limit` ids."""
        while n < limit:
            rest = self._ids[at : self._length] if at < self._length else out[at - self._length : n]
            rest = rest[: limit - n]
            gap = (rest == _GAP).argmax()
            if rest[gap] == _GAP:
                rest, limit = rest[:gap], 0
            out[n : n + len(rest)] = rest
            n, at = n + len(rest), at + len(rest)
        return out[:n]

    def _token(self, at: int, draft: Int32s) -> int:
        return int(self._ids[at] if at < self._length else draft[at - self._length])

    def _in_prompt(self, last: int, wanted: int) -> list[int]:
        """Ends in the sorted part whose n-gram has this hash, most recent first."""
        low = bisect_left(self._hashes, wanted)
        if low == len(self._hashes) or self._hashes[low] != wanted:
            return []
        high = bisect_right(self._hashes, wanted, low)
        return [int(end) for end in self._ends[max(low, high - _MOST_CANDIDATES) : high][::-1] if end != last]

    def _n_equal(self, end: int, last: int) -> int:
        """Tokens before and at `end` that equal the tail's, up to the most that is asked for."""
        size = min(self._n_max, end + 1, last + 1 - self._first)
        differ = self._ids[end + 1 - size : end + 1] != self._ids[last + 1 - size : last + 1]
        return int(np.argmax(differ[::-1])) if differ.any() else size


def _hashed(ids: Int32s, n: int) -> NDArray[np.uint64]:
    """A hash of each run of n ids; the first one belongs to ids[:n]."""
    wide = ids.astype(np.uint64)
    out = np.zeros(max(0, len(ids) - n + 1), dtype=np.uint64)
    for i in range(n if len(out) else 0):
        out *= np.uint64(_FACTOR)
        out += wide[i : i + len(out)] + np.uint64(1)
    return out


def _sorted_ngrams(ids: Int32s, n: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hashes in ascending order and the ends of their n-grams, older ones first among equals."""
    hashes = _hashed(ids, n)
    order = np.argsort(hashes, kind="stable")
    return hashes[order], order + (n - 1)
