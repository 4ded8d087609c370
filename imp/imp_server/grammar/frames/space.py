"""The space: everything interned that masks and advances are made of. Shared by all grammars of an engine.

Owner of the tables, the locals, the formulas and the solver. Content is interned by what it means, so two schemas
with the same subschema share its states, transitions and masks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar, cast

from imp_server.core import GrammarRefused
from imp_server.core.turns import GaveUp, OverBudget, charge, kept, spend
from imp_server.grammar.frames.arrays import ArrayPhase, ArrayState, WaitingItem
from imp_server.grammar.frames.arrays import Phase as ArrayAt
from imp_server.grammar.frames.free_texts import FreeText, Seen
from imp_server.grammar.frames.goals import Goal, Judge, is_open
from imp_server.grammar.frames.key_texts import KeyText, WaitingKey, WaitingName
from imp_server.grammar.frames.keys import Keys
from imp_server.grammar.frames.local import N_BLANKS, AfterGap, Gap, Local
from imp_server.grammar.frames.objects import Colon, ObjectPhase, ObjectState, WaitingMember
from imp_server.grammar.frames.objects import Phase as ObjectAt
from imp_server.grammar.frames.position_texts import PositionTexts, machine_of
from imp_server.grammar.frames.raw_texts import RawText
from imp_server.grammar.frames.scripts import AfterValue, Goals, Rest, Script, Threads
from imp_server.grammar.frames.shapes import Shape
from imp_server.grammar.frames.simple_objects import (
    AFTER_GAP,
    COLON,
    COLON_TIGHT,
    PHASES,
    WAITING_KEY,
    WAITING_MEMBER,
    SimpleObjects,
)
from imp_server.grammar.frames.tables import FOREIGN, POP, Tables
from imp_server.grammar.frames.texts import Closer, Escape, Host, Text, utf8_blocks
from imp_server.grammar.frames.values import (
    Done,
    Ended,
    LooseEnd,
    LooseStart,
    Root,
    Scalar,
    Start,
    Word,
    first_bytes,
    shortest,
)
from imp_server.grammar.frames.verdicts import Several, Single, Told, Verdicts
from imp_server.grammar.machines.abi import grammar_library
from imp_server.grammar.machines.combine import anything, nothing
from imp_server.grammar.machines.giving_up import dropped, emptied, part
from imp_server.grammar.machines.machine import DEAD, Machine
from imp_server.grammar.machines.plain_length import PlainLength
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.formula import Formula
from imp_server.grammar.values.leaves import NUMBER, STRING, Leaf, Props
from imp_server.grammar.values.sat.found import Found
from imp_server.grammar.values.sat.solver import Solver
from imp_server.grammar.values.sat.tags import is_listed
from imp_server.grammar.values.scalars import in_digits, is_finite, number_machine, string_machine, watched_number

N_LOCALS = 1 << 18
N_BYTES, N_BYTES_LOCAL, N_BYTES_VIEW, N_BYTES_NATIVE = 600, 1700, 300, 1200
"""Memory of something interned, of a frame with its row, of a native frame's twin, and of a native frame."""

MakeMachine = Callable[[Algebra, Formula], Machine]
T = TypeVar("T")
L = TypeVar("L", bound=Local)
S = TypeVar("S", Text, Scalar)


class Locals(dict[int, Local]):
    """The frames by number; those that native code has made are there as soon as somebody looks."""

    def __init__(self, adopt: Callable[[int], Local]) -> None:
        super().__init__()
        self._adopt = adopt

    def __missing__(self, local: int) -> Local:
        found = self[local] = self._adopt(local)
        return found


