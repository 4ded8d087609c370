"""Token ids and what they write, as bytes: int32 ids, and marked bytes, in which text can't spell a special token."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable

_SLICE = 1 << 15
"""A million ids at once would hold the interpreter's lock for some 15 ms."""


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as little-endian int32 bytes."""
    if isinstance(ids, list | tuple) and len(ids) > _SLICE:
        return b"".join(array("i", ids[start : start + _SLICE]).tobytes() for start in range(0, len(ids), _SLICE))
    return array("i", ids).tobytes()


def unpack_ids(data: bytes) -> array[int]:
    """The int32 token ids held by `data`."""
    ids = array("i")
    ids.frombytes(data)
    return ids


SPECIAL_OPEN, SPECIAL_CLOSE = b"\xff", b"\xfe"
SPECIAL_SPAN = re.compile(rb"\xff([^\xfe]*)\xfe")
"""A special token in marked bytes; group 1 is its text."""


def special(text: str) -> bytes:
    """A special token in marked bytes: its text between 0xFF and 0xFE.

    Neither byte occurs in UTF-8, and vocab/ rewrites them to 0xC0 in ordinary tokens, so text typed or
    generated can never spell a special token: one byte-level matcher serves tags of both sorts.
    """
    return SPECIAL_OPEN + text.encode() + SPECIAL_CLOSE
