"""What is left to read of an envelope, and which tags and closers end the texts in it.

Free texts, raw texts and scripts lead to each other; what each of them asks of an envelope stands here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Union

from imp_server.core import SPECIAL_CLOSE, SPECIAL_OPEN
from imp_server.grammar.languages import envelope as env
from imp_server.grammar.machines.machine import Machine

UNTYPED = (SPECIAL_OPEN[0], SPECIAL_CLOSE[0])


class Rest(NamedTuple):
    """What a thread still has to read: `node`, then `then`."""

    node: env.Node
    then: Union[Rest, None]  # noqa: UP007
    at: int = 0
    """Bytes of a Lit already read, or passes of a Repeat."""


Threads = frozenset[Rest | None]
"""None: a thread that has read everything."""


def read_on(thread: Rest) -> Rest | None:
    """Behind the next byte of a literal."""
    assert isinstance(thread.node, env.Lit)
    return thread._replace(at=thread.at + 1) if thread.at + 1 < len(thread.node.data) else thread.then


class SeenTag(NamedTuple):
    """What counts of a text: the longest beginning of a tag at its end, and whether only blanks precede that."""

    matched: bytes = b""
    blank: bool = True


class Tags:
    """The tags of one free text, indexed by their beginnings."""

    def __init__(self, branches: Sequence[env.Branch]) -> None:
        self._anywhere = {b.tag: b for b in reversed(branches) if not b.at_start}
        self._at_start = {b.tag: b for b in reversed(branches) if b.at_start}
        self._letters = {bytes([letter]) for branch in branches for letter in branch.tag}
        self._beginnings = [
            {tag[:n] for tag in tags for n in range(1, len(tag) + 1)} for tags in (self._anywhere, self._at_start)
        ]

    def after(self, seen: SeenTag, text: bytes) -> SeenTag:
        """`text`: what `seen` has matched, and perhaps one byte more."""
        anywhere, at_start = self._beginnings
        for at in range(len(text)) if text[-1:] in self._letters else ():
            blank = seen.blank and not text[:at].strip()
            if text[at:] in anywhere or (blank and text[at:] in at_start):
                return SeenTag(text[at:], blank)
        return SeenTag(b"", seen.blank and not text.strip())

    def complete(self, seen: SeenTag) -> env.Branch | None:
        """The branch of the longest tag that is complete. A tag's text inside a special token is none."""
        text = seen.matched
        for at in range(len(text)):
            if text.rfind(SPECIAL_OPEN, 0, at) > text.rfind(SPECIAL_CLOSE, 0, at):
                continue
            found = self._anywhere.get(text[at:])
            if found is None and seen.blank and not text[:at].strip():
                found = self._at_start.get(text[at:])
            if found is not None:
                return found
        return None


class RawEnds:
    """What can't stand in a raw text, each with what comes next: nothing where the text can't end so."""

    def __init__(self, following: dict[bytes, Threads], opener: bytes) -> None:
        """`opener`: what is looked for besides (envelope.Raw)."""
        self.next = following
        self.texts = [*following, *([opener] if opener else [])]
        self.letters = frozenset(b"".join(self.texts))
        ends = [text for text, after in following.items() if after]
        self.beginnings = frozenset(text[:n] for text in ends for n in range(1, len(text) + 1))


def longest_beginning(text: bytes, tags: list[bytes]) -> bytes:
    """The longest end of `text` that is a beginning of some tag (or a whole one)."""
    for at in range(len(text)):
        if any(tag.startswith(text[at:]) for tag in tags):
            return text[at:]
    return b""


class EnvelopeFrames(ABC):
    """The frames of one envelope."""

    @abstractmethod
    def script(self, threads: set[Rest | None]) -> int:
        """The local that reads any of the threads on."""

    @abstractmethod
    def read(self, node: env.Node, then: Rest | None) -> int:
        """The local that reads the node, and then goes on."""

    @abstractmethod
    def size(self, node: env.Node) -> int:
        """About how many bytes a shortest text of the node has."""

    @abstractmethod
    def machine(self, here: Rest) -> Machine:
        """Of the raw text with which `here` begins."""

    @abstractmethod
    def tags(self, node: env.Free, past: bool) -> Tags:
        """`past`: the first tokens are over."""

    @abstractmethod
    def ends(self, here: Rest) -> RawEnds:
        """What ends the raw text with which `here` begins."""
