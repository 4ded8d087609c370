"""Simple objects natively: their frames are made and filled in kernels/cpu/grammar, where walks need no Python.

Simple is an object whose properties each obey a schema of their own, some of them required, and nothing else: no
rules that several members decide together. Its state is two sets of names, *seen* and *missing*. What native code
makes is known here by number and turned into the frames of objects.py, keys.py and key_texts.py when the exact step
wants one. Those are the plain twin: a space made with native=False has nothing else.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.frames.key_texts import KeyText, WaitingKey, WaitingName
from imp_server.grammar.frames.local import N_BEFORE, AfterGap, Local
from imp_server.grammar.frames.objects import Colon, ObjectPhase, ObjectState, Phase, WaitingMember
from imp_server.grammar.frames.shapes import UNDECLARED, KeyKind, Shape
from imp_server.grammar.frames.tables import FIRST_OP
from imp_server.grammar.frames.texts import Text, needs_escape
from imp_server.grammar.frames.values import Start, Word
from imp_server.grammar.machines.abi import built_library
from imp_server.grammar.machines.machine import DEAD

if TYPE_CHECKING:
    from imp_server.grammar.frames.space import Space

AFTER_GAP, WORD, OPEN, AFTER, COMMA, KEY, KEY_TEXT = range(1, 8)
WAITING_NAME, WAITING_KEY, WAITING_MEMBER, COLON, COLON_TIGHT = range(8, 13)
"""Kinds of native locals: `Kind` of kernels/cpu/grammar/store.h."""
PHASES: dict[Phase, int] = {"open": OPEN, "after": AFTER, "comma": COMMA}
NAMES: dict[int, Phase] = {number: phase for phase, number in PHASES.items()}
MAX_NAMES = 4096

_P, _I = ctypes.c_void_p, ctypes.c_int32
_GROW = ctypes.CFUNCTYPE(None)
_CALLS: dict[str, tuple[Any, list[Any]]] = {
    "objects": (_P, [_P, _GROW, _I, _I, _I, _I]),
    "objects_free": (None, [_P]),
    "family": (_I, [_P, _P, _P, _I, _P, _I]),
    "state": (_I, [_P, _I, _P, _P, _I]),
    "state_bits": (None, [_P, _I, _P]),
    "state_family": (_I, [_P, _I]),
    "state_loose": (_I, [_P, _I]),
    "op": (_I, [_P, _I, _I]),
    "local": (_I, [_P, _I, _I, _I]),
    "word": (_I, [_P, ctypes.c_char_p, _I, _I]),
    "describe": (None, [_P, _I, _P]),
    "fill": (None, [_P, _I]),
    "node": (None, [_P, _I, _I, _P]),
}


class Leaving:
    """What an escape is asked for where it can only begin an undeclared name (the Host of texts.py)."""

    strict = True

    def __init__(self, space: Space) -> None:
        self._space = space

    def after_char(self, char: str) -> int:
        return self._space.free_start().id

    def takes(self, low: int, high: int) -> bool:
        return low <= high


class Family:
    """Objects with the same shape and the same names to be told apart."""

    def __init__(self, number: int, shape: Shape, names: list[str], starts: list[int]) -> None:
        """`starts`: the locals in which the values start of all names that may be typed."""
        self.number = number
        self.starts = starts
        self.shape = shape
        self.names = names
        self.index = {name: i for i, name in enumerate(names)}
        self.n_words = (len(names) + 63) // 64

    def bits(self, names: frozenset[str]) -> NDArray[np.uint64]:
        mask = 0
        for name in names:
            mask |= 1 << self.index[name]
        return np.frombuffer(mask.to_bytes(8 * self.n_words, "little") or bytes(8), np.uint64)

    def of_bits(self, bits: NDArray[np.uint64]) -> frozenset[str]:
        mask = int.from_bytes(bits.tobytes(), "little")
        return frozenset(name for i, name in enumerate(self.names) if mask >> i & 1)


class SimpleObjects:
    """Owner of the native store of one space, and of the states known to both sides."""

    def __init__(self, space: Space) -> None:
        library = built_library()
        self._space = space
        self._call: dict[str, Callable[..., Any]] = {}
        for name, (answer, arguments) in _CALLS.items():
            call = getattr(library, f"imp_grammar_{name}")
            call.restype, call.argtypes = answer, arguments
            self._call[name] = call
        free, escape = space.free_start(), space.escape(Leaving(space), b"")
        space.tables.entry(free.id, 0)
        gaps = [space.gap(1).id, space.gap(N_BEFORE + 1).id] if space.n_blanks else [DEAD, DEAD]
        self._grow = _GROW(space.tables.grow)
        head = ctypes.addressof(space.tables.head)
        self._at = self._call["objects"](head, self._grow, *gaps, free.id, escape.id)
        space.tables.intern = self.op
        weakref.finalize(self, self._call["objects_free"], self._at)
        self._families: dict[tuple[Shape, frozenset[str]], Family | None] = {}
        self._by_number: list[Family] = []
        self._states: dict[int, ObjectState] = {}
        self._pair = (ctypes.c_int32 * 2)()

    # --- from frames to numbers -------------------------------------------------------------

    def op(self, a: int, b: int) -> int:
        return int(self._call["op"](self._at, a, b))

    def local(self, kind: int, a: int, b: int = 0) -> int:
        return int(self._call["local"](self._at, kind, a, b))

    def word(self, rest: bytes, entry: int) -> int:
        """The local that reads `rest` and then does what `entry` says."""
        return int(self._call["word"](self._at, rest, len(rest), entry))

    def fill(self, local: int) -> None:
        self._call["fill"](self._at, local)

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
        seen, missing = family.bits(state.seen), family.bits(state.missing)
        arguments = family.number, seen.ctypes.data, missing.ctypes.data, state.loose
        number = int(self._call["state"](self._at, *arguments))
        self._states.setdefault(number, state)
        return number

    def family(self, shape: Shape, others: frozenset[str]) -> Family | None:
        """None if its names can't be told apart byte by byte: some has several spellings, or they are too many."""
        key = shape, others - shape.names
        if key not in self._families:
            self._families[key] = self._made(shape, sorted(shape.names | others))
        return self._families[key]

    def _made(self, shape: Shape, names: list[str]) -> Family | None:
        if len(names) > MAX_NAMES or not all(n.isascii() and not any(map(needs_escape, n.encode())) for n in names):
            return None
        sizes = np.cumsum([0, *map(len, names)], dtype=np.int32)
        starts = np.array([self._start(shape, KeyKind(n, frozenset(), ())) for n in names] or [DEAD], dtype=np.int32)
        arguments = "".join(names).encode(), sizes.ctypes.data, len(names), starts.ctypes.data
        undeclared = self._start(shape, UNDECLARED)
        number = self._call["family"](self._at, *arguments, undeclared)
        possible = [at for at in dict.fromkeys([*starts.tolist(), undeclared]) if at != DEAD]
        family = Family(int(number), shape, names, possible)
        self._by_number.append(family)
        return family

    def _start(self, shape: Shape, kind: KeyKind) -> int:
        """The local in which the value of such a name starts; DEAD if none would do."""
        if not shape.is_satisfiable(kind):
            return DEAD
        return self._space.start(self._space.goal(shape.value(kind)), False).id

    def starts(self, local: int) -> list[int]:
        """Where the values of the members of an object begin; `local` is one of its phases."""
        state, _ = self._describe(local)
        family: Family = self._by_number[self._call["state_family"](self._at, state)]
        return family.starts

    def waiting_key(self, key_text: int) -> int:
        """The local that waits while an undeclared name is typed in the place of `key_text`."""
        return self.local(WAITING_KEY, self._describe(key_text)[0])

    # --- from numbers to frames -------------------------------------------------------------

    def state(self, number: int) -> ObjectState:
        found = self._states.get(number)
        if found is None:
            family = self._by_number[self._call["state_family"](self._at, number)]
            bits = np.zeros(2 * family.n_words, np.uint64)
            self._call["state_bits"](self._at, number, bits.ctypes.data)
            seen, missing = (family.of_bits(part) for part in np.split(bits, 2))
            algebra = self._space.algebra
            goal = self._space.goal(algebra.formulas.conj([family.shape.formula, algebra.required(missing)]))
            loose = bool(self._call["state_loose"](self._at, number))
            found = self._states[number] = self._space.object_state(goal, seen, loose)
            found.native = number
        return found

    def _describe(self, local: int) -> tuple[int, int]:
        self._call["describe"](self._at, local, self._pair)
        return self._pair[0], self._pair[1]

    def view(self, local: int, kind: int) -> Callable[[], Local]:
        """What makes the frame of a local that native code has made."""
        space, (a, b) = self._space, self._describe(local)
        if kind == AFTER_GAP:
            return partial(AfterGap, space, a)
        if kind == WORD:
            return partial(Word, space, *self._word(a, b))
        if kind in NAMES:
            return partial(ObjectPhase, space, self.state(a), NAMES[kind], bool(b))
        if kind in (COLON, COLON_TIGHT):
            waiting, start = space.locals[self.local(WAITING_MEMBER, a)], space.locals[b]
            assert isinstance(waiting, WaitingMember) and isinstance(start, Start)
            return partial(Colon, space, waiting, start.goal, kind == COLON_TIGHT)
        state = self.state(a)
        if kind == WAITING_MEMBER:
            return partial(WaitingMember, space, state.goal, state.seen, state.loose, {})
        if kind == WAITING_KEY:
            return partial(WaitingKey, space, state.keys)
        family = self._call["state_family"](self._at, a)
        if kind == WAITING_NAME:
            return partial(WaitingName, space, state.keys, state.keys.number_of(self._by_number[family].names[b]))
        self._call["node"](self._at, family, b, self._pair)
        at = state.keys.at(self._pair[0], self._pair[1])
        if kind == KEY:
            return partial(Text, space, state.keys, at, 0, state.keys)
        return partial(KeyText, space, state.keys, at, 0)

    def _word(self, byte: int, entry: int) -> tuple[bytes, int]:
        rest = bytearray([byte])
        while entry > FIRST_OP:
            byte, entry = self._describe(entry)
            rest.append(byte)
        return bytes(rest), self._space.tables.operation(entry)[1]
