"""Raw text up to a closer, under a machine that its text has to satisfy."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from imp_server.core import GrammarUnsatisfiable
from imp_server.core.turns import GaveUp, spend
from imp_server.grammar.frames.store import ListedFrame, Store
from imp_server.grammar.frames.threads import UNTYPED, EnvelopeFrames, Rest, Threads, longest_beginning
from imp_server.grammar.languages import envelope as env
from imp_server.grammar.machines.machine import DEAD

SEARCH = 5_000
"""Frames looked at for a way to the end of a raw text."""


class Tail(NamedTuple):
    """What counts of the end of a raw text."""

    matched: bytes = b""
    """The longest beginning of a closer there, whether the text may end or not."""
    closers: frozenset[bytes] = frozenset()
    """Beginnings of the closer there, begun where the text might end."""
    opened: bool = False
    """The node's opener stands in the text."""


class RawText(ListedFrame):
    """Raw text under a machine."""

    __slots__ = ("envelope", "frames", "here", "machine", "state", "tail")

    def __init__(self, frames: RawTexts, envelope: EnvelopeFrames, here: Rest, state: int, tail: Tail) -> None:
        super().__init__(frames.store)
        self.frames = frames
        self.envelope = envelope
        self.here = here
        self.machine = envelope.machine(here)
        self.state = state
        self.tail = tail

    @property
    def node(self) -> env.Raw:
        assert isinstance(self.here.node, env.Raw)
        return self.here.node

    @property
    def guard(self) -> int:
        """Bytes of the closer after which there is no way back to the text."""
        node = self.node
        return 1 << 30 if node.follow else node.guard or max(1, len(node.closer.rstrip()) - 1)

    def entries(self) -> dict[int, int]:
        found = {}
        for byte in range(256):
            after = self.after(byte)
            if isinstance(after, RawText):
                if after.alive():
                    found[byte] = after.id
            elif after is not None:
                found[byte] = self.envelope.script(set(after))
        return found

    def after(self, byte: int) -> RawText | Threads | None:
        """The frame after a byte; what comes next where the closer is complete; None where the byte is impossible."""
        ends = self.envelope.ends(self.here)
        closers, matched = frozenset[bytes](), b""
        before = DEAD if self._misspells(byte) else self.state
        if byte in ends.letters:
            begun = set(self.tail.closers)
            if before != DEAD and self.machine.accepts(before):
                begun.add(b"")
            grown = [beginning + bytes([byte]) for beginning in begun]
            whole = [text for text in grown if ends.next.get(text)]
            if whole:
                return ends.next[whole[0]]
            closers = frozenset(beginning for beginning in grown if beginning in ends.beginnings)
            matched = longest_beginning(self.tail.matched + bytes([byte]), ends.texts)
        state = DEAD if before == DEAD or byte in UNTYPED else self.machine.step(before, byte)
        if matched in ends.next or len(matched) >= self.guard:
            state = DEAD
        if state == DEAD and not closers:
            return None
        opened = self.tail.opened or (bool(self.node.opener) and matched.endswith(self.node.opener))
        if state == DEAD:
            matched, opened = b"", False
        return self.frames.text(self.envelope, self.here, state, Tail(matched, closers, opened))

    def _misspells(self, byte: int) -> bool:
        """Whether all of the closer but its last byte stands there, the opener nowhere, and this isn't that byte."""
        node = self.node
        begun = bool(node.opener) and not self.tail.opened and self.tail.matched.endswith(node.closer[:-1])
        return begun and byte != node.closer[-1]

    def alive(self) -> bool:
        return self.way() is not None

    def way(self) -> bytes | None:
        """A shortest way to the end of the closer."""
        return self.frames.way(self)

    def lead(self) -> bytes:
        way = self.way()
        if way is None:
            raise GrammarUnsatisfiable("no text satisfies a raw parameter's schema")
        return way


class RawTexts:
    """The frames of raw text."""

    def __init__(self, store: Store) -> None:
        self.store = store.owned_by(self)
        self._texts: dict[tuple[EnvelopeFrames, Rest, int, Tail], RawText] = store.table()
        self._ways: dict[RawText, bytes | None] = store.memo()

    def text(self, envelope: EnvelopeFrames, here: Rest, state: int, tail: Tail) -> RawText:
        key = envelope, here, state, tail
        return self.store.local(self._texts, key, lambda: RawText(self, *key))

    def start(self, envelope: EnvelopeFrames, here: Rest) -> RawText:
        return self.text(envelope, here, envelope.machine(here).start, Tail())

    def _straight_way(self, start: RawText, closers: list[bytes]) -> bytes | None:
        """A shortest text of the machine, then a closer, where neither gets into the other's way."""
        text = start.machine.shortest(start.state) if start.state != DEAD and not start.tail.closers else None
        if text is None or not closers:
            return None
        way = text + min(closers, key=lambda closer: (len(closer), closer))
        here: RawText | Threads | None = start
        for byte in way:
            if not isinstance(here, RawText):
                return None
            here = here.after(byte)
        return None if here is None or isinstance(here, RawText) else way

    def way(self, start: RawText) -> bytes | None:
        """A shortest way to the end of the closer. Raises GaveUp."""
        if start in self._ways:
            return self._ways[start]
        closers = [text for text, after in start.envelope.ends(start.here).next.items() if after]
        answer = self._straight_way(start, closers)
        for likely in (b'\na "<', bytes(range(256))):
            answer = answer or self._searched(start, closers, likely)
        self._ways[start] = answer
        return answer

    def _searched(self, start: RawText, closers: list[bytes], likely: bytes) -> bytes | None:
        """A way of these bytes, and those of shortest texts. Raises GaveUp."""
        queue = deque([(start, b"")])
        reached = {start}
        while queue:
            here, text = queue.popleft()
            begun = set(here.tail.closers)
            if here.state != DEAD and here.machine.accepts(here.state) and not here.tail.matched:
                begun.add(b"")
            tails = [closer[len(b) :] for b in begun for closer in closers if closer.startswith(b)]
            if tails:
                return text + min(tails, key=lambda tail: (len(tail), tail))
            rest = here.machine.shortest(here.state) if here.state != DEAD else None
            spend(1 + len(likely) // 8)
            for byte in dict.fromkeys((rest or b"")[:1] + likely + here.node.closer[-1:]):
                after = here.after(byte)
                if isinstance(after, RawText) and after not in reached:
                    reached.add(after)
                    queue.append((after, text + bytes([byte])))
            if len(reached) > SEARCH:
                raise GaveUp
        return None
