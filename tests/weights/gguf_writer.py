"""Writes small GGUF files for tests, valid or deliberately broken. Independent of the reader."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

_SCALAR = {"u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"), "i32": (5, "<i")}
_SCALAR |= {"f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d")}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> bytes:
    """Type id and payload; a tuple (kind, value) picks a scalar kind, a list is an array."""
    if isinstance(value, str | bytes):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, tuple):
        kind, code = _SCALAR[value[0]]
        return struct.pack("<I", kind) + struct.pack(code, value[1])
    body, kind = b"", 8
    for item in value:
        one = typed(item)
        kind = struct.unpack_from("<I", one)[0]
        body += one[4:]
    return struct.pack("<IIQ", 9, kind, len(value)) + body


def gguf_bytes(
    metadata: dict[str, Any],
    tensors: dict[str, tuple[int, tuple[int, ...], bytes]] | None = None,
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """`tensors`: name -> (type id, numpy shape, data)."""
    tensors = tensors or {}
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += text(key) + typed(value)
    offset = 0
    for name, (kind, shape, data) in tensors.items():
        out += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", d) for d in shape[::-1])
        out += struct.pack("<IQ", kind, offset)
        offset += -(-len(data) // alignment) * alignment
    for _, _, data in tensors.values():
        out += b"\0" * (-len(out) % alignment) + data
    return out


def write(path: Path, *args: Any, **kwargs: Any) -> Path:
    path.write_bytes(gguf_bytes(*args, **kwargs))
    return path
