"""The grammar of a reply that may hold calls and is free besides, made from the segments of its own OutputPlan.

What begins a call is said once, by the segments: the walker (plan_walk/) opens a call where one of their openers
counts, and the grammar made of them binds from there on. So neither binds what the other takes for text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from imp_server.core import SPECIAL_CLOSE, SPECIAL_OPEN, Segment
from imp_server.grammar.languages.envelope import Alt, Branch, End, Free, Lit, Node, Parts, Ref, Repeat, Seq, Value
from imp_server.text.tools.spelling import Section


class _Place(NamedTuple):
    """A segment, and the segments that can't be opened any more."""

    segment: int
    spent: frozenset[int]


def free_reply(
    segments: Sequence[Segment], start: int, sections: Sequence[Section], *, many: bool, turn: bytes = b""
) -> Parts:
    """`sections`: what follows the openers of the call segments, each opener by its text. `many`: calls in a reply.

    `turn`: what a message of a channel begins with. Behind a thinking closed by force a message has to follow that is
    no thinking.
    """
    return _Reply(segments, sections, many).parts(start, turn)


def plain_text(tag: bytes) -> bytes:
    """Marked bytes as the text they show: the same for both spellings of a tag."""
    return tag.replace(SPECIAL_OPEN, b"").replace(SPECIAL_CLOSE, b"")


class _Reply:
    """Owner of the parts made so far, each under what it stands for."""

    def __init__(self, segments: Sequence[Segment], sections: Sequence[Section], many: bool) -> None:
        self._segments = segments
        self._sections = {plain_text(o): i for i, s in enumerate(sections) for o in (s.opener, *s.also)}
        self._listed = sections
        self._many = many
        self._numbers: dict[object, int] = {}
        self._parts: list[Node] = []

    def parts(self, start: int, turn: bytes) -> Parts:
        visited = frozenset({start}) if self._segments[start].max_visits == 1 else frozenset[int]()
        first = self._text(_Place(start, visited)).part
        after_closing = self._after_closing(turn) if turn else -1
        return Parts(tuple(self._parts), first, after_closing)

    def _after_closing(self, turn: bytes) -> int:
        place = _Place(0, frozenset())
        options: list[Node] = []
        for index, opened in enumerate(self._segments):
            if 0 in opened.opens_from and opened.kind != "think":
                openers = [o for o in opened.openers if o.startswith(turn)]
                options += [Seq((Lit(o), self._opened(place, index, o))) for o in openers]
        number = self._new("after closing")
        self._parts[number] = Alt(tuple(options))
        return number

    def _text(self, place: _Place) -> Ref:
        if place in self._numbers:
            return Ref(self._numbers[place])
        number = self._new(place)
        may_end = self._segments[place.segment].kind == "answer"
        self._parts[number] = Free(tuple(self._branches(place)), may_end)
        return Ref(number)

    def _branches(self, place: _Place) -> Iterator[Branch]:
        """In the order in which the walker asks."""
        here = self._segments[place.segment]
        for closer in here.closers:
            yield Branch(closer, self._text(place._replace(segment=here.closes_to)) if here.closes_to >= 0 else End())
        for index, other in enumerate(self._segments):
            if place.segment not in other.opens_from or index in place.spent:
                continue
            for opener in other.openers:
                yield Branch(opener, self._opened(place, index, opener), other.at_start, other.scan_tokens >= 0)

    def _opened(self, place: _Place, index: int, opener: bytes) -> Ref:
        """What follows an opener of segment `index`."""
        other = self._segments[index]
        if other.kind == "call":
            return self._call(other, opener, place)
        return self._text(_Place(index, place.spent | {index} if other.max_visits == 1 else place.spent))

    def _call(self, segment: Segment, opener: bytes, place: _Place) -> Ref:
        """Behind a call no opener counts that is looked for in the first tokens only."""
        early = {i for i, other in enumerate(self._segments) if other.scan_tokens >= 0}
        back = _Place(segment.closes_to, place.spent | early)
        section = self._sections[plain_text(opener)]
        if (section, back) in self._numbers:
            return Ref(self._numbers[section, back])
        number = self._new((section, back))
        found = self._listed[section]
        rest = self._shared(found.rest)
        if not (self._many and found.repeats):
            self._parts[number] = Seq((rest, End()))
        elif back.segment >= 0:
            self._parts[number] = Seq((rest, self._text(back)))
        else:  # nothing closes the segment, so nothing but more calls can follow
            self._parts[number] = Seq((rest, Repeat(Seq((Lit(found.opener), rest)))))
        return Ref(number)

    def _shared(self, node: Node) -> Node:
        """With each schema, which several openers may lead to, in a part of its own: it is checked and made once."""
        match node:
            case Value():
                known = self._numbers.get(("schema", id(node.schema)))
                if known is None:
                    known = self._new(("schema", id(node.schema)))
                    self._parts[known] = node
                return Ref(known)
            case Seq():
                return Seq(tuple(self._shared(part) for part in node.parts))
            case Alt():
                return Alt(tuple(self._shared(option) for option in node.options))
            case Repeat():
                return Repeat(self._shared(node.part), node.low, node.high, node.between)
            case _:
                return node

    def _new(self, what: object) -> int:
        self._numbers[what] = len(self._parts)
        self._parts.append(End())
        return self._numbers[what]
