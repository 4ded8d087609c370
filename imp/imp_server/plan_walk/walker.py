"""Walks a completion token by token along its OutputPlan.

The engine walks to know when a segment ends, when reasoning must be closed and when to stop; the API
process walks the same tokens to cut and label the text. Same code, same tokens, same answer.

Matching rule: of all patterns alive in the current segment the one that is complete first wins; of
those complete at the same byte the longest. The result depends on the bytes alone, never on how
tokens or hand-offs cut them (except for `scan_tokens`, which counts tokens, and a forced closer that the end cuts).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from imp_server.core import SPECIAL_CLOSE, SPECIAL_OPEN, SPECIAL_SPAN, OutputPlan, unpack_ids
from imp_server.plan_walk.indent import IndentWatch
from imp_server.plan_walk.strings import StringPlace, StringRule


class Piece(NamedTuple):
    """A labelled stretch of output. `visit` counts how often its segment had been entered before."""

    segment: int
    visit: int
    kind: Literal["open", "text", "close"]
    data: bytes
    """Marked bytes; `visible` turns them into text bytes."""


class WalkEnd(NamedTuple):
    reason: Literal["stop", "length"]
    stop_string: bytes | None = None
    end_id: int = -1


class _Pattern(NamedTuple):
    data: bytes
    action: Literal["open", "close", "stop"]
    target: int
    at_start: bool = False


class PlanWalker:
    """Owner of one choice's position in its OutputPlan."""

    def __init__(self, plan: OutputPlan, token_bytes: Sequence[bytes]) -> None:
        """`token_bytes[id]` are the marked bytes of each token id."""
        self.plan = plan
        self.segment = plan.start
        self.n_tokens = 0
        self.n_think_tokens = 0
        self.end: WalkEnd | None = None
        self.has_dropped_call = False
        """The reply, which had to be a call, ended within what opens one."""
        self._token_bytes = token_bytes
        self._end_ids = frozenset(plan.end_ids)
        self._shown = frozenset(token_bytes[i] for i in plan.shown_ids)
        self._visits = [0] * len(plan.segments)
        self._visits[plan.start] = 1
        self._called = False
        self._held = b""
        self._blank = True
        self._place = StringPlace(0)
        self._enter_strings()
        self._indent = IndentWatch(plan.min_indent) if plan.min_indent > 0 else None
        self._closer = tuple(unpack_ids(plan.think_closer))
        self._n_closing = 0
        """The last tokens are so many of the closer's."""
        self._patterns = self._alive()

    @property
    def kind(self) -> Literal["think", "answer", "call"]:
        return self.plan.segments[self.segment].kind

    @property
    def has_text(self) -> bool:
        """The segment has text that isn't blank."""
        return not self._blank

    @property
    def must_close_thinking(self) -> bool:
        """True when the reasoning budget is spent: the engine feeds `think_closer` next."""
        budget = self.plan.think_budget
        return 0 <= budget <= self.n_think_tokens and self.kind == "think"

    def push(self, token_id: int) -> list[Piece]:
        """Account for one token; the pieces that became certain. `end` is set when the completion is over."""
        if self.end is not None:
            raise RuntimeError("token after the end of the completion")
        self.n_tokens += 1
        if self.kind == "think":
            self.n_think_tokens += 1
            self._note_closing(token_id)
        pieces: list[Piece] = []
        if token_id in self._end_ids:
            self._release(pieces)
            self.end = self.end or WalkEnd("stop", end_id=token_id)
            return pieces
        self._walk(self._token_bytes[token_id], pieces)
        if self.end is None and self.n_tokens >= self.plan.max_tokens:
            self._release(pieces)
            self.end = self.end or WalkEnd("length")
        if self.n_tokens in self._scan_limits:
            self._patterns = self._alive()
        return pieces

    def finish(self) -> list[Piece]:
        """Release what is held back when the engine ends the completion for its own reason (deadline, cancel)."""
        pieces: list[Piece] = []
        self._release(pieces)
        return pieces

    def visible(self, data: bytes) -> bytes:
        """`data` without special tokens, except for those of `shown_ids`, which appear as their text."""
        if SPECIAL_OPEN not in data:
            return data
        return SPECIAL_SPAN.sub(lambda m: m.group(1) if m.group(0) in self._shown else b"", data)

    def _alive(self) -> tuple[_Pattern, ...]:
        segments = self.plan.segments
        here = segments[self.segment]
        patterns = [_Pattern(c, "close", here.closes_to) for c in here.closers]
        for index, other in enumerate(segments):
            if self.segment not in other.opens_from:
                continue
            if other.scan_tokens >= 0 and (other.scan_tokens <= self.n_tokens or self._called):
                continue
            if 0 <= other.max_visits <= self._visits[index]:
                continue
            at_start = other.at_start and here.kind == "answer"
            if at_start and not self._blank:
                continue
            patterns += [_Pattern(o, "open", index, at_start) for o in other.openers]
        if here.kind == "answer":
            patterns += [_Pattern(s, "stop", -1) for s in self.plan.stop if s]
        self._scan_limits = frozenset(s.scan_tokens for s in segments if s.scan_tokens >= 0)
        return tuple(patterns)

    def _walk(self, data: bytes, pieces: list[Piece]) -> None:
        buffer = self._held + data
        self._held = b""
        while True:
            places = self._places(buffer)
            match, start = _first_complete(self._patterns, buffer, places)
            if match is None:
                break
            self._text(buffer[:start], pieces)
            if self.end is not None:
                return
            self._act(match, pieces)
            buffer = buffer[start + len(match.data) :]
            if self.end is not None:
                return
        n_held = _n_possible_prefix(self._patterns, buffer, places)
        self._text(buffer[: len(buffer) - n_held], pieces)
        self._held = buffer[len(buffer) - n_held :] if self.end is None else b""

    def _act(self, match: _Pattern, pieces: list[Piece]) -> None:
        segments = self.plan.segments
        if match.action == "stop":
            self.end = WalkEnd("stop", stop_string=match.data)
            return
        if match.action == "close":
            pieces.append(Piece(self.segment, self._visits[self.segment] - 1, "close", match.data))
            if segments[self.segment].keep_markers:
                self._text(match.data, pieces)
            if match.target < 0:
                self.end = WalkEnd("stop")
                return
        self.segment = match.target
        self._visits[self.segment] += 1
        self._called = self._called or segments[self.segment].kind == "call"
        self._blank = True
        self._enter_strings()
        if match.action == "open":
            pieces.append(Piece(self.segment, self._visits[self.segment] - 1, "open", match.data))
            if segments[self.segment].keep_markers:
                self._text(match.data, pieces)
        self._patterns = self._alive()

    def _text(self, data: bytes, pieces: list[Piece]) -> None:
        if self._indent is not None and self.kind == "answer":
            n_standing = self._indent.n_standing(data)
            if n_standing < len(data):
                data, self.end = data[:n_standing], WalkEnd("length")
        if not data:
            return
        pieces.append(Piece(self.segment, self._visits[self.segment] - 1, "text", data))
        if self._strings is not None:
            self._place = self._strings.scan(self._place, data)[-1]
        if self._blank and data.strip():
            self._blank = False
            self._patterns = self._alive()

    def _enter_strings(self) -> None:
        segment = self.plan.segments[self.segment]
        self._strings = StringRule(segment) if segment.json_body or segment.values else None
        self._place = self._strings.start if self._strings is not None else StringPlace(0)

    def _places(self, buffer: bytes) -> list[StringPlace] | None:
        """Per offset of `buffer` where it is; None if that doesn't matter."""
        return None if self._strings is None else self._strings.scan(self._place, buffer)

    def _note_closing(self, token_id: int) -> None:
        at = self._n_closing
        if at < len(self._closer) and token_id == self._closer[at]:
            self._n_closing = at + 1
        else:
            self._n_closing = int(self._closer[:1] == (token_id,))

    def _release(self, pieces: list[Piece]) -> None:
        """Nothing more comes. What a special token, a forced closer or a forced call began is no text."""
        if self._held and not self._held.startswith(SPECIAL_OPEN) and not self._has_begun_what_is_forced():
            self._text(self._held, pieces)
        else:
            self.has_dropped_call = bool(self._held) and self.kind == "answer" and self.plan.only_calls
        self._held = b""

    def _has_begun_what_is_forced(self) -> bool:
        if self.kind == "answer":
            return self.plan.only_calls
        closing = b"".join(self._token_bytes[i] for i in self._closer[: self._n_closing])
        return self.kind == "think" and len(self._held) <= len(closing)