class Space:
    """Owner of what is interned: tables, locals, formulas, object and array states, machines."""

    def __init__(self, n_locals: int = N_LOCALS, native: bool = True, n_blanks: int = N_BLANKS) -> None:
        """`n_locals`: room for this many locals is reserved (not touched) at once. `native`: where it is built.

        `n_blanks`: most blanks in a row outside strings; 0 allows no newline, either.
        """
        self.n_blanks = n_blanks
        self.algebra = Algebra()
        self.solver = Solver(self.algebra)
        self.simple: SimpleObjects | None = None
        self.tables = Tables(self._fill, n_locals)
        self.locals = Locals(self._adopt)
        self._claimed = -1
        self._made: dict[Hashable, Any] = {}
        self._keys: list[Keys] = []
        self._first: dict[Goal, dict[int, int]] = {}
        self._shortest: dict[Goal, Found | None] = {}
        self._code_points: dict[tuple[Verdicts, int, int, int], bool] = {}
        self.done = self._local(("done",), lambda: Done(self))
        self.ended = self._local(("ended",), lambda: Ended(self))
        self.root = self._local(("root",), lambda: Root(self))
        self._position_texts: PositionTexts | None = None
        if native and grammar_library() is not None:
            self.simple = SimpleObjects(self)
            self._position_texts = PositionTexts(self.tables)

    def given_up(self) -> Iterator[None]:
        """Take everything apart, a piece at each step. Nobody uses it any more."""
        yield from emptied(self.locals, self._made)
        while self._keys:
            part(self._keys.pop())
            yield
        yield from dropped(self._first, self._shortest, self._code_points)
        yield from self.solver.given_up()
        yield from self.algebra.given_up()
        for thing in (self.simple, self._position_texts, self.tables, self.locals, self):
            part(thing)
            yield

    def _local(self, key: Hashable, make: Callable[[], L]) -> L:
        found = self._made.get(key)
        if found is None:
            charge(N_BYTES_LOCAL, 3)
            found = self._made[key] = make()
            self.locals[found.id] = found
        return cast(L, found)

    def claim(self, n_rows: int) -> int:
        """The number of a frame that is being made."""
        claimed, self._claimed = self._claimed, -1
        if claimed >= 0:
            return claimed
        charge(N_BYTES_LOCAL * (n_rows - 1), n_rows - 1)
        return self.tables.new_local(n_rows)

    def _adopt(self, local: int) -> Local:
        """The frame of a local that native code has made."""
        assert self.simple is not None
        make = self.simple.view(local, self.tables.kind_of[local])
        charge(N_BYTES_VIEW, 3)
        self._claimed = local
        try:
            return make()
        finally:
            self._claimed = -1

    def _fill(self, local: int, byte: int) -> int:
        try:
            return self._filled(local, byte)
        except OverBudget as over:
            over.stands(self.place(local))
            raise

    def place(self, local: int) -> str | None:
        """JSON pointer of what a frame reads, where one is known."""
        frame = self.locals[local]
        verdicts = getattr(frame, "verdicts", None)
        goal = getattr(getattr(frame, "state", frame), "goal", None)
        if verdicts is not None:
            keys = (key for key, made in self._made.items() if made is verdicts and isinstance(key, tuple))
            goal = next((key[2] for key in keys if key[0] == "verdicts"), None)
        return self.algebra.place_of(goal.must) if isinstance(goal, Goal) else None

    def _filled(self, local: int, byte: int) -> int:
        if self.tables.kind_of[local] == FOREIGN:
            spend(2)
            entry = self.locals[local].fill(byte)
            kept()
            return entry
        assert self.simple is not None
        before = self.tables.n_locals
        self.simple.fill(local)
        n_new = self.tables.n_locals - before
        charge(N_BYTES_NATIVE * n_new, 1 + n_new)
        return int(self.tables.rows[local, byte])

    def _native(self, kind: int, a: int, b: int = 0) -> Local:
        assert self.simple is not None
        return self.locals[self.simple.local(kind, a, b)]

    def _number(self, state: ObjectState) -> int:
        """Of a simple object known to native code; else -1."""
        return -1 if self.simple is None else self.simple.number(state)

    def _get(self, key: Hashable, make: Callable[[], T]) -> T:
        found = self._made.get(key)
        if found is None:
            charge(N_BYTES)
            found = self._made[key] = make()
        return cast(T, found)

    # --- goals ------------------------------------------------------------------------------

    def goal(self, must: Formula, watches: tuple[Formula, ...] = (), judge: Judge | None = None) -> Goal:
        return self._get(("goal", must, watches, judge), lambda: Goal(must, watches, judge))

    def typed(self, goal: Goal, kind: int) -> Goal | None:
        """What the goal asks of a value of one type; None if it forbids the type."""
        restrict = self.algebra.formulas.restrict
        must = restrict(goal.must, kind)
        if must is self.algebra.formulas.false:
            return None
        return self.goal(must, tuple(restrict(w, kind) for w in goal.watches), goal.judge)

    def need(self, goal: Goal, ask: Callable[[Formula], Found | None] | None = None) -> Formula:
        """All that a value has to satisfy: what the goal asks, and what its parent can't do without.

        `ask`: for what completes the value under a formula; without it any truths of the watches are thought possible.
        """
        if goal.judge is None:
            return goal.must
        conj = self.algebra.formulas.conj
        possible = None if ask is None else lambda f: ask(conj([goal.must, f]))
        return conj([goal.must, goal.judge.allowed(goal.watches, possible)])

    def shortest_value(self, goal: Goal) -> Found | None:
        """None: there is none. Raises GaveUp."""
        if goal not in self._shortest:
            self._shortest[goal] = self.solver.proved(lambda: self._found(goal), goal.must)
        return self._shortest[goal]

    def _found(self, goal: Goal) -> Found | None:
        return shortest(self, goal) if goal.is_wide else self.solver.value(self.need(goal))

    def first_bytes(self, goal: Goal) -> dict[int, int]:
        """First byte of a value -> number of the local it leads to."""
        found = self._first.get(goal)
        if found is None:
            found = self._first[goal] = first_bytes(self, goal)
        return found

    # --- scalars ----------------------------------------------------------------------------

    def string_verdicts(self, goal: Goal) -> Verdicts:
        return self._verdicts(STRING, goal, string_machine, string_machine, is_finite(goal.must))

    def number_verdicts(self, goal: Goal) -> Verdicts:
        return self._verdicts(NUMBER, goal, number_machine, watched_number, False)

    def _verdicts(self, kind: int, goal: Goal, alone: MakeMachine, watched: MakeMachine, strict: bool) -> Verdicts:
        def make() -> Verdicts:
            try:
                if goal.judge is None:
                    return self.single(alone(self.algebra, goal.must), strict)
                must = alone if in_digits(goal.must) else watched
                is_settled = not any(map(is_open, goal.watches))
                if is_settled and goal.result(tuple(w is self.algebra.formulas.true for w in goal.watches)) < 0:
                    return Single(nothing(), False)
                if is_settled or (goal.is_wide and all(map(is_listed, goal.watches))):
                    return Told(self.algebra, must(self.algebra, goal.must), goal, kind)
                machines = [watched(self.algebra, f) for f in goal.watches]
                return Several(must(self.algebra, goal.must), machines, goal, lambda: self.algebra.place_of(goal.must))
            except GrammarRefused:
                # a combination above its budget that the check couldn't foresee
                raise GaveUp(self.algebra.place_of(goal.must)) from None

        return self._get(("verdicts", kind, goal), make)

    def single(self, machine: Machine, strict: bool) -> Verdicts:
        return self._get(("single", id(machine), strict), lambda: Single(machine, strict))

    def some_code_point(self, verdicts: Verdicts, state: int, low: int, high: int) -> bool:
        """Whether a code point in [low, high] may come next."""
        if verdicts.room(state) > 0:
            return True
        key = (verdicts, state, low, high)
        found = self._code_points.get(key)
        if found is None:
            found = self._code_points[key] = any(_passes(verdicts, state, block) for block in utf8_blocks(low, high))
        return found

    def length_text(self, low: int, high: int | None) -> Verdicts:
        """The verdicts of a bounded text, shared by all with the same near future."""
        return self._get(("length", low, high), lambda: Single(PlainLength(low, high), False))

    # --- states -----------------------------------------------------------------------------

    def object_state(self, goal: Goal, seen: frozenset[str] = frozenset(), loose: bool = False) -> ObjectState:
        return self._get(("object", goal, seen, loose), lambda: ObjectState(self, goal, seen, loose))

    def array_state(self, goal: Goal, loose: bool = False) -> ArrayState:
        return self._get(("array", goal, loose), lambda: ArrayState(self, goal, loose))

    def shape(self, props: tuple[Props, ...]) -> Shape:
        return self._get(("shape", props), lambda: Shape(self, props))

    def keys(self, state: ObjectState) -> Keys:
        made = Keys(self, state)
        self._keys.append(made)
        return made

    # --- locals -----------------------------------------------------------------------------

    def start(self, goal: Goal, tight: bool) -> Start:
        return self._local(("start", goal, tight), lambda: Start(self, goal, tight))

    def loose_start(self, free: bool, tight: bool = False) -> LooseStart:
        return self._local(("loose", free, tight), lambda: LooseStart(self, free, tight))

    def loose_text(self) -> Text:
        """A string of an array in which nothing may come twice, where the walk doesn't know what came."""
        free = self.single(anything(), False)
        return self.text(free, free.start, 0, self._get(("loose end",), LooseEnd))

    def room_of_texts(self, goal: Goal) -> int:
        """Code points of any text with which a string of the goal may begin (Machine.room)."""
        typed = None if goal.judge is not None else self.typed(goal, STRING)
        if typed is None:
            return 0
        machine = string_machine(self.algebra, typed.must)
        return 0 if machine.start == DEAD else machine.room(machine.start)

    def waiting_name(self, keys: Keys, result: int) -> WaitingName:
        return self._local(("waiting name", keys, result), lambda: WaitingName(self, keys, result))

    def gap(self, used: int) -> Gap:
        return self._local(("gap", used), lambda: Gap(self, used))

    def after_gap(self, tight: int) -> AfterGap:
        if self.simple is not None:
            return cast(AfterGap, self._native(AFTER_GAP, tight))
        return self._local(("after gap", tight), lambda: AfterGap(self, tight))

    def word(self, rest: bytes, result: int) -> Word:
        if self.simple is not None:
            return cast(Word, self.locals[self.simple.word(rest, self.tables.op(POP, result))])
        return self._local(("word", rest, result), lambda: Word(self, rest, result))

    def scalar(self, verdicts: Verdicts, state: int) -> Scalar:
        return self._local(("scalar", verdicts, state), lambda: self._told(Scalar(self, verdicts, state)))

    def text(self, verdicts: Verdicts, state: int, missing: int, closer: Closer | None) -> Text:
        key = ("text", verdicts, state, missing, closer)
        return self._local(key, lambda: self._told(Text(self, verdicts, state, missing, closer)))

    def _told(self, frame: S) -> S:
        """The frame; native walks know it if it is one of positions."""
        machine = machine_of(frame)
        if self._position_texts is not None and machine is not None and not frame.captures:
            self._position_texts.tell(frame.id, machine, frame.state, quoted=isinstance(frame, Text))
        return frame

    def escape(self, host: Host, read: bytes) -> Escape:
        return self._local(("escape", host, read), lambda: Escape(self, host, read))

    def key_text(self, keys: Keys, state: int, missing: int) -> KeyText:
        return self._local(("key", keys, state, missing), lambda: KeyText(self, keys, state, missing))

    def waiting_key(self, keys: Keys) -> WaitingKey:
        number = self._number(keys.object)
        if number >= 0:
            return cast(WaitingKey, self._native(WAITING_KEY, number))
        return self._local(("waiting key", keys), lambda: WaitingKey(self, keys))

    def script(self, goals: Goals, threads: Threads) -> Script:
        return self._local(("script", goals, threads), lambda: Script(self, goals, threads))

    def after_value(self, goals: Goals, then: Rest | None) -> AfterValue:
        return self._local(("after value", goals, then), lambda: AfterValue(self, goals, then))

    def free_text(self, goals: Goals, here: Rest, seen: Seen = Seen(), past: bool = False) -> FreeText:  # noqa: B008
        return self._local(("free", goals, here, seen, past), lambda: FreeText(self, goals, here, seen, past))

    def raw_text(
        self,
        goals: Goals,
        here: Rest,
        machine: Machine,
        state: int,
        matched: bytes,
        closers: frozenset[bytes],
        opened: bool,
    ) -> RawText:
        key = ("raw", goals, here, state, matched, closers, opened)
        return self._local(key, lambda: RawText(self, goals, here, machine, state, matched, closers, opened))

    def free_start(self) -> Text:
        """The frame in which any text begins."""
        free = self.single(anything(), False)
        return self.text(free, free.start, 0, None)

    def object_phase(self, state: ObjectState, phase: ObjectAt, tight: bool) -> ObjectPhase:
        number = self._number(state)
        if number >= 0:
            return cast(ObjectPhase, self._native(PHASES[phase], number, tight))
        return self._local(("phase", state, phase, tight), lambda: ObjectPhase(self, state, phase, tight))

    def array_phase(self, state: ArrayState, phase: ArrayAt, tight: bool) -> ArrayPhase:
        return self._local(("items", state, phase, tight), lambda: ArrayPhase(self, state, phase, tight))

    def waiting_member(
        self, goal: Goal, seen: frozenset[str], loose: bool, asked: dict[Leaf, Formula]
    ) -> WaitingMember:
        number = -1 if asked else self._number(self.object_state(goal, seen, loose))
        if number >= 0:
            return cast(WaitingMember, self._native(WAITING_MEMBER, number))
        key = ("member", goal, seen, loose, tuple(asked.items()))
        return self._local(key, lambda: WaitingMember(self, goal, seen, loose, asked))

    def waiting_item(self, goal: Goal, asked: dict[Leaf, Formula]) -> WaitingItem:
        return self._local(("item", goal, tuple(asked.items())), lambda: WaitingItem(self, goal, asked))

    def colon(self, waiting: WaitingMember, goal: Goal, tight: bool) -> Colon:
        if self.tables.kind_of[waiting.id] == WAITING_MEMBER:
            number = self._number(self.object_state(waiting.goal, waiting.seen, waiting.loose))
            return cast(Colon, self._native(COLON_TIGHT if tight else COLON, number, self.start(goal, False).id))
        return self._local(("colon", waiting, goal, tight), lambda: Colon(self, waiting, goal, tight))


def _passes(verdicts: Verdicts, state: int, block: list[tuple[int, int]]) -> bool:
    states = {state}
    for low, high in block:
        seen: set[tuple[int, int]] = set()
        after: set[int] = set()
        for here in states:
            for byte in range(low, high + 1):
                kind = (here, verdicts.classes[byte])
                if kind not in seen:
                    seen.add(kind)
                    after.add(verdicts.step(here, byte))
        states = after - {DEAD}
    return bool(states)
