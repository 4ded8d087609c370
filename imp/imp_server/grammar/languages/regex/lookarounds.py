"""Lookarounds anywhere in a pattern, word boundaries and anchors among them, exactly: the alternating automaton.

Each lookaround becomes a *mark*, one byte of the pattern's own automaton that takes no text: the pattern matches a text
if marks can be put into it so that the automaton accepts, and each is true where it stands. What lies behind is known
there: the bodies of lookbehinds run along from the beginning of the text. What lies ahead becomes a *duty*: its body
runs along from there, and at the end must have matched, or must not. Bodies may hold lookarounds, too.

Owner of nothing but its states; the slow twin is Python's `re` (tests/grammar/test_lookarounds.py).
"""

from __future__ import annotations

from typing import NamedTuple

from imp_server.core import GrammarRefused
from imp_server.core.turns import charge, kept, spend
from imp_server.grammar.languages.regex.parser import parse
from imp_server.grammar.languages.regex.tree import Alt, Begin, Cat, Chars, End, Look, Repeat, Tree, flat
from imp_server.grammar.machines.ambiguity import excessive
from imp_server.grammar.machines.codepoints import ANY
from imp_server.grammar.machines.explored import explore, refined
from imp_server.grammar.machines.lengths import with_length
from imp_server.grammar.machines.machine import DEAD, GROWING, UNBOUNDED, Machine
from imp_server.grammar.machines.memo import remembered
from imp_server.grammar.machines.nodes import INFINITE, Node, Nodes
from imp_server.grammar.machines.terms import TermMachine
from imp_server.grammar.machines.tracked import Mark, tracked_machine

MARK = 0x80
"""The byte of the first mark. Where a character ends, text has no continuation bytes."""
MAX_MARKS = 64
MAX_WORK = 150_000
"""Steps of parts while the automaton is explored."""


N_BYTES, N_BYTES_WAY = 900, 400
"""Memory of a state, and of each way in it and in its duties."""


class LookDuty(NamedTuple):
    """What must, or must not, match from a place that was passed."""

    body: int
    wanted: bool
    ways: frozenset[LookReading]


class LookReading(NamedTuple):
    """One reading of the text so far: a state of the body's automaton, and what the text ahead owes it."""

    state: int
    duties: frozenset[LookDuty]


class LookState(NamedTuple):
    due: int
    """Continuation bytes still to come of the character begun."""
    behind: tuple[frozenset[LookReading], ...]
    """Per body: how a lookbehind's text could have come so far. Empty for those of lookaheads."""
    ways: frozenset[LookReading]


Ways = frozenset[LookReading]
NO_DUTIES: frozenset[LookDuty] = frozenset()


class Bodies:
    """Owner of the marks of one pattern and of the bodies they stand for."""

    def __init__(self, pattern: str) -> None:
        self._shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
        self.nodes = Nodes()
        self.marks: list[Mark] = []
        self.roots: list[Node] = []
        self._numbers: dict[Mark, int] = {}
        self._bodies: dict[tuple[int, bool], int] = {}

    def refuse(self, what: str) -> GrammarRefused:
        return GrammarRefused(f"pattern {self._shown!r}: {what}")

    def node(self, tree: Tree, in_behind: bool = False) -> Node:
        """The expression of a tree, marks in the place of lookarounds and anchors."""
        nodes = self.nodes
        if isinstance(tree, Chars):
            return nodes.chars(tree.ranges)
        if isinstance(tree, Begin):
            return self._mark(Look(Chars(ANY), False, False, 0), in_behind)
        if isinstance(tree, End):
            return self._mark(Look(Chars(ANY), True, False, 0), in_behind)
        if isinstance(tree, Look):
            return self._mark(tree, in_behind)
        if isinstance(tree, Repeat):
            return nodes.loop(self.node(tree.body, in_behind), tree.low, tree.high)
        if isinstance(tree, Alt):
            return nodes.either(self.node(option, in_behind) for option in tree.options)
        return nodes.sequence(self.node(part, in_behind) for part in tree.parts)

    def _mark(self, look: Look, in_behind: bool) -> Node:
        if in_behind and look.ahead:
            raise self.refuse(f"a lookbehind that looks ahead isn't supported, at character {look.at}")
        mark = Mark(self._body(look), look.ahead, look.wanted)
        number = self._numbers.setdefault(mark, len(self.marks))
        if number == len(self.marks):
            if number == MAX_MARKS:
                raise self.refuse(f"more than {MAX_MARKS} lookarounds aren't supported")
            self.marks.append(mark)
            # a character that ends in the mark's byte, so that the classes of bytes tell the marks apart
            self.nodes.chars(((MARK + number, MARK + number),))
        return self.nodes.remainder(1, ((number, number),))

    def _body(self, look: Look) -> int:
        nodes = self.nodes
        body = self.node(look.body, not look.ahead)
        # known by the expression, as trees of different kinds may compare equal
        number = self._bodies.setdefault((body.id, look.ahead), len(self.roots))
        if number == len(self.roots):
            self.roots.append(nodes.sequence([body, nodes.anything] if look.ahead else [nodes.anything, body]))
        return number


