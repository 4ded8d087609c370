"""What a tool format is. One file per format; `formats.py` finds them by folder and chooses by template.

A format may have a `spell_id`, too (SpellId), where ids say more than which call it is.
A format says how calls are marked (segments of the OutputPlan), how their text is read (a CallReader),
and how a call is spelled when it must be enforced (a frame for the grammar, text/tools/enforce.py).
Readers never raise and never take anything back: whatever they have returned stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from imp_server.core import Segment, Tool, ToolCall, special
from imp_server.text.tools.json_stream import MARK_CLOSE, MARK_OPEN
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes


class CallBegins(NamedTuple):
    """A call begins. `id` is the model's own call id, if its format has one."""

    name: str
    id: str | None = None


class Args(NamedTuple):
    """A piece of the arguments' JSON text."""

    text: str


class CallEnds(NamedTuple):
    """The call is over, as its notation says; its pieces of arguments concatenate to a JSON object."""


class Cut(NamedTuple):
    """The call ended before it was whole: its arguments are what was written, and never completed.

    Without a Begin not even its name was written.
    """


CallPiece = CallBegins | Args | CallEnds | Cut


class CallReader(Protocol):
    """Reads the text of one visit of a call segment, which may hold several calls."""

    def feed(self, text: str) -> list[CallPiece]:
        """`text`: whole characters; special tokens appear in it as `mark` spells them."""
        ...

    def close(self, *, closed: bool) -> list[CallPiece]:
        """The segment is over: `closed` by its closer, or else by another opener or the reply's end.

        What is open then is whole or Cut.
        """
        ...


SpellId = Callable[[ToolCall, Collection[str]], str]
"""A call of the history, and the ids that stand before it -> its id as the template shows it, none of those."""


class ToolFormat(Protocol):
    """How one family of models writes tool calls."""

    name: str

    def teaches(self, template: str) -> bool:
        """Does this chat template teach the format?"""
        ...

    def segments(self, tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
        """The call segments, to be appended to a plan at index `first`; they open from segment `answer`."""
        ...

    def sections(self, tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
        """How calls are spelled when they are enforced, for the grammar: one for each opener of `segments`."""
        ...

    def reader(self, tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
        """A reader for one visit of segment number `segment` (counted within the format), opened by `opener`."""
        ...


_MARKED = re.compile(f"{MARK_OPEN}([^{MARK_CLOSE}]*){MARK_CLOSE}")


def mark(text: str) -> str:
    """A special token as it appears in a reader's text."""
    return MARK_OPEN + text + MARK_CLOSE


def reader_text(data: bytes) -> str:
    """Marked bytes (whole characters) as a reader's text."""
    text = data.decode("utf-8", "surrogateescape")
    if text.isascii():
        return text
    return "".join("\ufffd" if "\udc80" <= c <= "\udcfd" else c for c in text)


def both(tag: str) -> tuple[bytes, bytes]:
    """A tag that some vocabularies have as a special token and others spell as text."""
    return tag.encode(), special(tag)


def json_unmarked(text: str) -> str:
    """JSON text with special tokens as their plain text, which is inside strings then."""
    if MARK_OPEN in text:
        text = _MARKED.sub(lambda m: json.dumps(m.group(1), ensure_ascii=False)[1:-1], text)
    return unmarked(text)


def unmarked(text: str) -> str:
    """A reader's text with special tokens as their plain text."""
    return text.replace(MARK_OPEN, "").replace(MARK_CLOSE, "")
