"""Requests that wait for memory and a row: higher priority first, then age."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

from imp_server.schedule.rows import Row


@dataclass(slots=True, eq=False)
class Ticket:
    """Rows that are admitted together: the choices of a request, or one row that lost its memory."""

    rows: list[Row]

    @property
    def rank(self) -> tuple[int, int]:
        return self.rows[0].rank


class RequestQueue:
    """Owner of the waiting tickets. A row that was preempted comes back with its old age, so before newer ones."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def push(self, ticket: Ticket) -> None:
        insort(self._tickets, ticket, key=lambda t: t.rank)

    def take(self, ticket: Ticket) -> None:
        self._tickets.remove(ticket)

    def remove(self, row: Row) -> bool:
        """True if the row was waiting here."""
        for ticket in self._tickets:
            if row in ticket.rows:
                ticket.rows.remove(row)
                if not ticket.rows:
                    self._tickets.remove(ticket)
                return True
        return False
