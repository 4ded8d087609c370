"""Places for requests in flight: one gate for every dialect."""

from __future__ import annotations

from imp_server.core import Overloaded


class GatePlace:
    """A request's place, taken until `leave`, which may be called more than once."""

    def __init__(self, gate: Gate) -> None:
        self._gate: Gate | None = gate

    def leave(self) -> None:
        if self._gate is not None:
            self._gate.n_taken -= 1
            self._gate = None


class Gate:
    """Owner of the number of requests in flight."""

    def __init__(self, n_places: int) -> None:
        """0 = any number."""
        self._n_places = n_places
        self.n_taken = 0

    def check(self) -> None:
        """Raises Overloaded while every place is taken."""
        if self._n_places and self.n_taken >= self._n_places:
            raise Overloaded(
                f"Server overloaded: {self._n_places} requests are in flight, as many as it takes at once",
                retry_after_s=1.0,
            )

    def take(self) -> GatePlace:
        """Raises Overloaded while every place is taken."""
        self.check()
        self.n_taken += 1
        return GatePlace(self)
