"""Simple objects natively: their frames are made and filled in kernels/cpu/grammar, where walks need no Python.

Simple is an object whose properties each obey a schema of their own, some of them required, and nothing else: no
rules that several members decide together. Its state is two sets of names, *seen* and *missing*. What native code
makes is known here by number and turned into the frames of objects.py, keys.py and key_texts.py when the exact step
wants one. Those are the plain twin: a space made with native=False has nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np

from imp_server.grammar.frames.gaps import N_BEFORE, AfterGap, Gaps
from imp_server.grammar.frames.goals import Goal
from imp_server.grammar.frames.key_texts import KeyText, KeyTexts, WaitingKey
from imp_server.grammar.frames.keys import Keys, WaitingName
from imp_server.grammar.frames.native_store import (
    AFTER,
    AFTER_GAP,
    COLON,
    COLON_TIGHT,
    COMMA,
    KEY,
    OPEN,
    WAITING_KEY,
    WAITING_MEMBER,
    WAITING_NAME,
    WORD,
    Bitset,
    NativeStore,
)
from imp_server.grammar.frames.objects import Colon, ObjectPhase, Objects, ObjectState, Phase, WaitingMember
from imp_server.grammar.frames.plain_values import Word, WordFrames
from imp_server.grammar.frames.shapes import UNDECLARED, KeyKind, Shape
from imp_server.grammar.frames.store import Frame, Store
from imp_server.grammar.frames.tables import FIRST_OP
from imp_server.grammar.frames.texts import Text, Texts, needs_escape
from imp_server.grammar.frames.values import Values, ValueStart
from imp_server.grammar.machines.machine import DEAD
from imp_server.grammar.values.formula import Formula, Leaf

PHASES: dict[Phase, int] = {"open": OPEN, "after": AFTER, "comma": COMMA}
NAMES: dict[int, Phase] = {number: phase for phase, number in PHASES.items()}
MAX_NAMES = 4096


class Leaving:
    """What an escape is asked for where it can only begin an undeclared name (the Host of texts.py)."""

    strict = True

    def __init__(self, texts: Texts) -> None:
        self._texts = texts

    def after_char(self, char: str) -> int:
        return self._texts.free().id

    def takes(self, low: int, high: int) -> bool:
        return low <= high


def native_store(store: Store, gaps: Gaps, texts: Texts) -> NativeStore:
    free, escape = texts.free(), texts.escape(Leaving(texts), b"")
    store.tables.entry(free.id, 0)
    between = (gaps.gap(1).id, gaps.gap(N_BEFORE + 1).id) if store.n_blanks else (DEAD, DEAD)
    return NativeStore(store.tables, between, free.id, escape.id)


class ObjectFamily:
    """Objects with the same shape and the same names to be told apart."""

    def __init__(self, number: int, shape: Shape, names: list[str], starts: list[int]) -> None:
        """`starts`: the locals in which the values start of all names that may be typed."""
        self.number = number
        self.starts = starts
        self.shape = shape
        self.names = names
        self.index = {name: i for i, name in enumerate(names)}
        self.n_words = (len(names) + 63) // 64

    def bits(self, names: frozenset[str]) -> Bitset:
        mask = 0
        for name in names:
            mask |= 1 << self.index[name]
        return np.frombuffer(mask.to_bytes(8 * self.n_words, "little") or bytes(8), np.uint64)

    def of_bits(self, bits: Bitset) -> frozenset[str]:
        mask = int.from_bytes(bits.tobytes(), "little")
        return frozenset(name for i, name in enumerate(self.names) if mask >> i & 1)


class SimpleObjects:
    """Owner of the families and states known to both sides."""

    def __init__(self, native: NativeStore, values: Values) -> None:
        self._store = values.store.owned_by(self)
        self._native = native
        self._values = values
        self._families: dict[tuple[Shape, frozenset[str]], ObjectFamily | None] = {}
        self._by_number: list[ObjectFamily] = []
        self.states: dict[int, ObjectState] = {}

    def number(self, state: ObjectState) -> int:
        """The state's number; -1 if it isn't simple."""
        if state.native is None:
            state.native = self._number(state)
        return state.native

    def _number(self, state: ObjectState) -> int:
        if not state.is_simple or state.shape.patterns:
            return -1
        family = self.family(state.shape, state.seen | state.missing)
        if family is None:
            return -1
        number = self._native.state(family.number, family.bits(state.seen), family.bits(state.missing), state.loose)
        self.states.setdefault(number, state)
        return number

    def family(self, shape: Shape, others: frozenset[str]) -> ObjectFamily | None:
        """None if its names can't be told apart byte by byte: some has several spellings, or they are too many."""
        key = shape, others - shape.names
        if key not in self._families:
            self._families[key] = self._made(shape, sorted(shape.names | others))
        return self._families[key]

    def _made(self, shape: Shape, names: list[str]) -> ObjectFamily | None:
        if len(names) > MAX_NAMES or not all(n.isascii() and not any(map(needs_escape, n.encode())) for n in names):
            return None
        starts = [self._start(shape, KeyKind(n, frozenset(), ())) for n in names]
        undeclared = self._start(shape, UNDECLARED)
        number = self._native.family(names, starts or [DEAD], undeclared)
        possible = [at for at in dict.fromkeys([*(starts or [DEAD]), undeclared]) if at != DEAD]
        family = ObjectFamily(number, shape, names, possible)
        self._by_number.append(family)
        return family

    def _start(self, shape: Shape, kind: KeyKind) -> int:
        """The local in which the value of such a name starts; DEAD if none would do."""
        if not shape.is_satisfiable(kind):
            return DEAD
        return self._values.start(self._store.goal(shape.value(kind)), False).id

    def family_of(self, state: int) -> ObjectFamily:
        return self._by_number[self._native.family_of(state)]

    def starts(self, local: int) -> list[int]:
        """Where the values of the members of an object begin; `local` is one of its phases."""
        state, _ = self._native.describe(local)
        return self.family_of(state).starts

    def waiting_key(self, key_text: int) -> int:
        """The local that waits while an undeclared name is typed in the place of `key_text`."""
        return self._native.local(WAITING_KEY, self._native.describe(key_text)[0])


