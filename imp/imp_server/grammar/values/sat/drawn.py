"""Names drawn one after another from a machine, as many as are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from imp_server.core.turns import charge

N_BYTES = 300
"""Memory of one text."""


class Drawn:
    """Texts drawn from a source as far as anybody has looked, for many to look at."""

    def __init__(self, source: Callable[[], Iterator[str]]) -> None:
        self._make = source
        self._source: Iterator[str] | None = None
        self._texts: list[str] = []

    def _next(self) -> str | None:
        if self._source is None:
            self._source = islice(self._make(), len(self._texts), None)
        try:
            return next(self._source, None)
        except BaseException:
            # an iterator that raised is over: the next turn begins a new one
            self._source = None
            raise

    def __iter__(self) -> Iterator[str]:
        at = 0
        while True:
            if at == len(self._texts):
                text = self._next()
                if text is None:
                    return
                charge(N_BYTES)
                self._texts.append(text)
            yield self._texts[at]
            at += 1
