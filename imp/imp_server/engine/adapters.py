"""The adapters that an engine has loaded, and which rows may share prefixes: by contents, so also after a restart."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from imp_server.backends.base import AdapterShare, Backend
from imp_server.config import EngineConfig
from imp_server.config.adapters import lora_entries
from imp_server.core import AdapterUse, GenerateRequest, InvalidRequest
from imp_server.engine.messages import FromEngine, Loading
from imp_server.schedule.rows import Row
from imp_server.schedule.tiers.record import DIGEST_BYTES, reuse_group_of, scoped_group
from imp_server.weights.lora import lora_files

_PIECE = 1 << 20
_STRANGERS = 1
"""A group that doesn't last, of adapters whose contents aren't known."""


class LoadedAdapter(NamedTuple):
    """`slot`: the backend's. `content`: digest of its files, or a number drawn for it if they can't be known. `scale`:
    in requests that don't choose."""

    number: int
    slot: int
    content: bytes
    is_known: bool
    scale: float


class Chosen(NamedTuple):
    """What a row takes, and the group of its prefixes (Row.reuse_group)."""

    shares: tuple[AdapterShare, ...]
    reuse_group: int


NOTHING = Chosen((), 0)


class Adapters:
    """Owner of the adapters by their names; their numbers go up from 0 in the order in which they were loaded."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._loaded: dict[str, LoadedAdapter] = {}
        self._numbers = count()

    def __contains__(self, adapter: object) -> bool:
        """`adapter`: a name or a number."""
        return adapter in self._loaded or any(adapter == one.number for one in self._loaded.values())

    def chosen(self, uses: Sequence[AdapterUse] | None) -> Chosen:
        """What a request chooses, all of it loaded; None = it doesn't. Of one that is named twice the last counts.

        What is added is added in the order of numbers, so that nothing but the choice itself decides what rows compute.
        """
        if uses is None:
            scales = {one.number: one.scale for one in self._loaded.values()}
        else:
            numbers = {name: one.number for name, one in self._loaded.items()}
            scales = {numbers[use.adapter] if isinstance(use.adapter, str) else use.adapter: use.scale for use in uses}
        found = [one for one in self._loaded.values() if scales.get(one.number)]
        if not found:
            return NOTHING
        shares = tuple(AdapterShare(one.slot, scales[one.number]) for one in found)
        return Chosen(shares, _group([(one, scales[one.number]) for one in found]))

    def load(self, name: str, path: str, scale: float = 0.0) -> None:
        """Does nothing for a name that is loaded. Raises what the backend does.

        Slots are used again, and a path may hold other weights tomorrow: the slot and the name say nothing of what
        rows compute. An adapter whose files can't be read here, or that changed while it was loaded, has groups that
        are never found again.
        """
        if name in self._loaded:
            return
        before = _content_digest(Path(path))
        slot = self._backend.load_adapter(path)
        is_known = before is not None and before == _content_digest(Path(path))
        content = before if before and is_known else os.urandom(DIGEST_BYTES - 1)
        self._loaded[name] = LoadedAdapter(next(self._numbers), slot, content, is_known, scale)

    def unload(self, name: str, rows: Iterable[Row] = (), starting: Iterable[GenerateRequest] = ()) -> None:
        """Idempotent. `rows`: all that live. `starting`: requests that have yet to become rows, and were told that what
        they choose is loaded. Raises InvalidRequest while one of them has it.
        """
        one = self._loaded.get(name)
        if one is None:
            return
        is_held = any(share.slot == one.slot for row in rows for share in row.adapters)
        if is_held or any(_chooses(request, name, one) for request in starting):
            raise InvalidRequest(f"adapter {name!r} is in use", param="adapter")
        del self._loaded[name]
        self._backend.unload_adapter(one.slot)


def _chooses(request: GenerateRequest, name: str, one: LoadedAdapter) -> bool:
    """By any scale: that of 0 is looked up, too."""
    uses = request.options.adapters
    return bool(one.scale) if uses is None else any(use.adapter in (name, one.number) for use in uses)


def _group(scaled: Sequence[tuple[LoadedAdapter, float]]) -> int:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES - 1, person=b"imp adapters")
    for one, scale in scaled:
        digest.update(one.content + struct.pack("<d", scale))
    if all(one.is_known for one, _ in scaled):
        return reuse_group_of(digest.digest())
    return scoped_group(_STRANGERS, digest.hexdigest())


def load_adapters(config: EngineConfig, backend: Backend, emit: Callable[[FromEngine], None]) -> Adapters:
    """Those of the configuration. Raises ModelFileMissing, InvalidModel, UnsupportedModel, ConfigError."""
    adapters, entries = Adapters(backend), lora_entries(config.adapters)
    for done, entry in enumerate(entries):
        emit(Loading("adapters", done / len(entries)))
        adapters.load(entry.name, entry.path, entry.scale)
    return adapters


def _content_digest(path: Path) -> bytes | None:
    """Of the contents of its files; None if they can't be read."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES - 1, person=b"imp adapter")
    try:
        for each in lora_files(path):
            with each.open("rb") as file:
                digest.update(os.fstat(file.fileno()).st_size.to_bytes(8, "little"))
                while piece := file.read(_PIECE):
                    digest.update(piece)
    except OSError:
        return None
    return digest.digest()
