"""The native walker (kernels/cpu/grammar) behind the same call as its twin in walk.py."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.frames.tables import DEAD, HOLE, Tables
from imp_server.grammar.masks.packed_trie import PackedTrie
from imp_server.grammar.masks.trie import TokenTrie
from imp_server.grammar.masks.walk import WalkResult
from imp_server.native import load_library

MAX_ASKS = 4096
WORDS_PER_UNIT = 2048
"""Words that steps of positions read and write in the time of a unit, and some more."""


_FILL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)


class _Walker(ctypes.Structure):
    _fields_ = [
        ("tables", ctypes.c_void_p),
        ("fill", _FILL),
        ("stack", ctypes.c_void_p),
        ("asks", ctypes.c_void_p),
        ("max_asks", ctypes.c_int32),
        ("depth_used", ctypes.c_int32),
        ("n_words", ctypes.c_int64),
    ]


_ARGUMENTS: Any = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]


def available() -> bool:
    return load_library("grammar") is not None


class NativeWalker:
    """Owner of the pointers that one space's tables are read through. Not thread-safe, as its tables aren't."""

    def __init__(self, tables: Tables, packed: dict[int, PackedTrie] | None = None) -> None:
        """`packed`: tries that are packed already, by the id of the trie."""
        library = load_library("grammar")
        if library is None:
            raise RuntimeError("the native library 'grammar' isn't built")
        self._walk: Callable[..., int] = library.imp_grammar_walk
        self._walk_keys: Callable[..., int] = library.imp_grammar_walk_keys
        library.imp_grammar_walk.argtypes = library.imp_grammar_walk_keys.argtypes = _ARGUMENTS
        self._nearest: Callable[..., int] = library.imp_grammar_nearest
        library.imp_grammar_nearest.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int32] + [ctypes.c_void_p] * 2
        library.imp_grammar_nearest.restype = ctypes.c_int64
        self._tables = tables
        self._error: BaseException | None = None
        self._fill = _FILL(self._filled)
        self._asks = np.zeros(MAX_ASKS, dtype=np.int32)
        self._walker = _Walker(ctypes.addressof(tables.head), self._fill, None, self._asks.ctypes.data, MAX_ASKS, 0, 0)
        self._walker_at = ctypes.addressof(self._walker)
        self._reserve(256)
        self._tries = dict(packed or {})

    def _reserve(self, n_frames: int) -> None:
        self._frames: Any = (ctypes.c_int32 * n_frames)()
        self._walker.stack = ctypes.addressof(self._frames)

    def _filled(self, local: int, byte: int) -> int:
        if self._error is not None:
            return DEAD
        try:
            entry = self._tables.fill(local, byte)
        except BaseException as error:
            # an exception can't cross the native frame: it is kept, and raised behind it
            self._error = error
            return DEAD
        return entry if entry != HOLE else DEAD

    def walk(self, trie: TokenTrie, stack: list[int], out: NDArray[np.uint32], address: int) -> WalkResult:
        """As walk.walk; `address` is that of `out`'s memory. Raises what filling a hole raised."""
        return self._run(self._walk, trie, stack, address)

    def walk_keys(self, trie: TokenTrie, stack: list[int], address: int) -> WalkResult:
        """From a native key text whose `out` begins as the mask of an undeclared name: corrects what known names say.

        The twin is a walk of all tokens.
        """
        return self._run(self._walk_keys, trie, stack, address)

    def nearest(self, trie: TokenTrie, local: int, ranks: list[int], n_ids: int) -> tuple[NDArray[np.int32], int]:
        """(by token id: the position of least rank behind the token, or DEAD; units of that). `local`: of positions."""
        found, order = np.full(n_ids, DEAD, np.int32), np.array(ranks, np.int32)
        packed = self._tries[id(trie)]
        tables = ctypes.addressof(self._tables.head)
        n_words = self._nearest(tables, packed.address, local, order.ctypes.data, found.ctypes.data)
        return found, n_words // WORDS_PER_UNIT

    def _run(self, call: Callable[..., int], trie: TokenTrie, stack: list[int], address: int) -> WalkResult:
        packed = self._tries.get(id(trie))
        if packed is None:
            packed = self._tries[id(trie)] = PackedTrie(trie)
        n = len(stack)
        if n > len(self._frames):
            self._reserve(2 * n)
        self._frames[:n] = stack
        n_asks = call(self._walker_at, packed.address, n, address)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if n_asks > MAX_ASKS:
            raise RuntimeError(f"a walk met {n_asks} unknown nodes")
        asks = [int(a) for a in self._asks[:n_asks]] if n_asks else []
        return WalkResult(self._walker.depth_used, asks, self._walker.n_words // WORDS_PER_UNIT)
