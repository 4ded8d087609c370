"""The models this server hosts. Names are strict: a model answers to its own names only, and no name is a path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imp_server.api.generations import Generations
from imp_server.api.model_host import ModelHost
from imp_server.api.router.names import best_match
from imp_server.core import MissingParameter, ModelNotFound, NoModel
from imp_server.core.owner import Owner

_MOST_TOLD = 20


class Models:
    """Owner of the set of hosts, by id."""

    def __init__(self, hosts: Sequence[ModelHost] = (), *, any_name: bool = False, are_several: bool = False) -> None:
        """`any_name`: a name that no model has means the first one. `are_several`: no model is meant by no name."""
        self._hosts = {host.id: host for host in hosts}
        self._any_name, self.are_several = any_name, are_several

    def __iter__(self) -> Iterator[ModelHost]:
        return iter(list(self._hosts.values()))

    def add(self, host: ModelHost) -> None:
        self._hosts[host.id] = host

    def remove(self, host: ModelHost) -> None:
        if self._hosts.get(host.id) is host:
            del self._hosts[host.id]

    def reply(self, name: str, owner: Owner) -> tuple[ModelHost, Generations] | None:
        """The owner's reply being made that a client calls `name`: its own id or the client's; the newest of them."""
        own = [(host, reply) for host in self for reply in host.replies if reply.owner == owner]
        named = [(host, reply) for host, reply in own if name in reply.terms.names and reply.n_choices]
        return max(named, key=lambda found: found[1].born_s, default=None)

    def find(self, name: str) -> ModelHost:
        """The model with this name; "" is the only one.

        Raises NoModel when none is hosted, MissingParameter for no name where there are several, else ModelNotFound.
        """
        if not self._hosts:
            raise NoModel("no model is loaded; start the server with a model")
        if not name and self.are_several:
            raise MissingParameter(f'"model" is missing: name one of {self._known()}', param="model")
        if not name:
            return next(iter(self._hosts.values()))
        found = self._hosts.get(name) or self._by_alias(name)
        if found is None and self._any_name:
            return next(iter(self._hosts.values()))
        if found is None:
            raise ModelNotFound(f"model {name[:200]!r} not found; this server has {self._known()}", param="model")
        return found

    def _by_alias(self, name: str) -> ModelHost | None:
        """The first model of those whose alias fits best."""
        whose = {alias: host for host in reversed(self._hosts.values()) for alias in host.aliases}
        best = best_match(name, whose)
        return None if best is None else whose[best]

    def _known(self) -> str:
        ids = list(self._hosts)
        more = f" and {len(ids) - _MOST_TOLD} more" if len(ids) > _MOST_TOLD else ""
        return ", ".join(repr(i) for i in ids[:_MOST_TOLD]) + more
