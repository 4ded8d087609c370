"""Free text up to a tag. When a tag counts is decided as output/walker.py decides it for the same tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from imp_server.core import SPECIAL_CLOSE, SPECIAL_OPEN
from imp_server.grammar.frames.local import Listed
from imp_server.grammar.frames.raw_texts import UNTYPED
from imp_server.grammar.languages import envelope as env

if TYPE_CHECKING:
    from imp_server.grammar.frames.scripts import Goals, Rest
    from imp_server.grammar.frames.space import Space


class Seen(NamedTuple):
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

    def after(self, seen: Seen, text: bytes) -> Seen:
        """`text`: what `seen` has matched, and perhaps one byte more."""
        anywhere, at_start = self._beginnings
        for at in range(len(text)) if text[-1:] in self._letters else ():
            blank = seen.blank and not text[:at].strip()
            if text[at:] in anywhere or (blank and text[at:] in at_start):
                return Seen(text[at:], blank)
        return Seen(b"", seen.blank and not text.strip())

    def complete(self, seen: Seen) -> env.Branch | None:
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


class FreeText(Listed):
    """Free text. `past`: the first tokens are over."""

    __slots__ = ("goals", "here", "past", "seen")

    def __init__(self, space: Space, goals: Goals, here: Rest, seen: Seen, past: bool) -> None:
        super().__init__(space)
        self.goals = goals
        self.here = here
        self.seen = seen
        self.past = past

    @property
    def node(self) -> env.Free:
        assert isinstance(self.here.node, env.Free)
        return self.here.node

    def entries(self) -> dict[int, int]:
        matched, tags = self.seen.matched, self.goals.tags(self.node, self.past)
        inside = matched.rfind(SPECIAL_OPEN) > matched.rfind(SPECIAL_CLOSE)
        found: dict[int, int] = {}
        for byte in range(256):
            seen = tags.after(self.seen, matched + bytes([byte]))
            branch = tags.complete(seen)
            if branch is not None:
                found[byte] = self.goals.read(self.space, branch.then, self.here.then)
            elif len(seen.matched) == len(matched) + 1 or (not inside and (seen.matched or byte not in UNTYPED)):
                found[byte] = self._at(seen, self.past).id
        return found

    def _at(self, seen: Seen, past: bool) -> FreeText:
        return self.space.free_text(self.goals, self.here, seen, past)

    def past_early(self) -> FreeText:
        """The same text once early tags don't count any more."""
        if self.past or not any(branch.early for branch in self.node.branches):
            return self
        return self._at(self.goals.tags(self.node, True).after(self.seen, self.seen.matched), True)

    @property
    def end_result(self) -> int:
        return 0 if self.node.may_end and SPECIAL_OPEN not in self.seen.matched else -1

    def lead(self) -> bytes:
        def distance(branch: env.Branch) -> int:
            return len(branch.tag) + self.goals.size(self.space, branch.then)

        branch = min((b for b in self.node.branches if not (b.at_start or b.early)), key=distance)
        matched = self.seen.matched
        return branch.tag[len(matched) if branch.tag.startswith(matched) else 0 :]
