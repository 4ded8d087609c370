"""A witness: how few bytes can complete something, and a text that does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Found(NamedTuple):
    """`size` bytes of `text()`. An upper bound of the fewest bytes; exact where choices are independent."""

    size: int
    text: Callable[[], bytes]


def found(text: bytes) -> Found:
    return Found(len(text), lambda: text)


def joined(parts: Iterable[Found], before: bytes = b"", after: bytes = b"") -> Found:
    """The parts, separated by commas, between `before` and `after`."""
    parts = list(parts)
    size = sum(p.size for p in parts) + max(0, len(parts) - 1) + len(before) + len(after)
    return Found(size, lambda: before + b",".join(p.text() for p in parts) + after)


def shorter(a: Found | None, b: Found | None) -> Found | None:
    if a is None or b is None:
        return a or b
    return b if b.size < a.size else a
