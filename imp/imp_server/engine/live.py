"""The requests an engine has accepted and not finished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from imp_server.core import GenerateRequest, TokenLogprob
from imp_server.engine.choice import ChoiceOutput
from imp_server.engine.constrained.grammar_row import GrammarRow
from imp_server.engine.drafting.drafts import RowDrafting
from imp_server.engine.pooling import Pooler
from imp_server.schedule.rows import Row


class Sampled(NamedTuple):
    """A token as it came from the backend. `mu`: mirostat's value behind it."""

    token_id: int
    logprobs: list[TokenLogprob]
    was_drafting: bool
    mu: float | None


@dataclass(slots=True, eq=False)
class LiveRow:
    """One choice: its row in the scheduler, its output, its grammar."""

    row: Row
    output: ChoiceOutput
    grammar: GrammarRow | None = None
    drafting: RowDrafting | None = None
    """None until its first decode step with drafters."""
    undecided: Sampled | None = None
    """The token sampled last, while the mask thread finds out whether it may be taken."""
    held_since_s: float = 0.0
    """Since when it waits for the mask thread, on the loop's clock; 0.0 = it doesn't."""
    host_reason: str | None = None
    """Backend.on_host_reason of it; None = nobody has asked yet."""
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    pooler: Pooler | None = None
    """Of an embedding in which all positions have a part."""
    keeps_session: bool = True
    """Its session hasn't been closed meanwhile."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    request: GenerateRequest
    rows: list[LiveRow]
    deadline_s: float | None
    """On the loop's clock."""


class LiveRequests:
    """Owner of the map from keys and rows to what is alive."""

    def __init__(self) -> None:
        self._requests: dict[int, LiveRequest] = {}
        self._by_row: dict[Row, LiveRow] = {}
        self.touched: dict[LiveRow, None] = {}
        """Those with something to send."""

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, key: int) -> bool:
        return key in self._requests

    def add(self, live: LiveRequest) -> None:
        self._requests[live.request.key] = live
        self._by_row.update({each.row: each for each in live.rows})

    def of_row(self, row: Row) -> LiveRow:
        return self._by_row[row]

    def rows(self) -> Iterator[LiveRow]:
        yield from self._by_row.values()

    def rows_of(self, key: int, choice: int = -1) -> list[LiveRow]:
        live = self._requests.get(key)
        return [] if live is None else [r for r in live.rows if choice in (-1, r.row.choice)]

    def close_session(self, session_id: str) -> None:
        """Its rows won't keep what the session holds."""
        for row in self._by_row.values():
            row.keeps_session = row.keeps_session and row.output.request.cache.session_id != session_id

    def overdue(self, now_s: float) -> list[LiveRow]:
        """Rows of requests whose deadline has passed."""
        late = [r for r in self._requests.values() if r.deadline_s is not None and r.deadline_s <= now_s]
        return [row for request in late for row in request.rows]

    def keys_of(self, rows: Sequence[Row]) -> list[int]:
        return list(dict.fromkeys(row.key for row in rows if row in self._by_row))

    def remove(self, row: LiveRow) -> None:
        """The choice is over; the request goes with its last choice."""
        self._by_row.pop(row.row, None)
        live = self._requests.get(row.row.key)
        if live is not None:
            live.rows.remove(row)
            if not live.rows:
                del self._requests[row.row.key]
