"""What the schemas of one request are bound to: closed where that is served, and by their letter where it isn't.

A closed schema takes more work than its letter. Closing refuses nothing that the letter serves, so what is refused
closed is asked about as it stands, and whoever sent it is told that extra properties are allowed there.
"""

from __future__ import annotations

from typing import Any

from imp_server.core import GrammarBrokenOff, GrammarRefused, GrammarUnsatisfiable
from imp_server.grammar.check import DEFAULT, Rules, schema_plan
from imp_server.grammar.proving import PROVES_HERE, Prover
from imp_server.grammar.values.schema.plain_closing import plainly_closed


def _is_closed(schema: Any) -> bool:
    """Whether closing adds nothing to it."""
    return isinstance(schema, bool) or bool(plainly_closed(schema) == schema)


class Binder:
    """Owner of what is found out about the schemas of one try at a request."""

    def __init__(self, rules: Rules = DEFAULT, prover: Prover = PROVES_HERE) -> None:
        self.rules, self.prover = rules, prover
        self._opened: dict[str, None] = {}
        self._n_closed = 0
        self._keeps_letter = False

    @property
    def opened(self) -> tuple[str, ...]:
        """Fields of the request whose schemas are bound by their letter although they should be closed."""
        return tuple(self._opened)

    def answer(self, schema: Any, param: str | None) -> Any:
        """The schema as answers under it are bound. Raises GrammarRefused, GrammarUnsatisfiable."""
        return self._bound(schema, self.rules.of_answer(schema), param)

    def call(self, schema: dict[str, Any], param: str) -> dict[str, Any]:
        """The schema as arguments under it are bound. Raises as `answer`."""
        bound: dict[str, Any] = self._bound(schema, self.rules.of_call(schema), param)
        return bound

    def loosen(self) -> bool:
        """From now on all are bound by their letter. False: none of them was closed."""
        any_closed, self._n_closed, self._keeps_letter = self._n_closed > 0, 0, True
        return any_closed

    def _bound(self, letter: Any, closed: Any, param: str | None) -> Any:
        if closed is not letter and not self._keeps_letter:
            try:
                self._prove(closed)
                self._n_closed += 1
                return closed
            except (GrammarUnsatisfiable, GrammarBrokenOff):
                raise  # it is so by the letter, too; it is not known why, and may be as dear again
            except GrammarRefused:
                pass
        self._prove(letter)
        if closed is not letter and not _is_closed(letter):
            self._opened[param or "schema"] = None
        return letter

    def _prove(self, schema: Any) -> None:
        self.prover.prove(schema_plan(schema, key_order=self.rules.key_order))
