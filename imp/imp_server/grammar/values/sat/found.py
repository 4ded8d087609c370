"""A witness: how few bytes can complete something, and a text that does.

The size is known long before the text is, and alone decides: parts that many share are counted often and spelled only
where somebody wants a text that is short enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from imp_server.core.turns import charge, spend

LONGEST = 1 << 20
"""Bytes of a text that is ever spelled, and of the shortest value of a schema that is served."""
MOST = 1 << 60
"""Sizes saturate here."""
MAX_LEAD = 1 << 14
"""Bytes of a leg of a way (distance.py). Each place inside a long one has a leg of its own: its cost is per token."""
N_BYTES, N_BYTES_PART = 350, 8
"""Memory of a witness, and of each of its parts."""


class TooLong(Exception):
    """The text is longer than whoever wants it can use."""


class Found:
    """`size` bytes of `text()`. An upper bound of the fewest bytes; exact where choices are independent."""

    __slots__ = ("_spell", "size")

    def __init__(self, size: int, spell: Callable[[], bytes]) -> None:
        charge(N_BYTES)
        self.size = min(size, MOST)
        self._spell = spell

    def text(self, most: int = LONGEST) -> bytes:
        """Raises TooLong beyond `most` bytes, before anything is spelled."""
        if self.size > most:
            raise TooLong
        spend(1 + self.size // 256)
        return self._spell()


def found(text: bytes) -> Found:
    charge(len(text), 0)
    return Found(len(text), lambda: text)


def joined(parts: Iterable[Found], before: bytes = b"", after: bytes = b"") -> Found:
    """The parts, separated by commas, between `before` and `after`."""
    parts = list(parts)
    charge(N_BYTES_PART * len(parts), 1 + len(parts) // 8)
    size = sum(p.size for p in parts) + max(0, len(parts) - 1) + len(before) + len(after)
    return Found(size, lambda: before + b",".join(p.text() for p in parts) + after)


def shorter(a: Found | None, b: Found | None) -> Found | None:
    if a is None or b is None:
        return a or b
    return b if b.size < a.size else a
