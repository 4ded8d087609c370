"""Finds the first of several tags in text that arrives in pieces, holding back only a possible beginning of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class FoundTag(NamedTuple):
    before: str
    """Text that surely precedes the tag (or any tag to come)."""
    tag: str | None


class TagScanner:
    """Owner of text received and not yet released."""

    def __init__(self) -> None:
        self._held = ""

    def add(self, text: str) -> None:
        self._held += text

    def next(self, tags: Sequence[str]) -> FoundTag:
        """Release up to and including the first tag; without one, all that can't be the beginning of one."""
        hits = [(place, -len(tag), tag) for tag in tags if (place := self._held.find(tag)) >= 0]
        # What may yet become a tag that begins no later than the first complete one decides before it does.
        split = len(self._held) - max((self._prefix_length(tag) for tag in tags), default=0)
        if hits and min(hits)[0] < split:
            place, _, tag = min(hits)
            before, self._held = self._held[:place], self._held[place + len(tag) :]
            return FoundTag(before, tag)
        before, self._held = self._held[:split], self._held[split:]
        return FoundTag(before, None)

    def rest(self) -> str:
        """Everything still held."""
        rest, self._held = self._held, ""
        return rest

    def _prefix_length(self, tag: str) -> int:
        for size in range(min(len(tag) - 1, len(self._held)), 0, -1):
            if self._held.endswith(tag[:size]):
                return size
        return 0
