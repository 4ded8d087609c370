"""The adapters that an engine has loaded, and which rows may share prefixes: by contents, so also after a restart."""

from __future__ import annotations

import hashlib
import os
from itertools import count
from pathlib import Path
from typing import NamedTuple

from imp_server.backends.base import Backend
from imp_server.schedule.tiers.record import DIGEST_BYTES, reuse_group_of

_PIECE = 1 << 20


class Adapter(NamedTuple):
    """`slot`: the backend's. `reuse_group`: of its rows (Row.reuse_group)."""

    slot: int
    reuse_group: int


NO_ADAPTER = Adapter(0, 0)


class Adapters:
    """Owner of the adapters by their names."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._loaded: dict[str, Adapter] = {}
        self._strangers = count(1)

    def __contains__(self, name: object) -> bool:
        return name in self._loaded

    def get(self, name: str) -> Adapter:
        """NO_ADAPTER for a name that isn't loaded."""
        return self._loaded.get(name, NO_ADAPTER)

    def load(self, name: str, path: str) -> None:
        """Does nothing for a name that is loaded. Raises what the backend does.

        Slots are used again, and a path may hold other weights tomorrow: the slot and the name say nothing of what
        rows compute. An adapter whose files can't be read here, or that changed while it was loaded, has a group that
        is never found again.
        """
        if name in self._loaded:
            return
        before = _content_digest(Path(path))
        slot = self._backend.load_adapter(path)
        is_known = before is not None and before == _content_digest(Path(path))
        self._loaded[name] = Adapter(slot, reuse_group_of(before) if before and is_known else next(self._strangers))

    def unload(self, name: str) -> None:
        """Idempotent."""
        if name in self._loaded:
            self._backend.unload_adapter(self._loaded.pop(name).slot)


def _content_digest(path: Path) -> bytes | None:
    """Of the names and contents of its files; None if they can't be read."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES - 1, person=b"imp adapter")
    try:
        files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
        for each in files:
            name = b"" if each == path else os.fsencode(each.relative_to(path))
            digest.update(len(name).to_bytes(8, "little") + name + each.stat().st_size.to_bytes(8, "little"))
            with each.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
    except OSError:
        return None
    return digest.digest() if files else None
