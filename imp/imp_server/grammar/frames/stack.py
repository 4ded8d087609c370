"""Configurations and the exact step: a stack of locals, plus the bytes that some frame needs to remember.

The tables forget what a key or a unique item was called; here it is kept (`tape`), so a name can't be typed twice
and an item can't come again. A mask walk meets ASK where that matters and leaves the answer to this step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from imp_server.core.turns import charge
from imp_server.grammar.frames.arrays import WaitingItem
from imp_server.grammar.frames.key_texts import KeyText, WaitingKey
from imp_server.grammar.frames.keys import Keys, WaitingName
from imp_server.grammar.frames.objects import ObjectPhase
from imp_server.grammar.frames.space import Space
from imp_server.grammar.frames.tables import DEAD, FIRST_OP, FOREIGN, POP
from imp_server.grammar.frames.texts import QUOTE, Text
from imp_server.grammar.machines.giving_up import emptied

COMMA = 0x2C
N_BYTES = 500
"""Memory of a cell and its steps."""


class Cell:
    """One frame and what lies below it; interned, so that equality is identity."""

    __slots__ = ("below", "next", "top")

    def __init__(self, top: int, below: Cell | None) -> None:
        self.top = top
        self.below = below
        self.next: dict[int, Cell | None] = {}
        """Steps that need no memory."""


@dataclass(frozen=True, slots=True)
class State:
    """A configuration. `marks`: where in `tape` the texts begin that frames are capturing, outermost first."""

    cell: Cell
    tape: bytes = b""
    marks: tuple[int, ...] = ()


class Stepper:
    """Owner of the interned cells of one space."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._cells: dict[tuple[int, Cell | None], Cell] = {}

    def given_up(self) -> Iterator[None]:
        return emptied(self._cells)

    def cell(self, top: int, below: Cell | None) -> Cell:
        key = (top, below)
        found = self._cells.get(key)
        if found is None:
            charge(N_BYTES)
            found = self._cells[key] = Cell(top, below)
        return found

    def step(self, state: State, byte: int) -> State | None:
        """The state after one byte; None if the byte is impossible."""
        cell = state.cell
        if not state.marks and byte in cell.next:
            after = cell.next[byte]
            return None if after is None else State(after)
        return self._step(state, byte)

    def run(self, state: State, data: bytes) -> State | None:
        """The state after several bytes."""
        for byte in data:
            after = self.step(state, byte)
            if after is None:
                return None
            state = after
        return state

    def _step(self, state: State, byte: int) -> State | None:
        tables, locals_ = self.space.tables, self.space.locals
        cell, tape, marks = state.cell, state.tape, state.marks
        plain = not marks
        while True:
            top = locals_[cell.top]
            entry = tables.entry(cell.top, byte)
            if entry == DEAD:
                return self._remember(state.cell, byte, None) if plain else None
            if byte == QUOTE and isinstance(top, Text | KeyText) and top.captures and top.missing == 0:
                return self._key_closed(state, top, cell)
            if entry >= 0:
                after = self.cell(entry, cell.below)
                if isinstance(top, ObjectPhase) and byte == QUOTE:
                    return _captured(after, tape, marks, byte, included=False)
                break
            assert entry <= FIRST_OP, "an exact state never asks"
            a, b = tables.operation(entry)
            if a >= 0:
                after = self.cell(b, self.cell(a, cell.below))
                if isinstance(locals_[a], WaitingKey | WaitingName):
                    if isinstance(top, ObjectPhase):
                        return _captured(after, tape, marks, byte, included=False)
                elif locals_[a].captures:
                    return _captured(after, tape, marks, byte, included=byte != COMMA)
                break
            below = cell.below
            if below is None:
                return None
            waiting = locals_[below.top]
            if isinstance(waiting, WaitingKey):
                resumed = waiting.named(_name(tape[marks[-1] :]))
                marks = marks[:-1]
                plain = False
            elif isinstance(waiting, WaitingName):
                resumed = tables.entry(below.top, 0)
                marks = marks[:-1]
                plain = False
            elif isinstance(waiting, WaitingItem) and waiting.captures:
                text = tape[marks[-1] :] + (bytes([byte]) if a == POP else b"")
                marks = marks[:-1]
                resumed = waiting.resumed(b, text)
                plain = False
            else:
                resumed = tables.resumed(below.top, b)
            if resumed == DEAD:
                return None
            cell = self.cell(resumed, below.below)
            if a == POP:
                after = cell
                break
        if marks:
            return State(after, tape + bytes([byte]), marks)
        return self._remember(state.cell, byte, after) if plain else State(after)

    def _remember(self, cell: Cell, byte: int, after: Cell | None) -> State | None:
        cell.next[byte] = after
        return None if after is None else State(after)

    def _key_closed(self, state: State, top: Text | KeyText, cell: Cell) -> State | None:
        name = _name(state.tape[state.marks[-1] :])
        marks = state.marks[:-1]
        keys = top.keys if isinstance(top, KeyText) else top.closer
        assert isinstance(keys, Keys)
        result = keys.result(top.state)
        if result >= 0:
            target = keys.closed_named(result, name)
        else:
            target = self.space.objects.key_texts.waiting(keys).named(name)
        if target == DEAD:
            return None
        tape = state.tape + b'"' if marks else b""
        return State(self.cell(target, cell.below), tape, marks)

    def is_done(self, cell: Cell | None) -> bool:
        """Whether the completion may end here."""
        while cell is not None:
            if cell.top == self.space.ends.done.id:
                return True
            if self.space.tables.kind_of[cell.top] != FOREIGN:
                return False
            result = self.space.locals[cell.top].end_result
            if result < 0 or cell.below is None or self.space.locals[cell.below.top].captures:
                return False
            resumed = self.space.tables.resumed(cell.below.top, result)
            cell = None if resumed < 0 else self.cell(resumed, cell.below.below)
        return False


def _name(raw: bytes) -> str:
    name: str = json.loads(b'"' + raw + b'"')
    return name


def _captured(after: Cell, tape: bytes, marks: tuple[int, ...], byte: int, included: bool) -> State:
    """The state in which a captured text begins, with or behind this byte."""
    kept = tape + bytes([byte]) if marks or included else b""
    return State(after, kept, (*marks, len(kept) - included))
