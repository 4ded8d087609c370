"""The picture that browsers show beside the name of our pages: two horns and a face, 16 by 16 pixels."""

from __future__ import annotations

import struct
import zlib
from functools import cache

_PIXELS = """
................
.#............#.
.##..........##.
.###........###.
..############..
..############..
.##############.
.###..####..###.
.###..####..###.
.##############.
.##############.
.##.########.##.
.###........###.
..############..
...##########...
................
"""
_COLOURS = {".": b"\0\0\0\0", "#": b"\xc0\x32\x28\xff"}
"""RGBA."""


@cache
def icon() -> bytes:
    """An ICO file that holds one PNG."""
    rows = _PIXELS.split()
    raw = b"".join(b"\0" + b"".join(_COLOURS[pixel] for pixel in row) for row in rows)
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)
    entry = struct.pack("<BBBBHHII", len(rows[0]), len(rows), 0, 0, 1, 32, len(png), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + png


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
