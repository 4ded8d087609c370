"""Frames of values that aren't strings, objects or arrays, and the frame in which any value begins."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from imp_server.core import GrammarDeadEnd
from imp_server.grammar.frames.goals import Goal
from imp_server.grammar.frames.local import Listed, Local, gap_entries
from imp_server.grammar.frames.tables import ASK, POP, POP_AGAIN
from imp_server.grammar.frames.verdicts import Single, Verdicts
from imp_server.grammar.machines.machine import DEAD
from imp_server.grammar.machines.position_machine import PositionMachine
from imp_server.grammar.values.json_values import spelled
from imp_server.grammar.values.leaves import ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING
from imp_server.grammar.values.sat.found import MAX_LEAD, Found, found, joined

if TYPE_CHECKING:
    from imp_server.grammar.frames.space import Space


class Start(Listed):
    """Before the first byte of a value. `tight`: no whitespace may come."""

    __slots__ = ("goal", "tight")

    def __init__(self, space: Space, goal: Goal, tight: bool) -> None:
        super().__init__(space)
        self.goal = goal
        self.tight = tight

    def entries(self) -> dict[int, int]:
        found = dict(self.space.first_bytes(self.goal))
        if not self.tight:
            found.update(gap_entries(self.space, self.space.start(self.goal, True).id))
        return found

    def lead(self) -> bytes:
        answer = self.space.shortest_value(self.goal)
        if answer is None:  # its proof was given up
            raise GrammarDeadEnd("the grammar can't prove a way to its end from here")
        return answer.text(MAX_LEAD)


class LooseStart(Listed):
    """Before an item that must differ from one whose value the walk doesn't know."""

    __slots__ = ("free", "tight")

    def __init__(self, space: Space, free: bool, tight: bool) -> None:
        """`free`: the item may be a string that begins in any way and goes on for ever: only its end needs asking."""
        super().__init__(space)
        self.free = free
        self.tight = tight

    def entries(self) -> dict[int, int]:
        found = dict.fromkeys(b'"{[tfn-0123456789', ASK)
        if self.free:
            found[0x22] = self.space.loose_text().id
        if not self.tight:
            found.update(gap_entries(self.space, self.space.loose_start(self.free, True).id))
        return found


class LooseEnd:
    """Where a string leads of which the walk can't tell whether it came before (the Closer of texts.py)."""

    def closed(self, result: int) -> int:
        return ASK

    def only(self, state: int) -> int | None:
        return None


class Word(Listed):
    """The rest of true, false or null."""

    __slots__ = ("rest", "result")

    def __init__(self, space: Space, rest: bytes, result: int) -> None:
        super().__init__(space)
        self.rest = rest
        self.result = result

    def entries(self) -> dict[int, int]:
        if len(self.rest) == 1:
            return {self.rest[0]: self.space.tables.op(POP, self.result)}
        return {self.rest[0]: self.space.word(self.rest[1:], self.result).id}

    def lead(self) -> bytes:
        return self.rest


class Scalar(Local):
    """A number, or any text without quotes: it ends where the next byte can't belong to it."""

    __slots__ = ("state", "verdicts")

    def __init__(self, space: Space, verdicts: Verdicts, state: int) -> None:
        super().__init__(space)
        self.verdicts = verdicts
        self.state = state

    def fill(self, byte: int) -> int:
        space, verdicts = self.space, self.verdicts
        if verdicts.is_sparse:
            return self._fill_one(byte)
        result = verdicts.result(self.state)
        other = space.tables.op(POP_AGAIN, result) if result >= 0 else DEAD
        classes = verdicts.classes
        by_class = np.zeros(256, dtype=np.int32)
        for at, kind in _firsts(classes):
            after = verdicts.step(self.state, at)
            by_class[kind] = other if after == DEAD else space.scalar(verdicts, after).id
        row = space.tables.rows[self.id] = by_class[np.frombuffer(classes, dtype=np.uint8)]
        return int(row[byte])

    def _fill_one(self, byte: int) -> int:
        """The entries of the bytes that are read as this one is, and of no others."""
        space, verdicts = self.space, self.verdicts
        after, result = verdicts.step(self.state, byte), verdicts.result(self.state)
        if after != DEAD:
            entry = space.scalar(verdicts, after).id
        else:
            entry = space.tables.op(POP_AGAIN, result) if result >= 0 else DEAD
        same = np.frombuffer(verdicts.classes, np.uint8) == verdicts.classes[byte]
        space.tables.rows[self.id, same] = entry
        return entry

    def only_byte(self) -> int:
        """The byte that must follow, of a sparse row; -1 if there is a choice."""
        verdicts = self.verdicts
        assert isinstance(verdicts, Single) and isinstance(verdicts.machine, PositionMachine)
        return verdicts.machine.only_byte(self.state)

    @property
    def end_result(self) -> int:
        return self.verdicts.result(self.state)

    def lead(self) -> bytes:
        return self.verdicts.shortest(self.state)