def _first_complete(
    patterns: tuple[_Pattern, ...], buffer: bytes, places: list[StringPlace] | None
) -> tuple[_Pattern | None, int]:
    best: _Pattern | None = None
    best_end, best_start = len(buffer) + 1, 0
    for pattern in patterns:
        start = _find(pattern, buffer, places)
        if start < 0:
            continue
        end = start + len(pattern.data)
        if end < best_end or (end == best_end and start < best_start):
            best, best_end, best_start = pattern, end, start
    return best, best_start


def _find(pattern: _Pattern, buffer: bytes, places: list[StringPlace] | None) -> int:
    """First occurrence where the pattern counts: not inside a special token, nor inside a string."""
    start = buffer.find(pattern.data)
    if pattern.at_start:
        return start if start >= 0 and not buffer[:start].strip() else -1
    while start >= 0:
        inside_special = buffer.rfind(SPECIAL_OPEN, 0, start) > buffer.rfind(SPECIAL_CLOSE, 0, start)
        if not inside_special and (places is None or not places[start].in_string):
            break
        start = buffer.find(pattern.data, start + 1)
    return start


def _n_possible_prefix(patterns: tuple[_Pattern, ...], buffer: bytes, places: list[StringPlace] | None) -> int:
    """Length of the longest suffix of `buffer` that is a proper prefix of some pattern, where that counts."""
    longest = 0
    for pattern in patterns:
        for size in range(min(len(pattern.data) - 1, len(buffer)), longest, -1):
            start = len(buffer) - size
            if pattern.at_start and buffer[:start].strip():
                continue
            if places is not None and places[start].in_string:
                continue
            if buffer.endswith(pattern.data[:size]):
                longest = size
                break
    return longest
