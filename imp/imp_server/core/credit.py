"""Credit for quick work: seconds of it that somebody may have at once, which come back slowly."""

from __future__ import annotations

from collections import OrderedDict


class Credit:
    """Owner of one account. It may be overdrawn by the last thing that was paid from it."""

    __slots__ = ("_at_s", "_left_s", "_most_s", "_rate")

    def __init__(self, rate: float, most_s: float) -> None:
        """`rate`: seconds that come back per second, up to `most_s`."""
        self._rate, self._most_s = rate, most_s
        self._left_s, self._at_s = most_s, 0.0

    def left_s(self, now_s: float) -> float:
        """Negative: overdrawn."""
        self._left_s = min(self._most_s, self._left_s + max(0.0, now_s - self._at_s) * self._rate)
        self._at_s = now_s
        return self._left_s

    def pay(self, seconds: float, now_s: float) -> None:
        """Negative: it wasn't used."""
        self._left_s = min(self._most_s, self.left_s(now_s) - seconds)


class Credits:
    """Owner of each client's account, and of one for all: a client that is new each time has no more than that.

    The last half of what all share is for those who have more than half of their own.
    """

    def __init__(self, own: tuple[float, float], shared: tuple[float, float], most_clients: int = 4096) -> None:
        """Rate and most of each. Of clients beyond `most_clients` the one that paid longest ago is forgotten."""
        self._own, self._most_clients = own, most_clients
        self._reserve_s = shared[1] / 2
        self._shared = Credit(*shared)
        self._of: OrderedDict[str, Credit] = OrderedDict()

    def left_s(self, client: str, now_s: float) -> float:
        """What the client may have now."""
        own_s = self.own_s(client, now_s)
        reserved_s = 0.0 if 2 * own_s > self._own[1] else self._reserve_s
        return min(self._shared.left_s(now_s) - reserved_s, own_s)

    def own_s(self, client: str, now_s: float) -> float:
        """What is left of its own share."""
        own = self._of.get(client)
        return self._own[1] if own is None else own.left_s(now_s)

    def grant(self, client: str, least_s: float, most_s: float, now_s: float) -> float:
        """Seconds that it pays at once: 0.0 if less than `least_s` is left, and of what all share a quarter at most."""
        shared_s, own_s = self._shared.left_s(now_s), self.left_s(client, now_s)
        if own_s < least_s:
            return 0.0
        granted_s = min(most_s, own_s, max(least_s, shared_s / 4))
        self.pay(client, granted_s, now_s)
        return granted_s

    def pay(self, client: str, seconds: float, now_s: float) -> None:
        """Negative: what was granted and not used."""
        self._shared.pay(seconds, now_s)
        own = self._of.get(client)
        if own is None:
            own = self._of[client] = Credit(*self._own)
        own.pay(seconds, now_s)
        self._of.move_to_end(client)
        if len(self._of) > self._most_clients:
            self._of.popitem(last=False)

    def earn(self, client: str, seconds: float, now_s: float) -> None:
        """It did something else that lets it have more."""
        own = self._of.get(client)
        if own is not None:  # else it has all that it may have
            own.pay(-seconds, now_s)
        self._shared.pay(-seconds, now_s)
