"""Texts of positions natively: what a walk reads without a frame for each set (kernels/cpu/grammar/positions.h).

A frame whose machine is a PositionMachine is told here when it is made. Its row is still filled, entry by entry, for
the exact step; that is the plain twin.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imp_server.core.turns import charge
from imp_server.grammar.frames.store import Frame
from imp_server.grammar.frames.tables import TransitionTables
from imp_server.grammar.frames.verdicts import Reading
from imp_server.grammar.machines.abi import built_library
from imp_server.grammar.machines.glushkov import Jump, Tracks, lowest
from imp_server.grammar.machines.position_machine import PositionMachine

NEVER = (1 << 31) - 1
GOALS = ("any", "all", "one")
_P, _I, _I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_CALLS: dict[str, tuple[Any, list[Any]]] = {
    "positions": (_P, [_I, _I64, _P, _I, _P, _I, _P, _I, _P, _I, _P, _I, _P, _I, _P, _I, _I, _P, _I]),
    "positions_free": (None, [_P]),
    "positions_link": (None, [_P, _I, _P, _I, _P, _P, _I, _P, _P]),
    "position_texts": (_P, []),
    "position_texts_free": (None, [_P]),
    "position_text": (None, [_P, _I, _P, ctypes.c_char_p, _I, ctypes.c_uint32, ctypes.c_uint32, _I, _I, _I]),
}


def _calls() -> dict[str, Callable[..., Any]]:
    library = built_library()
    found = {}
    for name, (answer, arguments) in _CALLS.items():
        call = getattr(library, f"imp_grammar_{name}")
        call.restype, call.argtypes = answer, arguments
        found[name] = call
    return found


def machine_of(local: Frame) -> PositionMachine | None:
    """The machine of a frame that is a text of positions."""
    return local.positions if isinstance(local, Reading) else None


class PositionTexts:
    """Owner of the native store of one space's texts of positions."""

    def __init__(self, tables: TransitionTables) -> None:
        """The store is made when there is something to keep in it: without one a walk needn't look."""
        self._tables = tables
        self._call = _calls()
        self._at: int | None = None

    def tell(self, frame: Reading, *, quoted: bool) -> None:
        """Of a new frame, if it is one of positions. `quoted`: between the quotes of a JSON string."""
        machine = frame.positions
        if machine is None or frame.captures:
            return
        if self._at is None:
            self._at = int(self._call["position_texts"]())
            weakref.finalize(self, self._call["position_texts_free"], self._at)
            self._tables.head.texts = self._at
        native = machine.native
        if native is None:
            native = machine.native = NativePositions(machine)
        place = machine.place(frame.state)
        here = place.positions.to_bytes(8 * machine.positions.n_words, "little")
        self._call["position_text"](self._at, frame.id, native.at, here, *place[1:], quoted)


class NativePositions:
    """Owner of one automaton's native copy."""

    def __init__(self, machine: PositionMachine) -> None:
        call, positions = _calls(), machine.positions
        n_words, goal = positions.n_words, positions.goal
        among = [*positions.chars, positions.ends, *(moved for _, moved in positions.shifts), goal.lost]
        jumps, words = _cut_jumps(positions.jumps)
        parts = [_cut(found) for found in goal.done]
        words += [part for _, part in parts]
        near, far = machine.counted
        ints: list[Any] = [
            [*positions.starts, *positions.kinds],
            [distance for distance, _ in positions.shifts],
            jumps,
            [[first, len(part)] for first, part in parts],
            [min(n, NEVER) for n in machine.missing],
        ]
        segments, shifts, jumps_, done, missing = (np.array(numbers or [0], np.int32) for numbers in ints)
        sets, counted = _words(among, n_words), _words([*near, *far], n_words)
        bits = np.concatenate(words or [np.zeros(1, np.uint64)])
        charge(segments.nbytes + sets.nbytes + counted.nbytes + bits.nbytes, 20)
        arguments = [n_words, positions.cost]
        for array, n in ((segments, len(positions.starts)), (sets, len(positions.chars))):
            arguments += [array.ctypes.data, n]
        for array, n in ((shifts, len(positions.shifts)), (jumps_, len(jumps))):
            arguments += [array.ctypes.data, n]
        arguments += [bits.ctypes.data, GOALS.index(goal.kind), done.ctypes.data, len(parts)]
        arguments += [counted.ctypes.data, len(near), len(far), missing.ctypes.data, len(machine.missing)]
        self.at = int(call["positions"](*arguments))
        weakref.finalize(self, call["positions_free"], self.at)
        if positions.tracks is not None:
            for link in range(len(positions.tracks.links)):
                self._add_link(positions.tracks, link)

    def _add_link(self, tracks: Tracks, link: int) -> None:
        shifts, jumps = tracks.links[link]
        cuts, words = _cut_jumps(jumps)
        then = [number for after in tracks.then[link] for number in (len(after), *after)]
        ints = [np.array(numbers or [0], np.int32) for numbers in ([distance for distance, _ in shifts], cuts, then)]
        moved = _words([among for _, among in shifts], tracks.width)
        bits = np.concatenate(words or [np.zeros(1, np.uint64)])
        charge(moved.nbytes + bits.nbytes + ints[2].nbytes, 5)
        moves = [ints[0].ctypes.data, len(shifts), moved.ctypes.data, ints[1].ctypes.data, len(cuts), bits.ctypes.data]
        _calls()["positions_link"](self.at, tracks.width, *moves, ints[2].ctypes.data)


def _cut_jumps(jumps: list[Jump]) -> tuple[list[list[int]], list[NDArray[np.uint64]]]:
    """(source, n_source, target, n_target) of each, and their words one after another."""
    cuts = [(_cut(source), _cut(target)) for source, target in jumps]
    return [[s[0], len(s[1]), t[0], len(t[1])] for s, t in cuts], [part for pair in cuts for _, part in pair]


def _words(sets: list[int], n_words: int) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(s.to_bytes(8 * n_words, "little") for s in sets), np.uint64)


def _cut(positions: int) -> tuple[int, NDArray[np.uint64]]:
    """The first word that isn't empty, and the words from there to the last."""
    first = lowest(positions) // 64
    rest = positions >> 64 * first
    return first, _words([rest], (rest.bit_length() + 63) // 64)