class NativeKeyTexts(KeyTexts):
    """The same; what waits for the keys of simple objects is made natively."""

    def __init__(self, texts: Texts, simple: SimpleObjects) -> None:
        super().__init__(texts)
        self._simple = simple

    def waiting(self, keys: Keys) -> WaitingKey:
        assert isinstance(keys.object, ObjectState)
        number = self._simple.number(keys.object)
        if number >= 0:
            return cast(WaitingKey, self.store.native_local(WAITING_KEY, number))
        return super().waiting(keys)


class NativeObjects(Objects):
    """The same; the frames of simple objects are made natively."""

    def __init__(self, values: Values, words: WordFrames, key_texts: KeyTexts, simple: SimpleObjects) -> None:
        super().__init__(values, words, key_texts)
        self._simple = simple

    def phase(self, state: ObjectState, phase: Phase, tight: bool) -> ObjectPhase:
        number = self._simple.number(state)
        if number >= 0:
            return cast(ObjectPhase, self.store.native_local(PHASES[phase], number, tight))
        return super().phase(state, phase, tight)

    def waiting(self, goal: Goal, seen: frozenset[str], loose: bool, of_leaves: dict[Leaf, Formula]) -> WaitingMember:
        number = -1 if of_leaves else self._simple.number(self.state(goal, seen, loose))
        if number >= 0:
            return cast(WaitingMember, self.store.native_local(WAITING_MEMBER, number))
        return super().waiting(goal, seen, loose, of_leaves)

    def colon(self, waiting: WaitingMember, goal: Goal, tight: bool) -> Colon:
        if self.store.tables.kind_of[waiting.id] != WAITING_MEMBER:
            return super().colon(waiting, goal, tight)
        number = self._simple.number(self.state(waiting.goal, waiting.seen, waiting.loose))
        kind = COLON_TIGHT if tight else COLON
        return cast(Colon, self.store.native_local(kind, number, self.values.start(goal, False).id))


class Views:
    """The frames of locals that native code has made."""

    def __init__(self, native: NativeStore, simple: SimpleObjects, objects: Objects) -> None:
        self._store = objects.store.owned_by(self)
        self._native = native
        self._simple = simple
        self._objects = objects

    def of(self, local: int, kind: int) -> Callable[[], Frame]:
        """What makes the frame of a local of that kind."""
        objects, native = self._objects, self._native
        a, b = native.describe(local)
        if kind == AFTER_GAP:
            return partial(AfterGap, self._store, a)
        if kind == WORD:
            return partial(Word, objects.words, *self._word(a, b))
        if kind in NAMES:
            return partial(ObjectPhase, self._state(a), NAMES[kind], bool(b))
        if kind in (COLON, COLON_TIGHT):
            waiting, start = self._store.native_local(WAITING_MEMBER, a), self._store.locals[b]
            assert isinstance(waiting, WaitingMember) and isinstance(start, ValueStart)
            return partial(Colon, waiting, start.goal, kind == COLON_TIGHT)
        state = self._state(a)
        if kind == WAITING_MEMBER:
            return partial(WaitingMember, objects, state.goal, state.seen, state.loose, {})
        return self._of_keys(kind, state.keys, a, b)

    def _of_keys(self, kind: int, keys: Keys, state: int, b: int) -> Callable[[], Frame]:
        key_texts, family = self._objects.key_texts, self._simple.family_of(state)
        if kind == WAITING_KEY:
            return partial(WaitingKey, key_texts.texts, keys)
        if kind == WAITING_NAME:
            return partial(WaitingName, keys, keys.number_of(family.names[b]))
        at = keys.at(*self._native.node(family.number, b))
        if kind == KEY:
            return partial(Text, key_texts.texts, keys, at, 0, keys)
        return partial(KeyText, key_texts, keys, at, 0)

    def _state(self, number: int) -> ObjectState:
        found = self._simple.states.get(number)
        if found is None:
            family = self._simple.family_of(number)
            seen, missing = map(family.of_bits, self._native.bits_of(number, family.n_words))
            algebra = self._store.algebra
            goal = self._store.goal(algebra.formulas.conj([family.shape.formula, algebra.required(missing)]))
            found = self._objects.state(goal, seen, self._native.is_loose(number))
            self._simple.states[number] = found
            found.native = number
        return found

    def _word(self, byte: int, entry: int) -> tuple[bytes, int]:
        rest = bytearray([byte])
        while entry > FIRST_OP:
            byte, entry = self._native.describe(entry)
            rest.append(byte)
        return bytes(rest), self._store.tables.operation(entry)[1]