class Looking:
    """Deterministic automaton of a pattern with marks. Its states may be dead ends: explore it before use."""

    def __init__(self, bodies: Bodies, root: Node) -> None:
        """Raises GrammarRefused for parts that can be read in too many ways."""
        self._refuse = bodies.refuse
        self._marks = bodies.marks
        self._parts = [self._part(bodies, node) for node in (*bodies.roots, root)]
        self._main = len(self._parts) - 1
        self._is_behind = [False] * len(self._parts)
        for mark in self._marks:
            self._is_behind[mark.body] |= not mark.ahead
        self.classes = refined([m.classes for m in self._parts])
        self._work_left: int | None = None
        self._states: list[LookState] = []
        self._numbers: dict[LookState, int] = {}
        self._rows: list[dict[int, int]] = []
        begun = tuple(
            self._begun(body) if known else frozenset[LookReading]() for body, known in enumerate(self._is_behind)
        )
        self.start = self._settled(0, begun, self._begun(self._main))

    def _part(self, bodies: Bodies, node: Node) -> TermMachine:
        if excessive(node):
            raise bodies.refuse("it can be read in thousands of ways at once; anchor it, or lower its counts")
        return TermMachine(bodies.nodes, node)

    def allow(self, work: int | None) -> None:
        """Refuse what takes more steps of parts than that; None: whoever asks pays for them as it goes along."""
        self._work_left = work

    # --- the Machine protocol ---------------------------------------------------------------

    def step(self, state: int, byte: int) -> int:
        row, kind = self._rows[state], self.classes[byte]
        target = row.get(kind)
        if target is None:
            with GROWING:
                target = row[kind] = self._step(self._states[state], byte)
            kept()
        return target

    def accepts(self, state: int) -> bool:
        here = self._states[state]
        return here.due == 0 and self._accepts(self._main, here.ways)

    def live(self, state: int) -> bool:
        return state != DEAD

    def universal(self, state: int) -> bool:
        """Whether every text is accepted from here."""
        return self._states[state].due == 0 and self._is_universal(self._main, self._states[state].ways)

    def room(self, state: int) -> int:
        return UNBOUNDED if self.universal(state) else 0

    def shortest(self, state: int) -> bytes | None:
        """A guess: what the pattern's automaton alone would need, without its marks."""
        here = self._states[state]
        found = [self._parts[self._main].shortest(way.state) for way in here.ways]
        best = min((text for text in found if text is not None), key=len, default=None)
        return None if best is None else _without_marks(best, here.due)

    # --- steps ------------------------------------------------------------------------------

    def _step(self, here: LookState, byte: int) -> int:
        due = _due_after(here.due, byte)
        if due < 0:
            return DEAD
        known: dict[tuple[int, Ways], Ways] = {}
        behind = tuple(self._moved(body, ways, byte, known) for body, ways in enumerate(here.behind))
        return self._settled(due, behind, self._moved(self._main, here.ways, byte, known))

    def _moved(self, body: int, ways: Ways, byte: int, known: dict[tuple[int, Ways], Ways]) -> Ways:
        """The ways behind a byte, marks not yet put."""
        found = known.get((body, ways))
        if found is None:
            self._pay(len(ways))
            part = self._parts[body]
            after = ((part.step(way.state, byte), way.duties) for way in ways)
            found = known[body, ways] = frozenset(
                LookReading(state, frozenset(d._replace(ways=self._moved(d.body, d.ways, byte, known)) for d in duties))
                for state, duties in after
                if state != DEAD
            )
        return found

    def _settled(self, due: int, behind: tuple[Ways, ...], ways: Ways) -> int:
        """The state with all marks put that can stand here."""
        if due == 0:
            done: list[Ways] = []
            truths: list[bool] = []
            closed: dict[tuple[int, Ways], Ways] = {}
            for body, came in enumerate(behind):
                done.append(self._closed(body, came, truths, closed) if self._is_behind[body] else came)
                truths.append(self._accepts(body, done[-1]))
            behind = tuple(done)
            ways = self._closed(self._main, ways, truths, closed)
            if self._is_universal(self._main, ways):
                behind = ()
        if not ways:
            return DEAD
        state = LookState(due, behind, ways)
        number = self._numbers.get(state)
        if number is None:
            charge(N_BYTES + N_BYTES_WAY * _n_ways(state), 2 + _n_ways(state) // 2)
            number = self._numbers[state] = len(self._states)
            self._states.append(state)
            self._rows.append({})
        return number

    def _closed(self, body: int, ways: Ways, truths: list[bool], closed: dict[tuple[int, Ways], Ways]) -> Ways:
        """`ways` and those that marks lead to; duties that are met or broken for good are gone."""
        found = closed.get((body, ways))
        if found is not None:
            return found
        reached: dict[LookReading, None] = {}
        todo = [w for way in ways if (w := self._with_duties(way, truths, closed)) is not None]
        part = self._parts[body]
        while todo:
            way = todo.pop()
            if way in reached:
                continue
            self._pay(1 + len(self._marks) // 2)
            reached[way] = None
            for number, mark in enumerate(self._marks):
                state = part.step(way.state, MARK + number)
                if state == DEAD or (not mark.ahead and truths[mark.body] != mark.wanted):
                    continue
                duties = way.duties
                if mark.ahead:
                    duty = self._kept(mark.body, mark.wanted, self._begun(mark.body), truths, closed)
                    if duty is False:
                        continue
                    duties = duties if duty is True else duties | {duty}
                todo.append(LookReading(state, duties))
        closed[body, ways] = found = self._fewest(body, reached)
        return found

    def _with_duties(
        self, way: LookReading, truths: list[bool], closed: dict[tuple[int, Ways], Ways]
    ) -> LookReading | None:
        duties: set[LookDuty] = set()
        for duty in way.duties:
            kept = self._kept(duty.body, duty.wanted, duty.ways, truths, closed)
            if kept is False:
                return None
            if kept is not True:
                duties.add(kept)
        return LookReading(way.state, frozenset(duties))

    def _kept(
        self, body: int, wanted: bool, ways: Ways, truths: list[bool], closed: dict[tuple[int, Ways], Ways]
    ) -> LookDuty | bool:
        """The duty, or whether it is met whatever follows (True) or can't be met (False)."""
        ways = self._closed(body, ways, truths, closed)
        if not ways:
            return not wanted
        return wanted if self._is_universal(body, ways) else LookDuty(body, wanted, ways)

    def _fewest(self, body: int, ways: dict[LookReading, None]) -> Ways:
        """Without the ways that owe more than another one in the same state, or than one that takes any text."""
        least: dict[int, list[frozenset[LookDuty]]] = {}
        for way in sorted(ways, key=lambda w: len(w.duties)):
            if not way.duties and self._parts[body].universal(way.state):
                return frozenset([way])
            kept = least.setdefault(way.state, [])
            if not any(duties <= way.duties for duties in kept):
                kept.append(way.duties)
        return frozenset(LookReading(state, duties) for state, kept in least.items() for duties in kept)

    def _begun(self, body: int) -> Ways:
        start = self._parts[body].start
        return frozenset([LookReading(start, NO_DUTIES)]) if start != DEAD else frozenset()

    def _accepts(self, body: int, ways: Ways) -> bool:
        part = self._parts[body]
        return any(
            part.accepts(way.state) and all(self._accepts(d.body, d.ways) == d.wanted for d in way.duties)
            for way in ways
        )

    def _is_universal(self, body: int, ways: Ways) -> bool:
        return any(not way.duties and self._parts[body].universal(way.state) for way in ways)

    def _pay(self, n: int) -> None:
        charge(N_BYTES_WAY * n // 4, 1 + n)
        if self._work_left is not None:
            self._work_left -= n
            if self._work_left < 0:
                raise self._refuse(f"its lookarounds take more than {MAX_WORK} steps to combine; simplify them")


class _Asked(NamedTuple):
    """What is asked of a pattern: anchors at its edges say whether the text is more than the match."""

    parts: tuple[Tree, ...]
    more_before: bool
    more_behind: bool


def _asked(pattern: str, search: bool) -> _Asked:
    parts = flat(parse(pattern))
    first, end = 0, len(parts)
    while first < end and isinstance(parts[first], Begin):
        first += 1
    while end > first and isinstance(parts[end - 1], End):
        end -= 1
    return _Asked(tuple(parts[first:end]), search and not first, search and end == len(parts))


def _counted(asked: _Asked, bodies: Bodies) -> Repeat | None:
    """The loop over single characters that is all of the pattern: its counts are those of the text."""
    loop = asked.parts[0] if len(asked.parts) == 1 and not (asked.more_before or asked.more_behind) else None
    if not isinstance(loop, Repeat) or (loop.low <= 1 and loop.high in (1, INFINITE)):
        return None
    return loop if bodies.node(loop.body).spread[:2] == (1, 1) else None


def _read(pattern: str, search: bool, *, any_count: bool) -> tuple[Bodies, Node]:
    """`any_count`: the loop that is the pattern as often as one likes."""
    bodies, asked = Bodies(pattern), _asked(pattern, search)
    nodes = bodies.nodes
    loop = asked.parts[0] if any_count else None
    if isinstance(loop, Repeat):
        return bodies, nodes.loop(bodies.node(loop.body), 0, INFINITE)
    edges = [[nodes.anything] if more else [] for more in (asked.more_before, asked.more_behind)]
    return bodies, nodes.sequence([*edges[0], *map(bodies.node, asked.parts), *edges[1]])


@remembered(maxsize=32)
def _looking(pattern: str, search: bool, any_count: bool) -> Looking:
    """Known again when a turn ran out in the middle of its exploration: what it has found isn't lost."""
    return Looking(*_read(pattern, search, any_count=any_count))


def looking_machine(pattern: str, search: bool) -> Machine:
    """The texts in which the pattern is found (`search`) or which it matches as a whole. Raises GrammarRefused."""
    loop = _counted(_asked(pattern, search), Bodies(pattern))
    if loop is not None:
        try:
            inner = _machine(pattern, search, any_count=True)
            return with_length(inner, loop.low, None if loop.high == INFINITE else loop.high)
        except GrammarRefused:
            pass  # counting doesn't tell its dead ends
    return _machine(pattern, search, any_count=False)


def _machine(pattern: str, search: bool, *, any_count: bool) -> Machine:
    bodies, root = _read(pattern, search, any_count=any_count)
    sets = tracked_machine(root, bodies.marks, bodies.roots)
    if sets is not None:
        return sets
    looking = _looking(pattern, search, any_count)

    def step(state: int, byte: int) -> int | None:
        target = looking.step(state, byte)
        return None if target == DEAD else target

    looking.allow(MAX_WORK)
    try:
        return explore(looking.start, looking.classes, step, looking.accepts, looking.universal, "the pattern")
    except GrammarRefused:
        # each state would have to be proved by a search, and no bound is known for how many a mask meets
        what = "its lookarounds take too many states to combine; simplify them, or lower its counts"
        raise bodies.refuse(what) from None


def _n_ways(state: LookState) -> int:
    return sum(map(_ways_in, (*state.behind, state.ways)))


def _ways_in(ways: Ways) -> int:
    return sum(1 + sum(_ways_in(duty.ways) for duty in way.duties) for way in ways)


def has_lookarounds(tree: Tree) -> bool:
    spend()
    if isinstance(tree, Look):
        return True
    if isinstance(tree, Repeat):
        return has_lookarounds(tree.body)
    inner = tree.parts if isinstance(tree, Cat) else tree.options if isinstance(tree, Alt) else ()
    return any(has_lookarounds(part) for part in inner)


def _due_after(due: int, byte: int) -> int:
    """Continuation bytes due behind this byte; negative if it can't stand here."""
    if 0x80 <= byte < 0xC0:
        return due - 1
    if due or byte >= 0xF8:
        return -1
    return 0 if byte < 0x80 else 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3


def _without_marks(text: bytes, due: int) -> bytes:
    out = bytearray()
    for byte in text:
        after = _due_after(due, byte)
        if after >= 0:
            out.append(byte)
            due = after
    return bytes(out)
