"""What a server of several models needs of the models on disk. Whoever starts the server brings it along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from imp_server.api.model_host import ModelHost
from imp_server.api.router.residency import Room


class Catalogue(Protocol):
    """Methods block, and run in the pool."""

    @property
    def room(self) -> Room:
        """What the models may take together."""
        ...

    def hosts(self) -> list[ModelHost]:
        """Of all models there are now, unloaded. Never raises: what is wrong with a model is its host's `broken`."""
        ...

    def checked(self, name: str) -> str:
        """The name under which `name` is kept once it has been fetched. Raises InvalidRequest if it can't be."""
        ...

    def fetch_command(self, name: str) -> Sequence[str]:
        """Of a child process that fetches it, telling how far it is on stdout."""
        ...

    def remove(self, name: str) -> None:
        """Deletes what was fetched under this name."""
        ...
