"""Leases: what keeps a model in memory while a request needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imp_server.api.model_host import ModelHost
    from imp_server.api.text_side import TextSide


class Leases:
    """Owner of the leases of one request. They end together, with the request or what goes on behind it."""

    def __init__(self) -> None:
        self._hosts: list[ModelHost] = []
        self._readings: dict[TextSide, Callable[[], None]] = {}

    def take(self, host: ModelHost) -> None:
        """Once for each model, however often it is asked for."""
        if host not in self._hosts:
            self._hosts.append(host)
            host.n_leases += 1

    def read(self, host: ModelHost) -> None:
        """The text side that the model has now stays open, though the model may leave memory."""
        if host.text is not None and host.text not in self._readings:
            self._readings[host.text] = host.reading()

    def close(self) -> None:
        """Idempotent."""
        readings, self._readings = self._readings, {}
        for end in readings.values():
            end()
        hosts, self._hosts = self._hosts, []
        for host in hosts:
            host.n_leases -= 1
            host.was_used()


_current: ContextVar[Leases | None] = ContextVar("leases", default=None)


def current_leases() -> Leases | None:
    """Of the request that is being answered; None outside of one."""
    return _current.get()


@contextmanager
def leasing(leases: Leases) -> Iterator[None]:
    """Models that are asked for within it are leased by `leases`."""
    token = _current.set(leases)
    try:
        yield
    finally:
        _current.reset(token)
