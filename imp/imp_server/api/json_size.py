"""How much a JSON text makes, told from its bytes before any of it is made.

Bytes are looked at a megabyte at a time by numpy, which lets other threads run meanwhile. The counts are exact for
JSON; for anything else they are some number, and the decoder refuses the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_PIECE = 1 << 20
_BACKSLASH, _QUOTE = 0x5C, 0x22
_BEYOND_LATIN_1, _BEYOND_16_BITS = 0xC4, 0xF0
"""First bytes of characters that make their text two, and four bytes a character wide."""
_CONTAINER_BYTES = 250
"""An object with a few fields, with its place in a list; an array takes less."""
_VALUE_BYTES = 64
"""A number or a short text, with its place in a list."""


@dataclass(frozen=True, slots=True)
class JsonSize:
    n_containers: int
    """Arrays and objects."""
    n_values: int
    """Values of any kind, or somewhat more."""
    n_text_bytes: int
    """What its texts take at most: one character beyond Latin-1 makes all of its text wider, spelled out or escaped."""

    @property
    def n_bytes(self) -> int:
        """Memory that the decoded values take, at most."""
        return self.n_text_bytes + self.n_containers * _CONTAINER_BYTES + self.n_values * _VALUE_BYTES


def json_size(data: bytes | bytearray) -> JsonSize:
    n_containers = n_commas = widest = 0
    in_text = escaped = False
    tail = b""
    for start in range(0, len(data), _PIECE):
        piece = bytes(data[start : start + _PIECE])
        if escaped:
            if piece[:1] == b"u":
                widest = _BEYOND_16_BITS
            piece = b" " + piece[1:]
        # What a backslash hides: pairs first, from the left, so that the parity of a run comes out right.
        plain = piece.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        escaped = plain.endswith(b"\\")
        seen = np.frombuffer(plain, np.uint8)
        quotes = seen == _QUOTE
        inside = np.cumsum(quotes, dtype=np.uint8) & 1
        if in_text:
            inside ^= 1
        in_text = bool(inside[-1])
        widest = max(widest, _widest_escape(tail + plain))
        tail = plain[-2:]
        outside = seen[inside == 0]
        opened = np.bincount(outside, minlength=256)
        n_containers += int(opened[0x5B] + opened[0x7B])
        n_commas += int(opened[0x2C])
        widest = max(widest, int(seen.max()))
    width = 4 if widest >= _BEYOND_16_BITS else 2 if widest >= _BEYOND_LATIN_1 else 1
    return JsonSize(n_containers, n_commas + n_containers + 1, len(data) * width)


def _widest_escape(piece: bytes) -> int:
    """As if its characters were spelled out; half a pair may be of one beyond 16 bits."""
    if b"\\ud" in piece or b"\\uD" in piece:
        return _BEYOND_16_BITS
    return _BEYOND_LATIN_1 if b"\\u" in piece else 0


def memory_of(*texts: str) -> int:
    """Bytes that these JSON texts take once they are decoded, at most."""
    return sum(json_size(text.encode()).n_bytes for text in texts)
