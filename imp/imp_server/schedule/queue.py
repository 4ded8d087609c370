"""Requests that wait for memory and a row: fair among clients, the shortest of a client first, with ageing."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from imp_server.schedule.rows import Row
from imp_server.schedule.shares import Shares

_OUTPUT_TOKENS = 32
"""What a choice is taken to write before it is known."""


@dataclass(slots=True, eq=False)
class Ticket:
    """Rows that are admitted together: the choices of a request, or one row that lost its memory or its place.

    Where there is no place for all of them, the first ones are, and the rest is a ticket of its own.
    """

    rows: list[Row]
    n_tokens: int = 0
    """What it is taken to cost."""

    @property
    def client(self) -> str:
        return self.rows[0].client

    @property
    def rank(self) -> tuple[int, float, int]:
        """Among tickets of its client: higher priority first, then when it is due."""
        first = self.rows[0]
        return (-first.priority, first.due, first.number)


class RequestQueue:
    """Owner of the waiting tickets, and of what clients have had.

    A ticket is due when the clock of work has gone on by its length: shorter ones overtake it until then, so that none
    waits for ever. A row that was preempted comes back with its old time, so before newer ones.
    """

    def __init__(self) -> None:
        self.shares = Shares()
        self._tickets: dict[str, list[Ticket]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._tickets.values()))

    def __iter__(self) -> Iterator[Ticket]:
        for tickets in self._tickets.values():
            yield from tickets

    def submit(self, rows: list[Row], n_prompt: int) -> None:
        """The choices of a new request. `n_prompt`: tokens of its prompt that have to be computed."""
        n_tokens = n_prompt + _OUTPUT_TOKENS * len(rows)
        for row in rows:
            row.due = self.shares.clock + n_tokens
        self.shares.join(rows[0].client, len(rows))
        self.push(Ticket(rows, n_tokens))

    def push(self, ticket: Ticket) -> None:
        insort(self._tickets.setdefault(ticket.client, []), ticket, key=lambda t: t.rank)

    def first(self, passed: Collection[Ticket] = (), but: Collection[str] = ()) -> Ticket | None:
        """Whose turn it is: the more urgent one's, then the client's that would then have had least.

        `passed`: not these tickets; `but`: nobody's of these clients.
        """
        lines = (tickets for client, tickets in self._tickets.items() if client not in but)
        heads = (next((t for t in tickets if t not in passed), None) for tickets in lines)
        return min((t for t in heads if t is not None), key=self._order, default=None)

    def _order(self, ticket: Ticket) -> tuple[int, float, int]:
        first = ticket.rows[0]
        return (-first.urgency, self.shares.had(ticket.client) + ticket.n_tokens, first.number)

    def take(self, ticket: Ticket, n_rows: int) -> list[Row]:
        """Its first rows, which its client pays for; the rest waits on, behind a leader of its own."""
        taken, rest = ticket.rows[:n_rows], ticket.rows[n_rows:]
        each = ticket.n_tokens / len(ticket.rows)
        for row in taken:
            row.n_paid += each
            self.shares.charge(row.client, each)
        self._drop(ticket)
        if rest:
            for row in rest:
                row.leader = rest[0] if row is not rest[0] else None
            self.push(Ticket(rest, _OUTPUT_TOKENS * len(rest)))
        return taken

    def remove(self, row: Row) -> bool:
        """True if the row was waiting here."""
        for ticket in self._tickets.get(row.client, ()):
            if row in ticket.rows:
                if len(ticket.rows) == 1:
                    self._drop(ticket)
                else:
                    ticket.rows.remove(row)
                return True
        return False

    def _drop(self, ticket: Ticket) -> None:
        tickets = self._tickets[ticket.client]
        tickets.remove(ticket)
        if not tickets:
            del self._tickets[ticket.client]


def in_order(rows: Collection[Row]) -> list[Row]:
    """Shortest first with ageing, the urgent before all; where it is a client's turn, the one with its own highest
    priority has it."""
    turns = sorted(rows, key=lambda row: (-row.urgency, row.due, row.number))
    own: dict[str, deque[Row]] = {}
    for row in sorted(turns, key=lambda row: -row.priority):
        own.setdefault(row.client, deque()).append(row)
    return [own[row.client].popleft() for row in turns]
