"""The files that keep packed weights: their names, what stands at their end, and whether a model still uses them.

A file is each matrix at a multiple of 64 bytes, a digest of each 16 MiB of that (packing.h), the table (JSON), and the
end: magic, length and CRC-32 of the table, CRC-32 of these. A file of zeros, which a power cut can leave, has no magic.
The name begins with a digest of the model's path, so that all files of a model are found by it.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import msgspec

from imp_server.config.environment import imp_home
from imp_server.core import readable

FORMAT = 3
"""Of the file's end."""
SUFFIX = ".pack"
PARTIAL = ".partial"
_MAGIC = b"imp pack"
_END = struct.Struct("<8sII")
_SUM = struct.Struct("<I")
END_BYTES = _END.size + _SUM.size


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One matrix."""

    name: str
    type: str
    n_out: int
    n_in: int
    offset: int


class Table(msgspec.Struct, frozen=True):
    """`model`: the file or folder that was packed, and its size and time of change at that moment."""

    model: bytes
    n_bytes: int
    mtime_ns: int
    entries: list[Entry]


class ModelState(NamedTuple):
    """What a pack depends on besides options: it is never read once one of these differs."""

    path: Path
    n_bytes: int
    mtime_ns: int


def pack_folder(path: str) -> Path:
    """Where packs lie. `path`: the knob cpu.pack_cache_path."""
    return Path(path or imp_home() / "packed").expanduser()


def model_digest(path: Path) -> str:
    """What the names of a model's packs begin with."""
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]


def end_of(table: Table) -> bytes:
    """The table and all that follows it."""
    data = msgspec.json.encode(table)
    end = _END.pack(_MAGIC, len(data), zlib.crc32(data))
    return data + end + _SUM.pack(zlib.crc32(end))


def n_table(tail: bytes) -> int | None:
    """Bytes of the table, from a file's last END_BYTES; None if they aren't those of a pack."""
    if len(tail) < END_BYTES or _SUM.pack(zlib.crc32(tail[: _END.size])) != tail[_END.size :]:
        return None
    magic, size, _ = _END.unpack_from(tail)
    return size if magic == _MAGIC else None


def read_table(data: bytes) -> Table | None:
    """The table that `data`, the end of a file from the table on, begins with; None if it is damaged."""
    size = n_table(data[-END_BYTES:])
    if size is None or size + END_BYTES != len(data):
        return None
    (table_sum,) = _SUM.unpack_from(data, len(data) - END_BYTES + _END.size - _SUM.size)
    if zlib.crc32(data[:size]) != table_sum:
        return None
    try:
        table = msgspec.json.decode(data[:size], type=Table)
    except msgspec.MsgspecError:
        return None
    return table if table.entries else None


def table_of(path: Path) -> Table | None:
    """The table of a file on disk; None if it is damaged or can't be read."""
    try:
        with path.open("rb") as file:
            n_file = path.stat().st_size
            file.seek(max(0, n_file - END_BYTES))
            size = n_table(file.read())
            if size is None or size + END_BYTES > n_file:
                return None
            file.seek(n_file - END_BYTES - size)
            return read_table(file.read())
    except OSError:
        return None


def packs_of(folder: Path, model: Path) -> list[Path]:
    """All packs of the model at this path, whatever their options."""
    return sorted(folder.glob(f"{model_digest(model)}-*{SUFFIX}"))


def why_unused(pack: Path) -> str:
    """Why no start will read the pack; "" if one may."""
    table = table_of(pack)
    if table is None:
        return "damaged"
    try:
        state = os.stat(table.model)
    except OSError:
        return f"its model {readable(os.fsdecode(table.model))} is gone"
    if state.st_mtime_ns != table.mtime_ns:
        return f"its model {readable(os.fsdecode(table.model))} has changed"
    return ""
