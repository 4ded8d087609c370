"""Where each message of a rendered prompt ends, in characters.

The contents' places are found by rendering once more with unforgeable marks around each content; if that
rendering differs from the real one by more than the marks, contents are searched for in order instead. A
message ends after the turn marker that follows its content, so that the boundary is the same whatever
message comes next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from imp_server.vocab.end_tokens import TURN_ENDS


class TextSpan(NamedTuple):
    """Characters [start, end) of a message's content in the rendered prompt."""

    start: int
    end: int


class Marks:
    """Marks around contents: a character that occurs nowhere else, the message's number, the character again."""

    def __init__(self, start: str, end: str) -> None:
        self._start, self._end = start, end
        self._either = re.compile(f"({start}|{end})(\\d+)\\1")

    def edges(self, index: int) -> tuple[str, str]:
        return f"{self._start}{index}{self._start}", f"{self._end}{index}{self._end}"

    def places(self, plain: str, marked: str, n_messages: int) -> list[TextSpan | None] | None:
        """Places of the marked contents; None if `marked` isn't `plain` with marks."""
        found: list[TextSpan | None] = [None] * n_messages
        starts: dict[int, int] = {}
        out: list[str] = []
        size = at = 0
        for match in self._either.finditer(marked):
            out.append(marked[at : match.start()])
            size += match.start() - at
            at = match.end()
            index = int(match.group(2))
            if match.group(1) == self._start:
                starts.setdefault(index, size)
            elif found[index] is None:
                found[index] = TextSpan(starts.get(index, size), size)
        out.append(marked[at:])
        return found if "".join(out) == plain else None


def places_by_search(plain: str, contents: Sequence[str]) -> list[TextSpan | None]:
    """The fallback: each content's first occurrence behind the one before it."""
    found: list[TextSpan | None] = []
    at = 0
    for content in contents:
        start = plain.find(content, at) if content else -1
        if start < 0:
            found.append(None)
            continue
        at = start + len(content)
        found.append(TextSpan(start, at))
    return found


class Boundaries:
    """Finds message ends with the turn markers of one vocabulary. Immutable."""

    def __init__(self, special_texts: Sequence[str]) -> None:
        texts = sorted((t for t in special_texts if t in TURN_ENDS), key=len, reverse=True)
        self._turn_end = re.compile("(?:" + "|".join(map(re.escape, texts)) + r")\s*") if texts else None

    def ends(self, prompt: str, places: Sequence[TextSpan | None]) -> list[int]:
        """The end of each message; ascending, all within the prompt."""
        ends: list[int] = []
        at = 0
        known = 0
        for index, place in enumerate(places):
            at = max(at, place.end if place is not None else at)
            limit = next((p.start for p in places[index + 1 :] if p is not None), len(prompt))
            known = max(at, known)
            match = self._turn_end.search(prompt, known, max(limit, known)) if self._turn_end else None
            at = known = match.end() if match is not None else known
            ends.append(at)
        return ends
