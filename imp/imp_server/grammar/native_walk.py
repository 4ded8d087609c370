"""The native walker (kernels/cpu/grammar) behind the same call as its twin in walk.py."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.tables import DEAD, HOLE, Tables
from imp_server.grammar.trie import TokenTrie
from imp_server.grammar.walk import WalkResult
from imp_server.native import load_library

MAX_ASKS = 4096


class _Trie(ctypes.Structure):
    _fields_ = [
        ("byte", ctypes.c_void_p),
        ("depth", ctypes.c_void_p),
        ("skip", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("n_nodes", ctypes.c_int32),
        ("max_depth", ctypes.c_int32),
    ]


_P, _I = ctypes.c_void_p, ctypes.c_int32
_FILL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)


_ARGUMENTS: Any = [_P, _P, _P, _I, _P, _FILL, _P, _I, _P]


def available() -> bool:
    return load_library("grammar") is not None


class NativeWalker:
    """Owner of the pointers that one space's tables are read through. Not thread-safe, as its tables aren't."""

    def __init__(self, tables: Tables) -> None:
        library = load_library("grammar")
        if library is None:
            raise RuntimeError("the native library 'grammar' isn't built")
        self._walk: Callable[..., int] = library.imp_grammar_walk
        library.imp_grammar_walk.argtypes = _ARGUMENTS
        self._tables = tables
        self._error: BaseException | None = None
        self._fill = _FILL(self._filled)
        self._asks = np.zeros(MAX_ASKS, dtype=np.int32)
        self._asks_at = self._asks.ctypes.data
        self._depth = ctypes.c_int32()
        self._depth_at = ctypes.addressof(self._depth)
        self._tables_at = ctypes.addressof(tables.head)
        self._frames = (ctypes.c_int32 * 256)()
        self._tries: dict[int, tuple[TokenTrie, _Trie, int]] = {}

    def _filled(self, local: int, byte: int) -> int:
        try:
            entry = self._tables.fill(local, byte)
        except BaseException as error:
            # an exception can't cross the native frame: it is kept, and raised behind it
            self._error = error
            return DEAD
        return entry if entry != HOLE else DEAD

    def walk(self, trie: TokenTrie, stack: list[int], out: NDArray[np.uint32]) -> WalkResult:
        """As walk.walk; `stack[0]` is the top. Raises what filling a hole raised."""
        packed = self._tries.get(id(trie))
        if packed is None:
            struct = _pack(trie)
            packed = self._tries[id(trie)] = trie, struct, ctypes.addressof(struct)
        n = len(stack)
        if n > len(self._frames):
            self._frames = (ctypes.c_int32 * (2 * n))()
        self._frames[:n] = stack  # type: ignore[assignment]
        n_asks = self._walk(
            self._tables_at,
            packed[2],
            self._frames,
            n,
            out.ctypes.data,
            self._fill,
            self._asks_at,
            MAX_ASKS,
            self._depth_at,
        )
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if n_asks > MAX_ASKS:
            raise RuntimeError(f"a walk met {n_asks} unknown nodes")
        return WalkResult(self._depth.value, [int(a) for a in self._asks[:n_asks]] if n_asks else [])


def _pack(trie: TokenTrie) -> _Trie:
    arrays = (trie.byte, trie.depth, trie.skip, trie.first, trie.ids)
    return _Trie(*(a.ctypes.data for a in arrays), len(trie.byte), int(trie.depth.max(initial=0)))
