"""Reads safetensors files: memory-mapped, lazy, the header held against the file's size before use.

Layout: u64 length of the header, the header as JSON {name: {dtype, shape, data_offsets}}, the data.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from imp_server.core import InvalidModel, ModelFileMissing, UnsupportedModel

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
_MAX_HEADER_BYTES = 100_000_000
_MAX_DIMENSIONS = 8


class StoredTensor(NamedTuple):
    """`offset` in bytes from the start of its file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafetensorsFile:
    """One mapped file; owner of the map. Raises ModelFileMissing, InvalidModel, UnsupportedModel."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._buffer, self.nbytes = _map(self.path)
        header, self._base = self._header()
        raw_metadata = header.pop("__metadata__", {})
        self.metadata: Mapping[str, Any] = raw_metadata if isinstance(raw_metadata, dict) else {}
        self.tensors: dict[str, StoredTensor] = {name: self._tensor(name, entry) for name, entry in header.items()}

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, [nbytes], a read-only view of the map."""
        stored = self.tensors.get(name)
        if stored is None:
            raise InvalidModel(f"{self.path.name}: there is no tensor '{name}'")
        return np.frombuffer(self._buffer, np.uint8, stored.nbytes, stored.offset)

    def _header(self) -> tuple[dict[str, Any], int]:
        size = int.from_bytes(self._buffer[:8], "little")
        if size > min(self.nbytes - 8, _MAX_HEADER_BYTES):
            raise self._corrupt(f"the header is said to be {size} bytes long, the file has {self.nbytes} (truncated?)")
        try:
            header = json.loads(self._buffer[8 : 8 + size].decode("utf-8"))
        except (ValueError, RecursionError):
            raise self._corrupt("the header isn't JSON; this is no safetensors file") from None
        if not isinstance(header, dict):
            raise self._corrupt("the header isn't an object")
        return header, 8 + size

    def _tensor(self, name: str, entry: Any) -> StoredTensor:
        if not isinstance(entry, dict):
            raise self._corrupt(f"the entry of tensor '{name}' isn't an object")
        dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
            raise UnsupportedModel(f"{self.path.name}: tensor '{name}' has the unknown type {dtype!r}")
        if not _is_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
            raise self._corrupt(f"tensor '{name}' has the shape {shape!r}")
        if not _is_sizes(offsets) or len(offsets) != 2:
            raise self._corrupt(f"tensor '{name}' has the offsets {offsets!r}")
        start, stop = offsets
        nbytes = ITEM_BYTES[dtype]
        for size in shape:
            nbytes *= size
        if stop - start != nbytes:
            raise self._corrupt(f"tensor '{name}' needs {nbytes} bytes, its offsets span {stop - start}")
        if self._base + stop > self.nbytes:
            raise self._corrupt(
                f"tensor '{name}' ends at byte {self._base + stop}, the file at {self.nbytes} (truncated?)"
            )
        return StoredTensor(name, dtype, tuple(shape), self._base + start, nbytes)

    def _corrupt(self, detail: str) -> InvalidModel:
        return InvalidModel(f"{self.path.name}: {detail}")


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in value)


def _map(path: Path) -> tuple[mmap.mmap, int]:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 8:
                raise InvalidModel(
                    f"{path.name}: {size} bytes are too few for a safetensors file; fetch the model again"
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), size
    except FileNotFoundError:
        raise ModelFileMissing(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise ModelFileMissing(f"can't read {path}: {error}") from None
