"""Reads GGUF files: memory-mapped, lazy, every count and offset checked before use.

`GgufFile` owns the maps. Nothing is copied but metadata scalars; tensors are views of the map, so opening
costs the header alone whatever the size of the file. Layout: little-endian `GGUF`, u32 version (2 or 3), u64
tensor count, u64 key count, keys, tensor infos, padding to `general.alignment`, data.
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from imp_server.core import InvalidModel, ModelFileMissing, UnsupportedModel
from imp_server.weights.ggml_types import BY_ID, GgmlType

_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_DTYPES = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_MIN_KEY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8
_MAX_NAME_BYTES = 65535
_MAX_DIMENSIONS = 4
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 20
_SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.(?i:gguf))$")


def is_gguf(path: Path) -> bool:
    """By its name or, as for the blobs of other programs, by how it begins."""
    if path.suffix.lower() == ".gguf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


class StringArray(Sequence[str]):
    """A metadata array of strings, decoded one by one on access; `raw(i)` gives the bytes as they are."""

    def __init__(self, buffer: mmap.mmap, ends: array[int]) -> None:
        """String i lies in `buffer` from `ends[i] + 8` to `ends[i + 1]`."""
        self._buffer = buffer
        self._ends = ends

    def raw(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._buffer[self._ends[index] + 8 : self._ends[index + 1]]

    def raw_all(self) -> list[bytes]:
        buffer, ends = self._buffer, self._ends
        return [buffer[start + 8 : end] for start, end in itertools.pairwise(ends)]

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(index + len(self) if index < 0 else index).decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        for piece in self.raw_all():
            yield piece.decode("utf-8", "replace")


class TensorInfo(NamedTuple):
    """`shape` is [rows, columns] as in numpy (the reverse of the file's order); `offset` is absolute in its part."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    part: int = 0

    @property
    def n_elements(self) -> int:
        return int(np.prod(self.shape, dtype=object)) if self.shape else 1


class GgufFile:
    """One model in GGUF, in one file or in several parts; owner of the maps.

    Metadata arrays of numbers are numpy arrays, those of strings `StringArray`. Raises ModelFileMissing,
    InvalidModel (naming the field or tensor) and UnsupportedModel (a version or type imp doesn't know).
    """

    def __init__(self, path: str | os.PathLike[str], *, follow_parts: bool = True) -> None:
        """`follow_parts`: open the sibling files of a split model, too; `path` may be any of its parts."""
        self.path = Path(path)
        first = _FilePart(self.path)
        names = _part_paths(self.path, first.metadata) if follow_parts else [self.path]
        self._parts = [first if p == self.path else _FilePart(p) for p in names]
        self.metadata: Mapping[str, Any] = self._parts[0].metadata
        self.tensors: dict[str, TensorInfo] = {}
        for number, part in enumerate(self._parts):
            for info in part.tensors:
                if info.name in self.tensors:
                    raise InvalidModel(f"{part.path.name}: tensor '{info.name}' occurs twice; the file is corrupt")
                self.tensors[info.name] = info._replace(part=number)
        if follow_parts:
            self._check_split()

    @property
    def paths(self) -> list[Path]:
        return [part.path for part in self._parts]

    @property
    def nbytes(self) -> int:
        """Size of all parts in bytes."""
        return sum(part.size for part in self._parts)

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, shape [nbytes], a read-only view of the map. Raises InvalidModel for an unknown name."""
        info = self.tensors.get(name)
        if info is None:
            raise InvalidModel(f"{self.path.name}: there is no tensor '{name}'")
        buffer = self._parts[info.part].buffer
        return np.frombuffer(buffer, dtype=np.uint8, count=info.nbytes, offset=info.offset)

    def _check_split(self) -> None:
        expected = self.metadata.get("split.tensors.count")
        if isinstance(expected, int) and expected > 0 and expected != len(self.tensors):
            raise InvalidModel(
                f"{self.path.name}: split.tensors.count says {expected}, its parts hold {len(self.tensors)} tensors; "
                "fetch the model again"
            )


def _part_paths(path: Path, metadata: Mapping[str, Any]) -> list[Path]:
    count = metadata.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return [path]
    named = _SPLIT_NAME.match(path.name)
    if named is None or int(named["count"]) != count:
        raise InvalidModel(
            f"{path.name}: split.count says {count}, but the file isn't named NAME-00001-of-{count:05d}.gguf; "
            "keep the parts' own names"
        )
    paths = [path.with_name(f"{named['stem']}-{i + 1:05d}-of-{count:05d}{named['suffix']}") for i in range(count)]
    missing = [p.name for p in paths if not p.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelFileMissing(f"part {missing[0]}{more} of the split model is missing next to {path.name}")
    return paths


class _FilePart:
    """One mapped file with its own header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer, self.size = _map(path)
        reader = _Reader(self.buffer, self.size, path.name)
        n_tensors, n_keys = reader.preamble()
        self.metadata = reader.keys(n_keys)
        self.tensors = reader.tensor_infos(n_tensors, self.metadata.get("general.alignment", 32))


def _map(path: Path) -> tuple[mmap.mmap, int]:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 24:
                raise InvalidModel(f"{path.name}: {size} bytes are too few for a GGUF file; fetch the model again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), size
    except FileNotFoundError:
        raise ModelFileMissing(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise ModelFileMissing(f"can't read {path}: {error}") from None


class _Reader:
    """A cursor over one header. Every read is preceded by a check against the file's size."""

    def __init__(self, buffer: mmap.mmap, size: int, name: str) -> None:
        self._buffer, self._size, self._name = buffer, size, name
        self._at = 0

    def preamble(self) -> tuple[int, int]:
        magic = self._buffer[:4]
        if magic != b"GGUF":
            raise InvalidModel(f"{self._name}: not a GGUF file (it begins with {magic!r})")
        version = _U32.unpack_from(self._buffer, 4)[0]
        if version in (0x02000000, 0x03000000):
            raise UnsupportedModel(f"{self._name}: big-endian GGUF isn't supported; convert it to little-endian")
        if version not in (2, 3):
            raise UnsupportedModel(f"{self._name}: GGUF version {version} isn't supported (2 and 3 are)")
        n_tensors, n_keys = struct.unpack_from("<QQ", self._buffer, 8)
        self._at = 24
        self._check_count(n_keys, _MIN_KEY_BYTES, "the number of metadata keys", _MAX_KEYS)
        self._check_count(n_tensors, _MIN_TENSOR_BYTES, "the number of tensors", _MAX_TENSORS)
        return n_tensors, n_keys

    def keys(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for number in range(count):
            key = self._text(f"the name of metadata key {number}", _MAX_NAME_BYTES)
            if key in metadata:
                raise self._corrupt(f"metadata key '{key}' occurs twice")
            metadata[key] = self._value(self._u32(f"the type of '{key}'"), f"'{key}'")
        return metadata

    def tensor_infos(self, count: int, alignment: Any) -> list[TensorInfo]:
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
            raise self._corrupt(f"'general.alignment' is {alignment!r}, not a power of two up to 2^20")
        raw = [self._tensor_info(number) for number in range(count)]
        base = -(-self._at // alignment) * alignment
        infos = []
        for name, kind, shape, offset, nbytes in raw:
            if offset % alignment:
                raise self._corrupt(f"tensor '{name}' starts at {offset}, not a multiple of {alignment}")
            if base + offset + nbytes > self._size:
                raise self._corrupt(
                    f"tensor '{name}' ends at byte {base + offset + nbytes}, the file at {self._size} (truncated?)"
                )
            infos.append(TensorInfo(name, kind, shape, base + offset, nbytes))
        return infos

    def _tensor_info(self, number: int) -> tuple[str, GgmlType, tuple[int, ...], int, int]:
        name = self._text(f"the name of tensor {number}", _MAX_NAME_BYTES)
        n_dims = self._u32(f"the dimensions of tensor '{name}'")
        if n_dims > _MAX_DIMENSIONS:
            raise self._corrupt(f"tensor '{name}' has {n_dims} dimensions (at most {_MAX_DIMENSIONS})")
        dims = [self._u64(f"the shape of tensor '{name}'") for _ in range(n_dims)]
        type_id = self._u32(f"the type of tensor '{name}'")
        kind = BY_ID.get(type_id)
        if kind is None:
            raise UnsupportedModel(f"{self._name}: tensor '{name}' has the unknown type {type_id}")
        offset = self._u64(f"the offset of tensor '{name}'")
        n_elements = 1
        for dim in dims:
            n_elements *= dim
        if n_elements == 0:
            raise self._corrupt(f"tensor '{name}' has an empty dimension: {dims[::-1]}")
        columns = dims[0] if dims else 1
        if columns % kind.block:
            raise self._corrupt(
                f"the rows of tensor '{name}' ({columns}) are no multiple of {kind.name}'s {kind.block}"
            )
        return name, kind, tuple(dims[::-1]), offset, n_elements // kind.block * kind.block_bytes

    def _value(self, kind: int, what: str) -> Any:
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            self._need(scalar.size, what)
            value = scalar.unpack_from(self._buffer, self._at)[0]
            self._at += scalar.size
            return value
        if kind == _STRING:
            return self._text(what)
        if kind == _ARRAY:
            return self._array(what)
        raise self._corrupt(f"metadata key {what} has the unknown type {kind}")

    def _array(self, what: str) -> Any:
        kind = self._u32(f"the element type of {what}")
        count = self._u64(f"the length of {what}")
        if kind == _STRING:
            self._check_count(count, 8, f"the length of {what}")
            return self._strings(count, what)
        dtype = _DTYPES.get(kind)
        if dtype is None:
            # Arrays of arrays are legal but no model has them; refusing them bounds the recursion.
            raise self._corrupt(f"metadata key {what} is an array of the unsupported type {kind}")
        itemsize = np.dtype(dtype).itemsize
        self._check_count(count, itemsize, f"the length of {what}")
        # Copied, so that a bool array's bytes become real booleans and no small array pins the map.
        raw = np.frombuffer(self._buffer, "u1" if kind == _BOOL else dtype, count, self._at)
        self._at += count * itemsize
        return raw != 0 if kind == _BOOL else raw.copy()

    def _strings(self, count: int, what: str) -> StringArray:
        at, size, buffer = self._at, self._size, self._buffer
        unpack: Callable[[mmap.mmap, int], tuple[int]] = _U64.unpack_from
        # 8 bytes per string, as its length field in the file has: memory stays within the file's size.
        ends = array("Q", [at])
        append = ends.append
        for _ in range(count):
            if at + 8 > size:
                raise self._corrupt(f"the file ends inside metadata key {what} (truncated?)")
            at += 8 + unpack(buffer, at)[0]
            if at > size:
                break
            append(at)
        if at > size:
            raise self._corrupt(f"metadata key {what} has a string that reaches past the end of the file")
        self._at = at
        return StringArray(buffer, ends)

    def _text(self, what: str, limit: int | None = None) -> str:
        length = self._u64(what)
        if limit is not None and length > limit:
            raise self._corrupt(f"{what} is {length} bytes long")
        self._need(length, what)
        raw = self._buffer[self._at : self._at + length]
        self._at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._corrupt(f"{what} isn't UTF-8") from None

    def _u32(self, what: str) -> int:
        self._need(4, what)
        self._at += 4
        return int(_U32.unpack_from(self._buffer, self._at - 4)[0])

    def _u64(self, what: str) -> int:
        self._need(8, what)
        self._at += 8
        return int(_U64.unpack_from(self._buffer, self._at - 8)[0])

    def _need(self, n_bytes: int, what: str) -> None:
        if n_bytes > self._size - self._at:
            raise self._corrupt(f"the file ends inside {what} (truncated?)")

    def _check_count(self, count: int, min_bytes: int, what: str, limit: int | None = None) -> None:
        if count * min_bytes > self._size - self._at or (limit is not None and count > limit):
            raise self._corrupt(f"{what} is {count}, more than the file can hold")

    def _corrupt(self, detail: str) -> InvalidModel:
        return InvalidModel(f"{self._name}: {detail}")
