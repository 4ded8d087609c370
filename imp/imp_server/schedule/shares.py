"""What each client has had of the engine, for a fair order among those that wait: weighted fair queueing, all alike.

A *client* is whose work a row is: the key it came with, without keys the connection (`GenerateRequest.owner`). Work is
counted in tokens computed. A clock of work says what a client that always wanted something would have had by now: it
goes by the tokens computed, divided by the clients that want something. Who begins to want something starts at that
time, so nobody saves up, and nobody pays for what he had while no other wanted it.
"""

from __future__ import annotations

from collections import Counter


class Shares:
    """Owner of the clock of work, and of each client's account on it."""

    def __init__(self) -> None:
        self.clock = 0.0
        """Tokens that each client would have had."""
        self._had: dict[str, float] = {}
        """By client: of those that want something, and of those that had more than their share lately."""
        self._n_rows: Counter[str] = Counter()
        """Rows that run or wait, by client."""

    def join(self, client: str, n_rows: int) -> None:
        """The client has more rows than before."""
        if not self._n_rows[client]:
            self._had[client] = max(self.clock, self._had.get(client, 0.0))
        self._n_rows[client] += n_rows

    def leave(self, client: str) -> None:
        """One of its rows is gone."""
        self._n_rows[client] -= 1
        if self._n_rows[client]:
            return
        del self._n_rows[client]
        if self._had[client] <= self.clock:
            del self._had[client]
        if not self._n_rows:
            self._had.clear()

    def had(self, client: str) -> float:
        """As the clock counts: who has less comes first."""
        return self._had.get(client, self.clock)

    def charge(self, client: str, n_tokens: float) -> None:
        """Of a client that has rows. Negative: what was charged before and not used."""
        self._had[client] += n_tokens

    def note_work(self, n_tokens: int) -> None:
        """So much was computed, for all together."""
        self.clock += n_tokens / max(1, len(self._n_rows))
