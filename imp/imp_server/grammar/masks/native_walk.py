"""The native walker (kernels/cpu/grammar) behind the same call as its twin in walk.py. It gives way, and goes on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from imp_server.grammar.frames.tables import DEAD, HOLE, TransitionTables
from imp_server.grammar.machines import abi
from imp_server.grammar.machines.abi import built_library, grammar_library
from imp_server.grammar.masks.packed_trie import PackedTrie
from imp_server.grammar.masks.trie import TokenTrie
from imp_server.grammar.masks.walk import Walk

MAX_ASKS = 4096
WORDS_PER_UNIT = 4096
"""Words that steps of positions read and write in the time of a unit, and some more."""
PIECE_UNITS = 500
"""What a walk does at a stretch: nobody can stop it meanwhile."""


def available() -> bool:
    return grammar_library() is not None


class NativeWalker:
    """Owner of the pointers that one space's tables are read through. Not thread-safe, as its tables aren't."""

    def __init__(self, tables: TransitionTables, packed: dict[int, PackedTrie] | None = None) -> None:
        """`packed`: tries that are packed already, by the id of the trie."""
        library = built_library()
        self._walk: Callable[..., int] = library.imp_grammar_walk
        self._walk_keys: Callable[..., int] = library.imp_grammar_walk_keys
        arguments: list[Any] = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]
        library.imp_grammar_walk.argtypes = library.imp_grammar_walk_keys.argtypes = arguments
        self._nearest: Callable[..., None] = library.imp_grammar_nearest
        library.imp_grammar_nearest.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int32] + [ctypes.c_void_p] * 2
        library.imp_grammar_nearest.restype = None
        self._tables = tables
        self._error: BaseException | None = None
        self._fill = abi.FILL(self._filled)
        self._asks = np.zeros(MAX_ASKS, dtype=np.int32)
        self._walker = abi.Walker(fill=self._fill, asks=self._asks.ctypes.data, max_asks=MAX_ASKS)
        self._walker.tables = ctypes.addressof(tables.head)
        self._walker_at = ctypes.addressof(self._walker)
        self._cursor = self._walker.cursor
        self._cursor.max_words = PIECE_UNITS * WORDS_PER_UNIT
        self._reserve(256, 256)
        self._tries = dict(packed or {})

    def _reserve(self, n_frames: int, n_levels: int) -> None:
        self._n_frames, self._n_levels = n_frames, n_levels
        self._frames: Any = (ctypes.c_int32 * n_frames)()
        self._levels: Any = (ctypes.c_int32 * n_levels)()
        self._walker.stack = ctypes.addressof(self._frames)
        self._cursor.nodes = ctypes.addressof(self._levels)

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

    def walk(self, walk: Walk, stack: list[int]) -> None:
        """Go on with it for a piece, as walk.walk. Raises what filling a hole raised: the piece is to be done again."""
        self._run(self._walk, walk, stack)

    def walk_keys(self, walk: Walk, stack: list[int]) -> None:
        """From a native key text whose `out` begins as the mask of an undeclared name: corrects what known names say.

        The twin is a walk of all tokens.
        """
        self._run(self._walk_keys, walk, stack)

    def nearest(self, walk: Walk, local: int, order: int) -> None:
        """In `out`, by token id: the position of least rank behind the token.

        `local`: of positions. `order`: address of the ranks.
        """
        packed = self._begin(walk, 1)
        self._nearest(self._walker_at, packed.address, local, order, walk.address)
        self._end(walk)

    def _begin(self, walk: Walk, n_frames: int) -> PackedTrie:
        packed = self._tries.get(id(walk.trie)) or self._packed(walk.trie)
        if n_frames > self._n_frames or packed.n_levels > self._n_levels:
            self._reserve(max(2 * n_frames, self._n_frames), max(packed.n_levels, self._n_levels))
        cursor = self._cursor
        if walk.nodes:
            self._levels[: len(walk.nodes)] = walk.nodes
        cursor.n_levels, cursor.block = len(walk.nodes), walk.block
        return packed

    def _end(self, walk: Walk) -> None:
        cursor = self._cursor
        n_levels = cursor.n_levels
        if n_levels:
            walk.nodes, walk.block = self._levels[:n_levels], cursor.block
        else:
            walk.nodes, walk.is_over = [], True
        walk.n_units = cursor.n_words // WORDS_PER_UNIT

    def _packed(self, trie: TokenTrie) -> PackedTrie:
        packed = self._tries.get(id(trie))
        if packed is None:
            packed = self._tries[id(trie)] = PackedTrie(trie)
        return packed

    def _run(self, call: Callable[..., int], walk: Walk, stack: list[int]) -> None:
        n = len(stack)
        packed = self._begin(walk, n)
        self._frames[:n] = stack
        n_asks = call(self._walker_at, packed.address, n, walk.address)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if n_asks > MAX_ASKS:
            raise RuntimeError(f"a walk met {n_asks} unknown nodes")
        if n_asks:
            walk.asks += self._asks[:n_asks].tolist()
        walk.depth_used = max(walk.depth_used, self._walker.depth_used)
        self._end(walk)
