"""Sets of Unicode code points as sorted disjoint ranges, and their derivatives by UTF-8 bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

Ranges = tuple[tuple[int, int], ...]
"""Inclusive ranges, ascending, neither touching nor overlapping."""

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
ANY: Ranges = ((0, 0xD7FF), (0xE000, LAST))
"""Every code point that UTF-8 can write."""


def normal(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted and merged, surrogates taken out."""
    merged: list[list[int]] = []
    for low, high in sorted(ranges):
        if low > high:
            continue
        if merged and low <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    out: list[tuple[int, int]] = []
    for low, high in merged:
        if high < SURROGATES[0] or low > SURROGATES[1]:
            out.append((low, high))
            continue
        if low < SURROGATES[0]:
            out.append((low, SURROGATES[0] - 1))
        if high > SURROGATES[1]:
            out.append((SURROGATES[1] + 1, high))
    return tuple(out)


def negated(ranges: Ranges) -> Ranges:
    """All other code points."""
    out: list[tuple[int, int]] = []
    low = 0
    for first, last in ranges:
        out.append((low, first - 1))
        low = last + 1
    out.append((low, LAST))
    return normal(out)


def common(left: Ranges, right: Ranges) -> Ranges:
    """Intersection."""
    return normal((max(a, c), min(b, d)) for a, b in left for c, d in right if max(a, c) <= min(b, d))


def of_text(text: str) -> Ranges:
    return normal((ord(c), ord(c)) for c in text)


def within(ranges: Ranges, low: int, high: int) -> Ranges:
    """The part inside [low, high], shifted so that `low` becomes 0."""
    first = max(bisect_right(ranges, (low, LAST + 1)) - 1, 0)
    last = bisect_right(ranges, (high, LAST + 1))
    return tuple((max(a, low) - low, min(b, high) - low) for a, b in ranges[first:last] if b >= low)


def after_lead(ranges: Ranges, byte: int) -> tuple[int, Ranges]:
    """What must follow the first byte of a code point: (continuation bytes still due, their values).

    An impossible byte gives (0, ()).
    """
    if byte < 0xC2 or byte > 0xF4:
        return 0, ()
    if byte < 0xE0:
        width, base, floor = 1, (byte & 0x1F) << 6, 0x80
    elif byte < 0xF0:
        width, base, floor = 2, (byte & 0x0F) << 12, 0x800
    else:
        width, base, floor = 3, (byte & 0x07) << 18, 0x10000
    span = 1 << (6 * width)
    low = max(base, floor)
    rest = within(ranges, low, min(base + span - 1, LAST))
    return width, tuple((a + low - base, b + low - base) for a, b in rest)


def after_continuation(width: int, ranges: Ranges, byte: int) -> Ranges:
    """The values that remain once a continuation byte (0x80-0xBF) was read with `width` bytes due."""
    span = 1 << (6 * (width - 1))
    base = (byte & 0x3F) * span
    return within(ranges, base, base + span - 1)


def contains(ranges: Ranges, value: int) -> bool:
    at = bisect_right(ranges, (value, LAST + 1)) - 1
    return at >= 0 and value <= ranges[at][1]


def sample(ranges: Ranges) -> int:
    """A member with the fewest bytes, one that JSON writes as it is where there is one."""
    for low, high in _PREFERRED:
        for first, last in ranges:
            if first <= high and last >= low:
                return max(first, low)
    return ranges[0][0]


_PREFERRED = ((0x61, 0x7A), (0x30, 0x39), (0x41, 0x5A), (0x23, 0x5B), (0x5D, 0x7E), (0x20, 0x21))


def utf8_size(code_point: int) -> int:
    """Bytes that UTF-8 needs for it."""
    return 1 if code_point < 0x80 else 2 if code_point < 0x800 else 3 if code_point < 0x10000 else 4


_STRUCTURE = (0, 0x80, 0x90, 0xA0, 0xC0, 0xC2, 0xE0, 0xE1, 0xED, 0xEE, 0xF0, 0xF1, 0xF4, 0xF5)


def byte_classes(all_ranges: Iterable[Ranges]) -> bytes:
    """256 bytes: byte -> class. Bytes of one class behave alike wherever only these sets are read."""
    cuts = set(_STRUCTURE)
    for ranges in all_ranges:
        for low, high in ranges:
            for edge in (low, high + 1):
                if edge < 0x80:
                    cuts.add(edge)
                elif edge <= LAST:
                    for byte in chr(edge).encode("utf-8", "surrogatepass"):
                        cuts.update((byte, byte + 1))
    return classes_of_cuts(cuts)


def classes_of_cuts(cuts: Iterable[int]) -> bytes:
    """The class map whose classes are the intervals between the cuts."""
    edges = sorted({0, *cuts, 256})
    return b"".join(bytes([number]) * (high - low) for number, (low, high) in enumerate(pairwise(edges)))
