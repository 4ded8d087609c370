"""Big JSON in pieces: a library's call holds the interpreter's lock, so one call on megabytes stops the event loop.

Values are the same as those of one call; between the pieces other threads have their turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

PIECE_BYTES = 64 * 1024
"""Some 0.3 ms of numbers."""
PIECE_ITEMS = 1024
LARGE_LEVELS = 16
_FIRST = re.compile(rb"[^ \t\r\n]")
Buffer = bytes | bytearray | memoryview
_decode = msgspec.json.Decoder().decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class TooDeepForItsSize(RecursionError):
    """Each container above a large one is read once more, so there may be a few of them only."""


def decode_in_pieces(data: Buffer, max_depth: int, large_levels: int = LARGE_LEVELS) -> Any:
    """Raises msgspec.DecodeError, whose places count from the piece at fault; RecursionError beyond `max_depth`.

    At most `large_levels` containers of more than a piece may stand inside each other, else TooDeepForItsSize.
    """
    if len(data) <= PIECE_BYTES:
        return _decode(data)
    if max_depth < 0:
        raise RecursionError
    if large_levels < 0:
        raise TooDeepForItsSize
    view = memoryview(data)
    first = _FIRST.search(view)
    start = first.start() if first else 0
    if first and first[0] == b"{":
        deeper = (max_depth - 1, large_levels - 1)
        return {name: decode_in_pieces(memoryview(raw), *deeper) for name, raw in _fields(view).items()}
    if first is None or first[0] != b"[":
        return _decode(data)
    if _has_more_than_scalars(view[start + 1 :]):
        return [decode_in_pieces(memoryview(raw), max_depth - 1, large_levels - 1) for raw in _items(view)]
    return _scalars(bytes(view).strip())


def _has_more_than_scalars(inside: memoryview) -> bool:
    """Of an array, from behind its bracket on."""
    seen = np.frombuffer(inside, np.uint8)
    pieces = (seen[at : at + PIECE_BYTES] for at in range(0, len(seen), PIECE_BYTES))
    return any(((piece == 0x22) | (piece == 0x5B) | (piece == 0x7B)).any() for piece in pieces)


def _scalars(data: bytes) -> list[Any]:
    """Of an array that holds numbers and names only: any comma is a place to cut it."""
    if data[-1:] != b"]":
        return _decode(data)  # type: ignore[no-any-return]  # raises
    values: list[Any] = []
    at, end = 1, len(data) - 1
    while True:
        cut = data.find(b",", at + PIECE_BYTES, end)
        piece = _decode(b"[%b]" % data[at : cut if cut != -1 else end])
        if not piece:
            return _decode(data)  # type: ignore[no-any-return]  # a comma with nothing behind it
        values += piece
        if cut == -1:
            return values
        at = cut + 1


def encode_in_pieces(value: Any) -> bytes:
    return b"".join(_encoded(value))


def _encoded(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict) and len(value) <= PIECE_ITEMS:
        yield b"{"
        for i, (name, item) in enumerate(value.items()):
            yield (b"," if i else b"") + _encode(name) + b":"
            yield from _encoded(item)
        yield b"}"
    elif isinstance(value, list) and value and isinstance(value[0], dict | list):
        yield b"["
        for i, item in enumerate(value):
            if i:
                yield b","
            yield from _encoded(item)
        yield b"]"
    elif isinstance(value, list):
        for start in range(0, len(value), PIECE_ITEMS):
            yield (b"," if start else b"[") + _encode(value[start : start + PIECE_ITEMS])[1:-1]
        yield b"]" if value else b"[]"
    else:
        yield _encode(value)
