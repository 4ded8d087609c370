"""Loads an adapter and says by what its rows may share prefixes: by its contents, so also after a restart."""

from __future__ import annotations

import hashlib
from itertools import count
from pathlib import Path

from imp_server.backends.base import Backend
from imp_server.schedule.tiers.record import DIGEST_BYTES, reuse_group_of

_strangers = count(1)
_PIECE = 1 << 20


def load_adapter(backend: Backend, path: str) -> tuple[int, int]:
    """The backend's slot of it and the reuse group of its rows. Raises what the backend does.

    Slots are used again, and a path may hold other weights tomorrow: the slot and the name say nothing. An adapter
    whose files can't be read here, or that changed while it was loaded, has a group that is never found again.
    """
    before = _content_digest(Path(path))
    slot = backend.load_adapter(path)
    if before is None or before != _content_digest(Path(path)):
        return slot, next(_strangers)
    return slot, reuse_group_of(before)


def _content_digest(path: Path) -> bytes | None:
    """Of the names and contents of its files; None if they can't be read."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES - 1, person=b"imp adapter")
    try:
        files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
        for each in files:
            name = b"" if each == path else str(each.relative_to(path)).encode()
            digest.update(len(name).to_bytes(8, "little") + name + each.stat().st_size.to_bytes(8, "little"))
            with each.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
    except OSError:
        return None
    return digest.digest() if files else None