@lru_cache(maxsize=4096)
def _firsts(classes: bytes) -> tuple[tuple[int, int], ...]:
    """(first byte, class) of each class."""
    found: dict[int, int] = {}
    for at, kind in enumerate(classes):
        found.setdefault(kind, at)
    return tuple((at, kind) for kind, at in found.items())


class Done(Listed):
    """The completion is over: only an end token may follow."""

    __slots__ = ()

    def entries(self) -> dict[int, int]:
        return {}

    def lead(self) -> bytes:
        return b""


class Ended(Listed):
    """All of an envelope was read: the frame ends without a byte."""

    __slots__ = ()

    def entries(self) -> dict[int, int]:
        return {}

    @property
    def end_result(self) -> int:
        return 0

    def lead(self) -> bytes:
        return b""


class Root(Listed):
    """Waits for the one value of the completion."""

    __slots__ = ()

    def entries(self) -> dict[int, int]:
        return dict.fromkeys(range(256), self.space.done.id)


def first_bytes(space: Space, goal: Goal) -> dict[int, int]:
    """First byte of a value -> the local it leads to."""
    found: dict[int, int] = {}
    for kind in (NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT):
        typed = space.typed(goal, kind)
        if typed is not None:
            _BY_TYPE[kind](space, typed, found)
    return found


def shortest(space: Space, goal: Goal) -> Found | None:
    """A short value, type by type, for a goal with many watches."""
    for kind, find in _SHORTEST.items():
        typed = space.typed(goal, kind)
        answer = None if typed is None else find(space, typed)
        if answer is not None:
            return answer
    return None


def _shortest_null(space: Space, goal: Goal) -> Found | None:
    true = space.algebra.formulas.true
    if goal.must is true and goal.result(tuple(w is true for w in goal.watches)) >= 0:
        return found(b"null")
    return None


def _shortest_boolean(space: Space, goal: Goal) -> Found | None:
    holds = space.solver.boolean_holds
    for value in (True, False):
        if holds(goal.must, value) and goal.result(tuple(holds(w, value) for w in goal.watches)) >= 0:
            return found(b"true" if value else b"false")
    return None


def _shortest_number(space: Space, goal: Goal) -> Found | None:
    verdicts = space.number_verdicts(goal)
    return None if verdicts.start == DEAD else found(verdicts.shortest(verdicts.start))


def _shortest_string(space: Space, goal: Goal) -> Found | None:
    verdicts = space.string_verdicts(goal)
    if verdicts.start == DEAD:
        return None
    return found(spelled(("string", verdicts.shortest(verdicts.start).decode())).encode())


def _shortest_array(space: Space, goal: Goal) -> Found | None:
    rest = space.array_state(goal).remaining()
    return None if rest is None else joined([rest], b"[", b"]")


def _shortest_object(space: Space, goal: Goal) -> Found | None:
    rest = space.object_state(goal).remaining()
    return None if rest is None else joined([rest], b"{", b"}")


_SHORTEST = {
    NUMBER: _shortest_number,
    STRING: _shortest_string,
    BOOLEAN: _shortest_boolean,
    NULL: _shortest_null,
    ARRAY: _shortest_array,
    OBJECT: _shortest_object,
}


def _null(space: Space, goal: Goal, found: dict[int, int]) -> None:
    true = space.algebra.formulas.true
    result = goal.result(tuple(w is true for w in goal.watches)) if goal.must is true else -1
    if result >= 0:
        found[0x6E] = space.word(b"ull", result).id


def _boolean(space: Space, goal: Goal, found: dict[int, int]) -> None:
    holds = space.solver.boolean_holds
    for value, first, rest in ((True, 0x74, b"rue"), (False, 0x66, b"alse")):
        result = goal.result(tuple(holds(w, value) for w in goal.watches)) if holds(goal.must, value) else -1
        if result >= 0:
            found[first] = space.word(rest, result).id


def _number(space: Space, goal: Goal, found: dict[int, int]) -> None:
    verdicts = space.number_verdicts(goal)
    if verdicts.start != DEAD:
        for byte in b"-0123456789":
            after = verdicts.step(verdicts.start, byte)
            if after != DEAD:
                found[byte] = space.scalar(verdicts, after).id


def _string(space: Space, goal: Goal, found: dict[int, int]) -> None:
    verdicts = space.string_verdicts(goal)
    if verdicts.start != DEAD:
        found[0x22] = space.text(verdicts, verdicts.start, 0, None).id


def _array(space: Space, goal: Goal, found: dict[int, int]) -> None:
    state = space.array_state(goal)
    if state.remaining() is not None:
        found[0x5B] = space.array_phase(state, "open", False).id


def _object(space: Space, goal: Goal, found: dict[int, int]) -> None:
    state = space.object_state(goal)
    if state.remaining() is not None:
        found[0x7B] = space.object_phase(state, "open", False).id


_BY_TYPE = {NULL: _null, BOOLEAN: _boolean, NUMBER: _number, STRING: _string, ARRAY: _array, OBJECT: _object}
