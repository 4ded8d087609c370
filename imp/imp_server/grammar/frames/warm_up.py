"""Rows that the first masks of a schema will read, filled when the schema is met.

Filling a row asks the solver, which takes some ten microseconds; a mask has none to spare. What native code fills
(frames/simple_objects.py) is left to it.
"""

from __future__ import annotations

from collections import deque

from imp_server.grammar.frames.arrays import ArrayPhase, WaitingItem
from imp_server.grammar.frames.native_store import OPEN
from imp_server.grammar.frames.space import Space
from imp_server.grammar.frames.store import Frame
from imp_server.grammar.frames.tables import FIRST_OP, FOREIGN
from imp_server.grammar.frames.texts import Text
from imp_server.grammar.frames.values import ValueStart

MAX_FRAMES = 100
"""Frames filled for one schema: what it takes stays far below the time that reading a large schema takes."""


def warm_up(space: Space, local: int, n_frames: int = MAX_FRAMES) -> None:
    """Fill the frames in which values start that can be reached from `local`, nearest first."""
    todo, met = deque([local]), {local}
    while todo and n_frames:
        at = todo.popleft()
        found: list[int] = []
        if space.tables.kind_of[at] == OPEN and space.simple is not None:
            found = space.simple.starts(at)
        elif space.tables.kind_of[at] == FOREIGN:
            n_frames -= 1
            found = _filled(space, space.locals[at])
        for target in found:
            if target not in met:
                met.add(target)
                todo.append(target)


def _filled(space: Space, frame: Frame) -> list[int]:
    """Fill the frame; the frames that it leads to, as far as they are of interest."""
    tables = space.tables
    if isinstance(frame, Text):
        tables.entry(frame.id, 0x61)
    if isinstance(frame, WaitingItem) and not frame.of_leaves:
        return [tables.entry(frame.id, 0)]
    if not isinstance(frame, ValueStart | ArrayPhase):
        return []
    if frame.tight and isinstance(frame, ValueStart):
        tables.entry(frame.id, 0x20)
        return []
    tables.entry(frame.id, 0x20)
    found: list[int] = [space.values.start(frame.goal, True).id] if isinstance(frame, ValueStart) else []
    for entry in dict.fromkeys(tables.rows[frame.id].tolist()):
        if entry >= 0:
            found.append(entry)
        elif entry <= FIRST_OP:
            found += [target for target in tables.operation(entry) if target >= 0]
    return found
