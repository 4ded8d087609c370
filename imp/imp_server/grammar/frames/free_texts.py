"""Free text up to a tag. When a tag counts is decided as plan_walk/walker.py decides it for the same tags."""

from __future__ import annotations

from imp_server.core import SPECIAL_CLOSE, SPECIAL_OPEN
from imp_server.grammar.frames.store import ListedFrame, Store
from imp_server.grammar.frames.threads import UNTYPED, EnvelopeFrames, Rest, SeenTag
from imp_server.grammar.languages import envelope as env


class FreeText(ListedFrame):
    """Free text. `past`: the first tokens are over."""

    __slots__ = ("envelope", "frames", "here", "past", "seen")

    def __init__(self, frames: FreeTexts, envelope: EnvelopeFrames, here: Rest, seen: SeenTag, past: bool) -> None:
        super().__init__(frames.store)
        self.frames = frames
        self.envelope = envelope
        self.here = here
        self.seen = seen
        self.past = past

    @property
    def node(self) -> env.Free:
        assert isinstance(self.here.node, env.Free)
        return self.here.node

    def entries(self) -> dict[int, int]:
        matched, tags = self.seen.matched, self.envelope.tags(self.node, self.past)
        inside = matched.rfind(SPECIAL_OPEN) > matched.rfind(SPECIAL_CLOSE)
        found: dict[int, int] = {}
        for byte in range(256):
            seen = tags.after(self.seen, matched + bytes([byte]))
            branch = tags.complete(seen)
            if branch is not None:
                found[byte] = self.envelope.read(branch.then, self.here.then)
            elif len(seen.matched) == len(matched) + 1 or (not inside and (seen.matched or byte not in UNTYPED)):
                found[byte] = self._at(seen, self.past).id
        return found

    def _at(self, seen: SeenTag, past: bool) -> FreeText:
        return self.frames.text(self.envelope, self.here, seen, past)

    def past_early(self) -> FreeText:
        """The same text once early tags don't count any more."""
        if self.past or not any(branch.early for branch in self.node.branches):
            return self
        return self._at(self.envelope.tags(self.node, True).after(self.seen, self.seen.matched), True)

    @property
    def end_result(self) -> int:
        return 0 if self.node.may_end and SPECIAL_OPEN not in self.seen.matched else -1

    def lead(self) -> bytes:
        def distance(branch: env.Branch) -> int:
            return len(branch.tag) + self.envelope.size(branch.then)

        branch = min((b for b in self.node.branches if not (b.at_start or b.early)), key=distance)
        matched = self.seen.matched
        return branch.tag[len(matched) if branch.tag.startswith(matched) else 0 :]


class FreeTexts:
    """The frames of free text."""

    def __init__(self, store: Store) -> None:
        self.store = store.owned_by(self)
        self._texts: dict[tuple[EnvelopeFrames, Rest, SeenTag, bool], FreeText] = store.table()

    def text(self, envelope: EnvelopeFrames, here: Rest, seen: SeenTag, past: bool) -> FreeText:
        key = envelope, here, seen, past
        return self.store.local(self._texts, key, lambda: FreeText(self, *key))

    def start(self, envelope: EnvelopeFrames, here: Rest) -> FreeText:
        return self.text(envelope, here, SeenTag(), False)
