"""Packed weights: made in parallel, kept on disk, mapped at the next start.

Owner of the packed bytes: `PackedWeights`. The file (pack_files.py) has digests in its name, of the model's path and of
(size, mtime, header, layout version, options), so one that no longer fits is never read, and is removed when its
successor is written. Its sums are checked at each start: a damaged file would give wrong answers and no error. The
start's measurements read all weights anyway. The table is kept because only a look at all numbers of a checkpoint's
packed integers tells which layout holds them exactly.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from imp_server.backends.cpu import abi, pages
from imp_server.backends.cpu.layouts import LAYOUT_VERSION
from imp_server.backends.cpu.pack_files import (
    END_BYTES,
    FORMAT,
    PARTIAL,
    SUFFIX,
    Entry,
    ModelState,
    Table,
    end_of,
    model_digest,
    n_table,
    packs_of,
    read_table,
)
from imp_server.backends.cpu.packing import PackedShape, pack, packed_shape
from imp_server.backends.cpu.threads import affinity
from imp_server.models.source import ModelSource

Bytes = npt.NDArray[np.uint8]
log = logging.getLogger(__name__)

_ALIGN = 64
_TAIL = 4096
"""Readable bytes past the last matrix: kernels prefetch and load whole vectors."""

_SUMMED = 16 * 2**20
_SPARE_DISK = 1 << 30
"""That packs leave to others."""


class PackedWeights:
    """Matrices by canonical name. `from_cache`: mapped from disk, not packed in this start."""

    def __init__(self, buffer: Bytes, entries: list[Entry], *, from_cache: bool) -> None:
        self._buffer = buffer
        self.from_cache = from_cache
        self.shapes = {e.name: PackedShape(e.type, e.n_out, e.n_in) for e in entries}
        self._offsets = {e.name: e.offset for e in entries}

    def address(self, name: str) -> int:
        return int(self._buffer.ctypes.data) + self._offsets[name]

    @property
    def nbytes(self) -> int:
        return sum(shape.nbytes for shape in self.shapes.values())

    @property
    def buffer(self) -> Bytes:
        """All matrices, in the order of the forward."""
        return self._buffer


def load_packed(
    source: ModelSource,
    names: list[str],
    quantize: str,
    folder: Path | None,
    on_progress: Callable[[float], None] | None = None,
    *,
    in_huge_pages: bool = True,
    split: str = "",
) -> PackedWeights:
    """The packed matrices of `names`, from `folder` if they are there, else packed and, if possible, left there.

    `split`: the head, if it shall be searched by its upper bits; an 8-bit one can be.
    Raises UnsupportedModel for a tensor type without a layout.
    """
    state = _state(source) if folder else None
    path = folder / _file_name(source, state, names, quantize, split) if folder and state else None
    kept = _map(path, in_huge_pages) if path else None
    if kept is not None:
        return PackedWeights(pages.moved(kept[0]) if in_huge_pages else kept[0], kept[1], from_cache=True)
    shapes = {
        name: packed_shape(*_description(source, name), _how(name, quantize), is_split=name == split) for name in names
    }
    entries, total = _placed(shapes)
    buffer, partial = _room(total, path, in_huge_pages)
    _pack_all(source, shapes, entries, buffer, on_progress)
    if path is not None and partial is not None and state is not None:
        _publish(buffer, Table(os.fsencode(state.path), state.n_bytes, state.mtime_ns, entries), partial, path)
    return PackedWeights(pages.moved(buffer) if in_huge_pages else buffer, entries, from_cache=False)


def _how(name: str, quantize: str) -> str:
    """What chooses experts stays as it is: a small share of the bytes, and a wrong choice costs a whole expert."""
    return "none" if name.endswith("router") else quantize


def _description(source: ModelSource, name: str) -> tuple[str, tuple[int, ...]]:
    raw = source.raw(name)
    return raw.type.name, raw.shape


def _placed(shapes: Mapping[str, PackedShape]) -> tuple[list[Entry], int]:
    entries, at = [], 0
    for name, shape in shapes.items():
        entries.append(Entry(name, shape.type, shape.n_out, shape.n_in, at))
        at += _aligned(shape.nbytes)
    return entries, at + _TAIL


def _state(source: ModelSource) -> ModelState:
    path = source.header.path.resolve()
    return ModelState(path, source.header.file_bytes, path.stat().st_mtime_ns)


def _file_name(source: ModelSource, state: ModelState, names: list[str], quantize: str, split: str) -> str:
    facts = (
        FORMAT,
        LAYOUT_VERSION,
        state.n_bytes,
        state.mtime_ns,
        quantize,
        repr(source.architecture),
        names,
        split,
    )
    return f"{model_digest(state.path)}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}{SUFFIX}"


def _map(path: Path, in_huge_pages: bool) -> tuple[Bytes, list[Entry]] | None:
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return None
    except ValueError:  # an empty file
        mapped = None
    found = None
    if mapped is not None:
        if in_huge_pages:
            pages.ask_for(mapped)
        found = _whole(np.frombuffer(mapped, dtype=np.uint8))
    if found is None:
        log.warning("%s is damaged: the weights are packed again", path)
    return found


def _whole(file: Bytes) -> tuple[Bytes, list[Entry]] | None:
    """The matrices and their table, if every sum is right."""
    size = n_table(file[-END_BYTES:].tobytes())
    table = read_table(file[-END_BYTES - size :].tobytes()) if size is not None else None
    if size is None or table is None:
        return None
    total = _total(table.entries)
    if file[total : -END_BYTES - size].tobytes() != _sums(file[:total]):
        return None
    return file[:total], table.entries


def _total(entries: list[Entry]) -> int:
    last = entries[-1]
    return last.offset + _aligned(PackedShape(last.type, last.n_out, last.n_in).nbytes) + _TAIL


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


def _sums(buffer: Bytes) -> bytes:
    digest = abi.library().imp_cpu_digest

    def one(at: int) -> int:
        part = buffer[at : at + _SUMMED]
        return int(digest(part.ctypes.data, len(part) // 4))

    starts = range(0, len(buffer), _SUMMED)
    with ThreadPoolExecutor(len(affinity())) as pool:
        return np.fromiter(pool.map(one, starts), dtype="<u8", count=len(starts)).tobytes()


def _room(total: int, path: Path | None, in_huge_pages: bool) -> tuple[Bytes, Path | None]:
    """A buffer to pack into: a new file beside `path` if there is room for one, else memory."""
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _ask_for_disk(total, path.parent)
            handle, name = tempfile.mkstemp(prefix=path.stem[:16], suffix=PARTIAL, dir=path.parent)
            with os.fdopen(handle, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, total)
                mapped = mmap.mmap(file.fileno(), total)
                if in_huge_pages:
                    pages.ask_for(mapped)
                return np.frombuffer(mapped, dtype=np.uint8), Path(name)
        except OSError as error:
            log.warning("packed weights can't be kept in %s (%s): each start will pack them", path.parent, error)
    return pages.room(total) if in_huge_pages else np.zeros(total, np.uint8), None


def _ask_for_disk(n_bytes: int, folder: Path) -> None:
    """Says what the weights need. Raises OSError where the disk would be left with less than _SPARE_DISK."""
    free = shutil.disk_usage(folder).free
    if free < n_bytes + _SPARE_DISK:
        raise OSError(errno.ENOSPC, f"they need {n_bytes >> 20} MiB, and {free >> 20} MiB are free")
    log.info("packing the weights: %d MiB in %s, where %d MiB are free", n_bytes >> 20, folder, free >> 20)


def _pack_all(
    source: ModelSource,
    shapes: Mapping[str, PackedShape],
    entries: list[Entry],
    buffer: Bytes,
    on_progress: Callable[[float], None] | None,
) -> None:
    def one(entry: Entry) -> int:
        shape = shapes[entry.name]
        raw = source.raw(entry.name)
        pack(raw, shape, buffer[entry.offset : entry.offset + shape.nbytes])
        pages.let_go(raw.data)
        return shape.nbytes

    # Largest first, so that no thread is left with the embedding at the end.
    ordered = sorted(entries, key=lambda e: -shapes[e.name].nbytes)
    total, done = sum(shapes[e.name].nbytes for e in ordered), 0
    with ThreadPoolExecutor(len(affinity())) as pool:
        for nbytes in pool.map(one, ordered):
            done += nbytes
            if on_progress:
                on_progress(done / total)


def _publish(buffer: Bytes, table: Table, partial: Path, path: Path) -> None:
    """Rename the finished file; the mapping goes on serving."""
    try:
        with partial.open("ab") as file:
            file.write(_sums(buffer) + end_of(table))
        for stale in packs_of(path.parent, Path(os.fsdecode(table.model))):
            stale.unlink(missing_ok=True)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        log.warning("packed weights can't be kept in %s (%s)", path.parent, error)
