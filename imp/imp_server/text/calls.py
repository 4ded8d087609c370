"""Text of call segments -> CallStart, CallArgs, CallEnd of one choice."""

from __future__ import annotations

import codecs
import secrets
from collections.abc import Callable, Collection
from typing import Protocol

from imp_server.core import CallArgs, CallEnd, CallStart, OutputEvent
from imp_server.text.call_ids import unique_id
from imp_server.text.tools.base import CallBegins, CallEnds, CallPiece, CallReader, Cut, json_unmarked, unmarked


class CallReaders(Protocol):
    """Makes the reader for one visit of a call segment (text/tools)."""

    def __call__(self, segment: int, opener: bytes) -> CallReader:
        """`segment` counts in the plan, `opener` is the marker as it stood in the output (marked bytes)."""
        ...


class Calls:
    """Owner of the numbering and ids of a choice's calls, and of the reader of the open segment."""

    def __init__(
        self,
        choice: int,
        readers: CallReaders | None,
        new_id: Callable[[], str] | None = None,
        taken: Collection[str] = (),
    ) -> None:
        """`taken`: ids of earlier calls of the conversation."""
        self.n_calls = 0
        self.has_cut = False
        """A call ended before it was whole."""
        self.has_begun = False
        """The segment that was open last ended in what a call begins with, before its name."""
        self._is_open = False
        self._taken = set(taken)
        self._choice = choice
        self._readers = readers
        self._new_id = new_id or new_call_id
        self._reader: CallReader | None = None
        self._decoder = _marked_decoder()

    def open(self, segment: int, opener: bytes) -> None:
        self._reader = self._readers(segment, opener) if self._readers is not None else None
        self._decoder = _marked_decoder()

    def feed(self, data: bytes) -> list[OutputEvent]:
        """`data`: marked bytes, cut anywhere."""
        if self._reader is None:
            return []
        text = self._decoder.decode(data)
        if not text.isascii():
            text = "".join(c for c in text if not "\udc80" <= c <= "\udcfd")  # bytes that form no character
        return self._events(self._reader.feed(text)) if text else []

    def close(self, *, closed: bool) -> list[OutputEvent]:
        """`closed`: by the segment's closer."""
        reader, self._reader = self._reader, None
        self.has_begun = False
        return [] if reader is None else self._events(reader.close(closed=closed))

    def _events(self, pieces: list[CallPiece]) -> list[OutputEvent]:
        events: list[OutputEvent] = []
        for piece in pieces:
            if isinstance(piece, CallBegins):
                self.n_calls += 1
                self._is_open = True
                call_id = self._id(piece.id and unmarked(piece.id))
                events.append(CallStart(self._choice, self.n_calls - 1, call_id, unmarked(piece.name)))
            elif isinstance(piece, Cut) and not self._is_open:
                self.has_begun = True
            elif isinstance(piece, CallEnds | Cut):
                is_cut = isinstance(piece, Cut)
                self.has_cut, self._is_open = self.has_cut or is_cut, False
                events.append(CallEnd(self._choice, self.n_calls - 1, is_cut))
            elif piece.text:
                events.append(CallArgs(self._choice, self.n_calls - 1, json_unmarked(piece.text)))
        return events

    def _id(self, wanted: str | None) -> str:
        """Models count their calls anew in each turn."""
        found = (unique_id(wanted, self._taken) if wanted else None) or self._new_id()
        self._taken.add(found)
        return found


def new_call_id() -> str:
    """Random: a client that keeps several replies in one history must not see an id twice."""
    return f"call_{secrets.token_hex(12)}"


def _marked_decoder() -> codecs.IncrementalDecoder:
    # 0xFF and 0xFE of marked bytes come out as the lone surrogates that readers expect.
    return codecs.getincrementaldecoder("utf-8")("surrogateescape")
