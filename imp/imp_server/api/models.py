"""The models this server hosts. Names are strict: a model answers to its own id only, and no name is a path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imp_server.api.generations import Generations
from imp_server.api.model_host import ModelHost
from imp_server.core import ModelNotFound, NoModel
from imp_server.core.owner import Owner


class Models:
    """Owner of the set of hosts, by id."""

    def __init__(self, hosts: Sequence[ModelHost] = (), *, any_name: bool = False) -> None:
        """`any_name`: a name that no model has means the first one."""
        self._hosts = {host.id: host for host in hosts}
        self._any_name = any_name

    def __iter__(self) -> Iterator[ModelHost]:
        return iter(list(self._hosts.values()))

    def reply(self, name: str, owner: Owner) -> tuple[ModelHost, Generations] | None:
        """The owner's reply being made that a client calls `name`: its own id or the client's; the newest of them."""
        own = [(host, reply) for host in self for reply in host.replies if reply.owner == owner]
        named = [(host, reply) for host, reply in own if name in reply.names and reply.n_choices]
        return max(named, key=lambda found: found[1].born_s, default=None)

    def find(self, name: str) -> ModelHost:
        """The model with this id; "" is the only one. Raises NoModel when none is hosted, else ModelNotFound."""
        if not self._hosts:
            raise NoModel("no model is loaded; start the server with a model")
        if not name or (self._any_name and name not in self._hosts):
            return next(iter(self._hosts.values()))
        found = self._hosts.get(name)
        if found is None:
            known = ", ".join(repr(i) for i in self._hosts)
            raise ModelNotFound(f"model {name[:200]!r} not found; this server has {known}", param="model")
        return found
