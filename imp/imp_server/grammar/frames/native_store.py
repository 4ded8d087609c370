"""The native store of simple objects' frames (kernels/cpu/grammar/store.h): its calls, and the kinds of its frames.

What the numbers mean is known to simple_objects.py.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.frames.tables import TransitionTables
from imp_server.grammar.machines.abi import built_library

AFTER_GAP, WORD, OPEN, AFTER, COMMA, KEY, KEY_TEXT = range(1, 8)
WAITING_NAME, WAITING_KEY, WAITING_MEMBER, COLON, COLON_TIGHT = range(8, 13)
"""Kinds of native locals: `Kind` of kernels/cpu/grammar/store.h."""

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
Bitset = NDArray[np.uint64]


class NativeStore:
    """Owner of the native memory of one store. Whoever makes one sees that the library is there."""

    def __init__(self, tables: TransitionTables, gaps: tuple[int, int], free: int, escape: int) -> None:
        """Locals: gaps behind a blank and behind a newline, a free text, an escape that begins an undeclared name."""
        library = built_library()
        self._call: dict[str, Callable[..., Any]] = {}
        for name, (answer, arguments) in _CALLS.items():
            call = getattr(library, f"imp_grammar_{name}")
            call.restype, call.argtypes = answer, arguments
            self._call[name] = call
        self._grow = _GROW(tables.grow)
        self._at = self._call["objects"](ctypes.addressof(tables.head), self._grow, *gaps, free, escape)
        tables.intern = self.op
        weakref.finalize(self, self._call["objects_free"], self._at)
        self._pair = (ctypes.c_int32 * 2)()

    def op(self, a: int, b: int) -> int:
        return int(self._call["op"](self._at, a, b))

    def local(self, kind: int, a: int, b: int = 0) -> int:
        return int(self._call["local"](self._at, kind, a, b))

    def word(self, rest: bytes, entry: int) -> int:
        """The local that reads `rest` and then does what `entry` says."""
        return int(self._call["word"](self._at, rest, len(rest), entry))

    def fill(self, local: int) -> None:
        self._call["fill"](self._at, local)

    def describe(self, local: int) -> tuple[int, int]:
        """The two numbers that a local was made of."""
        self._call["describe"](self._at, local, self._pair)
        return self._pair[0], self._pair[1]

    def family(self, names: list[str], starts: list[int], undeclared: int) -> int:
        """Number of the objects with these names to be told apart; `starts`, `undeclared`: where their values start."""
        sizes = np.cumsum([0, *map(len, names)], dtype=np.int32)
        locals_ = np.array(starts, dtype=np.int32)
        arguments = "".join(names).encode(), sizes.ctypes.data, len(names), locals_.ctypes.data, undeclared
        return int(self._call["family"](self._at, *arguments))

    def state(self, family: int, seen: Bitset, missing: Bitset, loose: bool) -> int:
        return int(self._call["state"](self._at, family, seen.ctypes.data, missing.ctypes.data, loose))

    def family_of(self, state: int) -> int:
        return int(self._call["state_family"](self._at, state))

    def bits_of(self, state: int, n_words: int) -> tuple[Bitset, Bitset]:
        """Names seen, and names missing."""
        bits = np.zeros(2 * n_words, np.uint64)
        self._call["state_bits"](self._at, state, bits.ctypes.data)
        return bits[:n_words], bits[n_words:]

    def is_loose(self, state: int) -> bool:
        return bool(self._call["state_loose"](self._at, state))

    def node(self, family: int, number: int) -> tuple[int, int]:
        """Of a node of a family's trie: a name through it, and how many of its bytes lie before it."""
        self._call["node"](self._at, family, number, self._pair)
        return self._pair[0], self._pair[1]
