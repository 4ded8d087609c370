"""Values that hold no other values: null, booleans, numbers and strings."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

import numpy as np

from imp_server.grammar.frames.goals import Goal
from imp_server.grammar.frames.store import ListedFrame, Store
from imp_server.grammar.frames.tables import POP, POP_AGAIN
from imp_server.grammar.frames.texts import Texts
from imp_server.grammar.frames.values import ValueKind
from imp_server.grammar.frames.verdicts import Reading, Single, Verdicts
from imp_server.grammar.machines.machine import DEAD
from imp_server.grammar.machines.position_machine import PositionMachine
from imp_server.grammar.values.json_values import spelled
from imp_server.grammar.values.sat.found import Found, found


class Word(ListedFrame):
    """The rest of true, false or null."""

    __slots__ = ("rest", "result", "words")

    def __init__(self, words: WordFrames, rest: bytes, result: int) -> None:
        super().__init__(words.store)
        self.words = words
        self.rest = rest
        self.result = result

    def entries(self) -> dict[int, int]:
        if len(self.rest) == 1:
            return {self.rest[0]: self.store.tables.op(POP, self.result)}
        return {self.rest[0]: self.words.word(self.rest[1:], self.result).id}

    def lead(self) -> bytes:
        return self.rest


class WordFrames:
    """The frames of texts that are spelled in one way."""

    def __init__(self, store: Store) -> None:
        self.store = store.owned_by(self)
        self._words: dict[tuple[bytes, int], Word] = store.table()

    def word(self, rest: bytes, result: int) -> Word:
        store = self.store
        if store.native is not None:
            return cast(Word, store.locals[store.native.word(rest, store.tables.op(POP, result))])
        return store.local(self._words, (rest, result), lambda: Word(self, rest, result))


class Scalar(Reading):
    """A number, or any text without quotes: it ends where the next byte can't belong to it."""

    __slots__ = ("scalars",)

    def __init__(self, scalars: Scalars, verdicts: Verdicts, state: int) -> None:
        super().__init__(scalars.store, scalars.texts.verdicts, verdicts, state)
        self.scalars = scalars

    def fill(self, byte: int) -> int:
        verdicts, tables = self.verdicts, self.store.tables
        if verdicts.is_sparse:
            return self._fill_one(byte)
        result = verdicts.result(self.state)
        other = tables.op(POP_AGAIN, result) if result >= 0 else DEAD
        classes = verdicts.classes
        by_class = np.zeros(256, dtype=np.int32)
        for at, kind in _firsts(classes):
            after = verdicts.step(self.state, at)
            by_class[kind] = other if after == DEAD else self.scalars.scalar(verdicts, after).id
        row = tables.rows[self.id] = by_class[np.frombuffer(classes, dtype=np.uint8)]
        return int(row[byte])

    def _fill_one(self, byte: int) -> int:
        """The entries of the bytes that are read as this one is, and of no others."""
        tables, verdicts = self.store.tables, self.verdicts
        after, result = verdicts.step(self.state, byte), verdicts.result(self.state)
        if after != DEAD:
            entry = self.scalars.scalar(verdicts, after).id
        else:
            entry = tables.op(POP_AGAIN, result) if result >= 0 else DEAD
        same = np.frombuffer(verdicts.classes, np.uint8) == verdicts.classes[byte]
        tables.rows[self.id, same] = entry
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


class Scalars:
    """The frames of texts without quotes."""

    def __init__(self, texts: Texts) -> None:
        self.store = texts.store.owned_by(self)
        self.texts = texts
        self._scalars: dict[tuple[Verdicts, int], Scalar] = self.store.table()

    def scalar(self, verdicts: Verdicts, state: int) -> Scalar:
        def make() -> Scalar:
            frame = Scalar(self, verdicts, state)
            if self.texts.positions is not None:
                self.texts.positions.tell(frame, quoted=False)
            return frame

        return self.store.local(self._scalars, (verdicts, state), make)


@lru_cache(maxsize=4096)
def _firsts(classes: bytes) -> tuple[tuple[int, int], ...]:
    """(first byte, class) of each class."""
    found: dict[int, int] = {}
    for at, kind in enumerate(classes):
        found.setdefault(kind, at)
    return tuple((at, kind) for kind, at in found.items())


class Nulls(ValueKind):
    def __init__(self, words: WordFrames) -> None:
        self._words = words
        self._true = words.store.owned_by(self).algebra.formulas.true

    def _result(self, goal: Goal) -> int:
        true = self._true
        return goal.result(tuple(w is true for w in goal.watches)) if goal.must is true else -1

    def first_bytes(self, goal: Goal) -> dict[int, int]:
        result = self._result(goal)
        return {0x6E: self._words.word(b"ull", result).id} if result >= 0 else {}

    def shortest(self, goal: Goal) -> Found | None:
        return found(b"null") if self._result(goal) >= 0 else None


class Booleans(ValueKind):
    def __init__(self, words: WordFrames) -> None:
        self._words = words
        self._holds = words.store.owned_by(self).solver.boolean_holds

    def _result(self, goal: Goal, value: bool) -> int:
        holds = self._holds
        return goal.result(tuple(holds(w, value) for w in goal.watches)) if holds(goal.must, value) else -1

    def first_bytes(self, goal: Goal) -> dict[int, int]:
        entries = {}
        for value, first, rest in ((True, 0x74, b"rue"), (False, 0x66, b"alse")):
            result = self._result(goal, value)
            if result >= 0:
                entries[first] = self._words.word(rest, result).id
        return entries

    def shortest(self, goal: Goal) -> Found | None:
        for value in (True, False):
            if self._result(goal, value) >= 0:
                return found(b"true" if value else b"false")
        return None


class Numbers(ValueKind):
    def __init__(self, scalars: Scalars) -> None:
        self._scalars = scalars
        scalars.store.owned_by(self)

    def first_bytes(self, goal: Goal) -> dict[int, int]:
        verdicts = self._scalars.texts.verdicts.of_number(goal)
        entries: dict[int, int] = {}
        for byte in b"-0123456789" if verdicts.start != DEAD else b"":
            after = verdicts.step(verdicts.start, byte)
            if after != DEAD:
                entries[byte] = self._scalars.scalar(verdicts, after).id
        return entries

    def shortest(self, goal: Goal) -> Found | None:
        verdicts = self._scalars.texts.verdicts.of_number(goal)
        return None if verdicts.start == DEAD else found(verdicts.shortest(verdicts.start))


class StringValues(ValueKind):
    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        texts.store.owned_by(self)

    def first_bytes(self, goal: Goal) -> dict[int, int]:
        verdicts = self._texts.verdicts.of_string(goal)
        return {} if verdicts.start == DEAD else {0x22: self._texts.text(verdicts, verdicts.start, 0, None).id}

    def shortest(self, goal: Goal) -> Found | None:
        verdicts = self._texts.verdicts.of_string(goal)
        if verdicts.start == DEAD:
            return None
        return found(spelled(("string", verdicts.shortest(verdicts.start).decode())).encode())
