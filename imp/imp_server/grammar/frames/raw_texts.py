"""Raw text up to a closer, under a machine that its text has to satisfy."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from imp_server.core import GrammarUnsatisfiable
from imp_server.core.turns import GaveUp, charge, spend
from imp_server.grammar.frames.store import ListedFrame, Store
from imp_server.grammar.frames.threads import UNTYPED, EnvelopeFrames, Rest, Threads, longest_beginning
from imp_server.grammar.languages import envelope as env
from imp_server.grammar.machines.machine import DEAD

SEARCH = 5_000
"""Frames looked at for a way to the end of a raw text."""
UNITS_PER_ROW, UNITS_PER_BYTE = 16, 2
"""Of what may follow one byte, and of telling where each byte leads."""
N_BYTES = 150
"""Memory of what is known of the way from one frame."""


class Tail(NamedTuple):
    """What counts of the end of a raw text."""

    matched: bytes = b""
    """The longest beginning of a closer there, whether the text may end or not."""
    closers: frozenset[bytes] = frozenset()
    """Beginnings of the closer there, begun where the text might end."""
    opened: bool = False
    """The node's opener stands in the text."""


class Link(NamedTuple):
    """Part of a way to the end."""

    text: bytes
    behind: RawText | None
    """From where it goes on; None: the end is reached."""


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
        """Bytes of one class of the machine are alike, but for those that a closer is written with."""
        known: dict[int, int | None] = {}
        found: dict[int, int] = {}
        spend(UNITS_PER_ROW)
        for byte, kind in enumerate(self._kinds()):
            if kind not in known:
                known[kind] = self._entry(byte)
            entry = known[kind]
            if entry is not None:
                found[byte] = entry
        return found

    def _kinds(self) -> list[int]:
        """By byte: what it is alike to."""
        apart = self.envelope.ends(self.here).letters | frozenset(UNTYPED)
        return [-1 - byte if byte in apart else kind for byte, kind in enumerate(self.machine.classes)]

    def different(self) -> bytes:
        """The first byte of each kind."""
        spend(UNITS_PER_ROW)
        first: dict[int, int] = {}
        for byte, kind in enumerate(self._kinds()):
            first.setdefault(kind, byte)
        return bytes(first.values())

    def _entry(self, byte: int) -> int | None:
        spend(UNITS_PER_BYTE)
        after = self.after(byte)
        if isinstance(after, RawText):
            return after.id if after.alive() else None
        return None if after is None else self.envelope.script(set(after))

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
        return self.frames.leads_on(self)

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
        self._links: dict[RawText, Link | None] = store.memo()
        """None: no way leads from there to the end."""

    def text(self, envelope: EnvelopeFrames, here: Rest, state: int, tail: Tail) -> RawText:
        key = envelope, here, state, tail
        return self.store.local(self._texts, key, lambda: RawText(self, *key))

    def start(self, envelope: EnvelopeFrames, here: Rest) -> RawText:
        return self.text(envelope, here, envelope.machine(here).start, Tail())

    def leads_on(self, start: RawText) -> bool:
        """Whether there is a way to the end of the closer. Raises GaveUp."""
        return self._link(start) is not None

    def way(self, start: RawText) -> bytes | None:
        """A short way to the end of the closer; None: there is none. Raises GaveUp."""
        if self._link(start) is None:
            return None
        parts: list[bytes] = []
        here: RawText | None = start
        while here is not None:
            link = self._link(here)
            assert link is not None
            spend(len(parts) % 16 == 0)
            parts.append(link.text)
            here = link.behind
        return b"".join(parts)

    def _link(self, start: RawText) -> Link | None:
        if start not in self._links:
            closers = [text for text, after in start.envelope.ends(start.here).next.items() if after]
            if not self._linked_straight(start, closers):
                text: bytes | None = None
                for likely in (b'\na "<', start.different()):
                    text = text or self._searched(start, closers, likely)
                charge(N_BYTES + len(text or b""), 1)
                self._links[start] = None if text is None else Link(text, None)
        return self._links[start]

    def _linked_straight(self, start: RawText, closers: list[bytes]) -> bool:
        """Whether a shortest text of the machine, then a closer, where neither gets into the other's way, is a way."""
        text = start.machine.shortest(start.state) if start.state != DEAD and not start.tail.closers else None
        if text is None or not closers:
            return False
        way = text + min(closers, key=lambda closer: (len(closer), closer))
        path, end = [start], len(way) - 1
        for at, byte in enumerate(way):
            spend(UNITS_PER_BYTE)
            here = path[-1].after(byte)
            if not isinstance(here, RawText):
                if here is None or at != end:
                    return False
                break
            path.append(here)
            if self._links.get(here) is not None:
                break
        else:
            return False
        charge(N_BYTES * len(path), 1 + len(path) // 4)
        behind = path.pop() if len(path) > 1 and path[-1] in self._links else None
        for at in range(len(path) - 1, -1, -1):
            self._links[path[at]] = Link(way[at : at + 1], behind)
            behind = path[at]
        return True

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
            spend(1 + UNITS_PER_BYTE * len(likely))
            for byte in dict.fromkeys((rest or b"")[:1] + likely + here.node.closer[-1:]):
                after = here.after(byte)
                if isinstance(after, RawText) and after not in reached:
                    reached.add(after)
                    queue.append((after, text + bytes([byte])))
            if len(reached) > SEARCH:
                raise GaveUp
        return None
