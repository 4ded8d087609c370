"""Jump-ahead: where a grammar leaves no choice, its text is drafted whole.

The grammar forces bytes, not tokens: the model may cut them otherwise, so they are drafts like any others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from imp_server.core import SPECIAL_OPEN
from imp_server.decode.drafter import ANY_ROWS, Draft, DraftedRow, Float32s

_KEY_BYTES = 48
"""Of a forced text, what its first token is remembered by."""
_MAX_REMEMBERED = 20_000


class ForcedDrafter:
    """Owner of how forced texts were cut the last time.

    The first time a text is cut as the tokenizer would; a model that would rather have written something else often
    cuts it otherwise, and then does so every time that the text comes up.
    """

    name = "forced"
    confidence = 0.95
    wants_hidden = False
    most_rows = ANY_ROWS

    def __init__(self, encode: Callable[[str], Iterable[int]], token_bytes: Sequence[bytes]) -> None:
        self._encode = encode
        self._token_bytes = token_bytes
        self._sorted: list[bytes] = []
        self._first: dict[bytes, int] = {}
        self._cut: dict[bytes, list[int]] = {}

    def start(self, row: DraftedRow) -> ForcedRow | None:
        return None if row.forced is None else ForcedRow(self, row.forced, row)

    def ids_of(self, data: bytes) -> list[int]:
        """Ids of forced bytes: whole characters up to a special token, without a last token that may be a longer one's
        beginning, since what follows isn't known."""
        rest = data.partition(SPECIAL_OPEN)[0]
        ids: list[int] = []
        while rest:
            first = self._first.get(rest[:_KEY_BYTES])
            if first is None:
                return ids + self._canonical(rest)
            ids.append(first)
            rest = rest[len(self._token_bytes[first]) :]
        return ids

    def learn(self, data: bytes, ids: Sequence[int]) -> None:
        """`ids` were written where `data` was forced."""
        rest = data.partition(SPECIAL_OPEN)[0]
        for token_id in ids:
            written = self._token_bytes[token_id]
            if not written or not rest.startswith(written):
                return
            if len(self._first) >= _MAX_REMEMBERED:
                self._first.clear()
            self._first[rest[:_KEY_BYTES]] = token_id
            rest = rest[len(written) :]

    def _canonical(self, data: bytes) -> list[int]:
        found = self._cut.get(data)
        if found is None:
            text = data.decode("utf-8", "ignore")
            found = [int(i) for i in self._encode(text)] if text else []
            if found and self._may_go_on(self._token_bytes[found[-1]]):
                found.pop()
            if len(self._cut) >= _MAX_REMEMBERED:
                self._cut.clear()
            self._cut[data] = found
        return found

    def _may_go_on(self, data: bytes) -> bool:
        if not self._sorted:
            self._sorted = sorted(self._token_bytes)
        at = bisect_right(self._sorted, data)
        return at < len(self._sorted) and self._sorted[at].startswith(data)


class ForcedRow:
    """Owner of the text that was forced at the last look; the grammar knows where the row is."""

    silent_until = 0

    def __init__(self, drafter: ForcedDrafter, forced: Callable[[], bytes], row: DraftedRow) -> None:
        self._drafter = drafter
        self._forced = forced
        self._sampler = row.sampler
        self._last = b""
        self._length = 0
        """Of the row's history when `_last` was forced."""

    def propose(self, limit: int) -> Draft:
        sampler = self._sampler
        if self._last:
            self._drafter.learn(self._last, sampler.history[self._length : sampler.length].tolist())
        self._last = self._forced()
        self._length = sampler.length
        return Draft(np.array(self._drafter.ids_of(self._last)[: max(0, limit)], dtype=np.int32))

    def settle(self, n_drafted: int, n_accepted: int) -> None:
        return None

    def take_hidden(self, position: int, hidden: Float32s) -> None:
        return None

    def close(self) -> None:
        return None
