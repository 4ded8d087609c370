"""Raw text up to a closer, under a machine that its text has to satisfy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imp_server.core import SPECIAL_CLOSE, SPECIAL_OPEN
from imp_server.grammar.frames.local import Listed
from imp_server.grammar.languages import envelope as env
from imp_server.grammar.machines.machine import DEAD, Machine

if TYPE_CHECKING:
    from imp_server.grammar.frames.scripts import Goals, Rest, Threads
    from imp_server.grammar.frames.space import Space

UNTYPED = (SPECIAL_OPEN[0], SPECIAL_CLOSE[0])


class RawEnds:
    """What can't stand in a raw text, each with what comes next: nothing where the text can't end so."""

    def __init__(self, following: dict[bytes, Threads], opener: bytes) -> None:
        """`opener`: what is looked for besides (envelope.Raw)."""
        self.next = following
        self.texts = [*following, *([opener] if opener else [])]
        self.letters = frozenset(b"".join(self.texts))
        ends = [text for text, after in following.items() if after]
        self.beginnings = frozenset(text[:n] for text in ends for n in range(1, len(text) + 1))


class RawText(Listed):
    """Raw text under a machine. `closers`: beginnings of the closer at its end, begun where the text might end."""

    __slots__ = ("closers", "goals", "here", "machine", "matched", "opened", "state")

    def __init__(
        self,
        space: Space,
        goals: Goals,
        here: Rest,
        machine: Machine,
        state: int,
        matched: bytes,
        closers: frozenset[bytes],
        opened: bool,
    ) -> None:
        """`matched`: the longest beginning of a closer at the end of the text, whether it may end there or not.

        `opened`: the node's opener stands in the text.
        """
        super().__init__(space)
        self.goals = goals
        self.here = here
        self.machine = machine
        self.state = state
        self.matched = matched
        self.closers = closers
        self.opened = opened

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
                found[byte] = self.goals.script(self.space, set(after))
        return found

    def after(self, byte: int) -> RawText | Threads | None:
        """The frame after a byte; what comes next where the closer is complete; None where the byte is impossible."""
        ends = self.goals.ends(self.here)
        closers, matched = frozenset[bytes](), b""
        before = DEAD if self._misspells(byte) else self.state
        if byte in ends.letters:
            begun = set(self.closers)
            if before != DEAD and self.machine.accepts(before):
                begun.add(b"")
            grown = [beginning + bytes([byte]) for beginning in begun]
            whole = [text for text in grown if ends.next.get(text)]
            if whole:
                return ends.next[whole[0]]
            closers = frozenset(beginning for beginning in grown if beginning in ends.beginnings)
            matched = longest_beginning(self.matched + bytes([byte]), ends.texts)
        state = DEAD if before == DEAD or byte in UNTYPED else self.machine.step(before, byte)
        if matched in ends.next or len(matched) >= self.guard:
            state = DEAD
        if state == DEAD and not closers:
            return None
        opened = self.opened or (bool(self.node.opener) and matched.endswith(self.node.opener))
        if state == DEAD:
            matched, opened = b"", False
        return self.space.raw_text(self.goals, self.here, self.machine, state, matched, closers, opened)

    def _misspells(self, byte: int) -> bool:
        """Whether all of the closer but its last byte stands there, the opener nowhere, and this isn't that byte."""
        node = self.node
        begun = bool(node.opener) and not self.opened and self.matched.endswith(node.closer[:-1])
        return begun and byte != node.closer[-1]

    def alive(self) -> bool:
        return self.way() is not None

    def way(self) -> bytes | None:
        """A shortest way to the end of the closer."""
        return self.goals.raw_way(self)

    def lead(self) -> bytes:
        way = self.way()
        assert way is not None
        return way


def longest_beginning(text: bytes, tags: list[bytes]) -> bytes:
    """The longest end of `text` that is a beginning of some tag (or a whole one)."""
    for at in range(len(text)):
        if any(tag.startswith(text[at:]) for tag in tags):
            return text[at:]
    return b""
