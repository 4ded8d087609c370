"""Jump-ahead: where a grammar leaves no choice, its text is drafted whole.

The grammar forces bytes, not tokens: the model may cut them otherwise, so they are drafts like any others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from imp_server.core import SPECIAL_OPEN
from imp_server.decode.drafter import Draft, DraftedRow, Float32s


class ForcedDrafter:
    """Cuts forced text as the tokenizer would."""

    name = "forced"
    confidence = 0.95
    wants_hidden = False

    def __init__(self, encode: Callable[[str], Iterable[int]], token_bytes: Sequence[bytes]) -> None:
        self._encode = encode
        self._token_bytes = token_bytes
        self._sorted: list[bytes] = []

    def start(self, row: DraftedRow) -> ForcedRow | None:
        return None if row.forced is None else ForcedRow(self, row.forced)

    def ids_of(self, data: bytes) -> list[int]:
        """Ids of forced bytes: whole characters up to a special token, without a last token that may be a longer one's
        beginning, since what follows isn't known."""
        text = data.partition(SPECIAL_OPEN)[0].decode("utf-8", "ignore")
        ids = [int(i) for i in self._encode(text)] if text else []
        return ids[:-1] if ids and self._may_go_on(self._token_bytes[ids[-1]]) else ids

    def _may_go_on(self, data: bytes) -> bool:
        if not self._sorted:
            self._sorted = sorted(self._token_bytes)
        at = bisect_right(self._sorted, data)
        return at < len(self._sorted) and self._sorted[at].startswith(data)


class ForcedRow:
    """Stateless beside its drafter: the grammar knows where the row is."""

    def __init__(self, drafter: ForcedDrafter, forced: Callable[[], bytes]) -> None:
        self._drafter = drafter
        self._forced = forced

    def propose(self, limit: int) -> Draft:
        data = self._forced()
        if not data:
            return Draft()
        return Draft(np.array(self._drafter.ids_of(data)[: max(0, limit)], dtype=np.int32))

    def settle(self, n_drafted: int, n_accepted: int) -> None:
        return None

    def take_hidden(self, position: int, hidden: Float32s) -> None:
        return None

    def close(self) -> None:
        return None
