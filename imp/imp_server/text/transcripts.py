"""Owner of the answers that clients may send back: their exact ids, found again by the exact text of the conversation.

A reply's ids needn't be those that its text would be tokenised to, so without this the next turn of a conversation
would share no more than its last prompt with the cache. A transcript is keyed by a digest of the marked bytes of
prompt and reply: its ids are used only where the new prompt begins with exactly that text, control tokens included,
and the message ends there. Those of other scopes (another owner or salt) are never found. Reasoning
and calls count as the template writes them.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from threading import Lock
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
_DIGEST_BYTES = 32
_MOST_NOTED = 64
"""Replies that wait to be taken in; each prompt takes in what is there, so there are hardly ever two."""
_OVERHEAD_BYTES = 400
"""Of an entry beside its arrays."""


class TextState(Protocol):
    """Of a hash that goes on."""

    def update(self, data: bytes, /) -> None: ...

    def copy(self) -> TextState: ...

    def digest(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Written:
    """A text with its ids: before byte places[i] (ascending, from 0) lie offsets[i] of them."""

    ids: Ids
    n_bytes: int
    places: tuple[int, ...]
    offsets: tuple[int, ...]
    state: TextState | None = None
    """Of the text's bytes, for going on; None in a stored transcript."""

    @property
    def size(self) -> int:
        """Bytes of memory, nearly."""
        return _OVERHEAD_BYTES + self.ids.nbytes + 64 * len(self.places)

    def ids_before(self, place: int, token_bytes: Sequence[bytes]) -> int:
        """How many ids end at or before byte `place`."""
        index = bisect_right(self.places, place) - 1
        start, first = self.places[index], self.offsets[index]
        if place == start:
            return first
        later = index + 1 < len(self.places)
        stop, end = (self.places[index + 1], self.offsets[index + 1]) if later else (self.n_bytes, len(self.ids))
        sizes = [len(token_bytes[i]) for i in self.ids[first:end].tolist()]
        # Some tokenizers write a blank that the text doesn't have.
        most = place - start + sum(sizes) - (stop - start)
        return first + sum(1 for _ in takewhile(lambda n: n <= most, accumulate(sizes)))


class Transcripts:
    """Owner of the transcripts. Above a number of entries or of bytes the least recently used go. Thread-safe."""

    def __init__(
        self, token_bytes: Sequence[bytes], end_ids: Sequence[int], *, max_entries: int, max_bytes: int
    ) -> None:
        self._token_bytes = token_bytes
        self._end_ids = frozenset(end_ids)
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._lock, self._taking_in = Lock(), Lock()
        self._entries: OrderedDict[bytes, Written] = OrderedDict()
        self._lengths: Counter[int] = Counter()
        self._n_bytes = 0
        self._noted: deque[tuple[Written, Sequence[int], bytes | None]] = deque(
            maxlen=max(1, min(_MOST_NOTED, max_entries))
        )

    def __len__(self) -> int:
        self._take_in()
        return len(self._entries)

    @property
    def n_bytes(self) -> int:
        """Of memory, nearly."""
        self._take_in()
        return self._n_bytes

    def find(self, text: bytes, may_end: Sequence[tuple[int, int]], scope: bytes = b"") -> Written | None:
        """The longest transcript that `text` (marked bytes) begins with and that ends within one of `may_end`
        (first and last place, ascending). `scope`: only those whose prompts were hashed with it."""
        self._take_in()
        with self._lock:
            lengths = sorted(n for n in self._lengths if n <= len(text))
        ends = [last for _, last in may_end]
        state = _new_hash(scope)
        found: list[bytes] = []
        at = 0
        for n in lengths:
            index = bisect_left(ends, n)
            if index < len(ends) and may_end[index][0] <= n:
                state.update(text[at:n])
                at = n
                found.append(state.copy().digest())
        with self._lock:
            for key in reversed(found):
                entry = self._entries.get(key)
                if entry is not None:
                    self._entries.move_to_end(key)
                    return entry
        return None

    def note(self, prompt: Written, reply: Sequence[int], stop: bytes | None = None) -> None:
        """`reply`: what was written after the prompt; `stop`: the stop string that ended it, which isn't shown.

        Returns at once, so that an event loop may call it; the work is done by whoever looks for something next.
        """
        if prompt.state is not None:
            self._noted.append((prompt, reply, stop))

    def _take_in(self) -> None:
        with self._taking_in:
            while self._noted:
                self._keep(*self._noted.popleft())

    def _keep(self, prompt: Written, reply: Sequence[int], stop: bytes | None) -> None:
        ids = self._shown(reply, stop)
        if not ids or prompt.state is None:
            return
        text = b"".join(self._token_bytes[i] for i in ids)
        state = prompt.state.copy()
        state.update(text)
        entry = Written(
            np.concatenate([prompt.ids, np.array(ids, dtype=np.int32)]),
            prompt.n_bytes + len(text),
            prompt.places,
            prompt.offsets,
        )
        with self._lock:
            self._put(state.digest(), entry)

    def _shown(self, reply: Sequence[int], stop: bytes | None) -> list[int]:
        """The ids whose text the client gets: without end token and stop string; none if that cuts a token."""
        ids = list(reply)
        while ids and ids[-1] in self._end_ids:
            ids.pop()
        if stop is None:
            return ids
        ends = [0, *accumulate(len(self._token_bytes[i]) for i in ids)]
        cut = b"".join(self._token_bytes[i] for i in ids).rfind(stop)
        return ids[: ends.index(cut)] if cut in ends else []

    def _put(self, key: bytes, entry: Written) -> None:
        self._drop(key)
        if entry.size > self._max_bytes or not self._max_entries:
            return
        self._entries[key] = entry
        self._lengths[entry.n_bytes] += 1
        self._n_bytes += entry.size
        while len(self._entries) > self._max_entries or self._n_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._n_bytes -= entry.size
        self._lengths[entry.n_bytes] -= 1
        if not self._lengths[entry.n_bytes]:
            del self._lengths[entry.n_bytes]


def hashed(text: bytes, scope: bytes = b"") -> TextState:
    """The state that `Written.state` wants. `scope`: at most 64 bytes."""
    state = _new_hash(scope)
    state.update(text)
    return state


def _new_hash(scope: bytes) -> TextState:
    return hashlib.blake2b(digest_size=_DIGEST_BYTES, key=scope)
