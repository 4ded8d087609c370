"""What a token writes into a JSON string, told from its bytes alone."""

from __future__ import annotations

import json

MAX_PLAIN = 512
"""Code points of the longest plain token that is sorted by length; longer ones are walked."""
_PLAIN_BYTES = bytes(b for b in range(0x20, 0x100) if b not in b'"\\')


def plain_length(data: bytes) -> int | None:
    """Code points of a token that is plain string content; None if it isn't, or is too long to be sorted."""
    if data.translate(None, _PLAIN_BYTES):
        return None
    try:
        n = len(data.decode())
    except UnicodeDecodeError:
        return None
    return n if n <= MAX_PLAIN else None


def closing_quote(data: bytes) -> int | None:
    """Where the quote stands that ends the string in which the token begins; None if it has none, or is no string."""
    at = 0
    while at < len(data) and data[at] != 0x22:
        at += 2 if data[at] == 0x5C else 1
    if at >= len(data):
        return None
    try:
        json.loads('"' + data[: at + 1].decode()).encode()
    except ValueError:  # control characters, broken escapes, parts of code points, lone surrogates
        return None
    return at
