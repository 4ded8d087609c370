"""The first steps of replies under a grammar, taken by its check: what a mask would find too costly is refused there.

Members and items that are bound together are proved anew behind each of them, and a mask asks about all that may come
next. Simple objects, whose members don't depend on each other, cost next to nothing and are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from imp_server.core import GrammarDeadEnd
from imp_server.core.limits import QUESTION, Limit
from imp_server.core.turns import OverBudget, spend
from imp_server.grammar.frames.arrays import ArrayPhase, WaitingItem
from imp_server.grammar.frames.goals import Bits
from imp_server.grammar.frames.native_store import OPEN
from imp_server.grammar.frames.objects import ObjectPhase, WaitingMember
from imp_server.grammar.frames.plain_values import Scalar
from imp_server.grammar.frames.space import Space
from imp_server.grammar.frames.stack import State, Stepper
from imp_server.grammar.frames.tables import FIRST_OP, FOREIGN
from imp_server.grammar.frames.texts import Text
from imp_server.grammar.frames.values import ValueStart
from imp_server.grammar.machines.machine import DEAD, UNBOUNDED
from imp_server.grammar.masks.distance import Distances

MAX_FRAMES = 40
ENOUGH = 10_000
"""Units after which no further frame is looked at."""
MAX_NAMES = 100
MOST = Limit(QUESTION.n_units // 2, QUESTION.n_bytes // 2)
"""Of one frame. The bytes of a token pass several, but few of them are dear."""
BLANK = 0x20
MAX_ENDINGS = 12
MOST_OF_ENDING = Limit(MOST.n_units, QUESTION.n_bytes)
"""The check has proved much of what an engine has to find anew."""
ONSETS = b" ,b,st, c,x,3,-, W".split(b",")
CODAS = b",n,st,ly".split(b",")
LETTERS = b"abcdefghijklmnopqrstuvwxyz"
SYLLABLES = [onset + bytes([letter]) + coda for coda in CODAS for letter in LETTERS for onset in ONSETS]
WORDS = [SYLLABLES[i * 277 % len(SYLLABLES)] for i in range(len(SYLLABLES))]
"""As tokens are: with few beginnings, in no order."""
LONG = [b" " * 40, b"-" * 40, b"0" * 16] + [
    b" " + word
    for word in b"experimentally unexplainable extracurricular subsequently knowledgeable jurisdictions whatsoever "
    b"internationalization mathematical disproportionate zigzagging quizzically overwhelmingly".split()
]
FAR = b"a lamb crept up the 12 big steps, axed by Quincy: mud for Joe's 7 wax hogs, zebra cabs and vexed quail back"
FEW_UNITS = 60
"""Of that text, for a machine whose states are known or cheap."""
DOUBLINGS = 7
"""How often the words have to be doubled until they have as many bytes as a vocabulary of 70,000 tokens has places."""


def rehearse(space: Space, local: int) -> None:
    """Raises OverBudget where the frames that a token may reach take more than a question may."""
    todo, met = deque([local]), {local}
    n_left, n_units = MAX_FRAMES, 0
    while todo and n_left and n_units < ENOUGH:
        at = todo.popleft()
        if space.simple is not None and space.tables.kind_of[at] == OPEN:
            targets = space.simple.starts(at)[:MAX_NAMES]
        elif isinstance(frame := space.locals[at], ValueStart | ObjectPhase | ArrayPhase | Text | Scalar):
            n_left -= 1
            targets, n_more = _rehearsed(space, frame)
            n_units += n_more
        else:
            continue
        for target in targets:
            if target not in met:
                met.add(target)
                todo.append(target)


def _rehearsed(space: Space, frame: ValueStart | ObjectPhase | ArrayPhase | Text | Scalar) -> tuple[list[int], int]:
    """The frames that may follow, and the units that it took to tell."""
    budget = MOST.budget()
    try:
        if isinstance(frame, Text | Scalar):
            return [], _read(space, frame)
        with budget.spent():
            targets = list(_led_to(space, frame))
        return targets, MOST.n_units - budget.n_units
    except OverBudget as over:
        over.stands(space.store.place(frame.id))
        raise


def rehearse_ending(stepper: Stepper, distances: Distances, state: State) -> None:
    """Raises OverBudget where the way to the end takes too much, at the first bytes of the way from the start."""
    try:
        data = distances.way(state).bytes()
    except GrammarDeadEnd:
        return
    for byte in data[:MAX_ENDINGS]:
        after = stepper.step(state, byte)
        if after is None:
            return
        state = after
        with MOST_OF_ENDING.budget().spent():
            distances.n_tokens(state)


def _read(space: Space, frame: Text | Scalar) -> int:
    """Units of reading some text; where that makes new states, words are read behind it, as a mask would.

    The text itself is read one token at a time in serving, so no question pays for all of it.
    """
    if frame.verdicts.room(frame.state) >= UNBOUNDED:
        return 0  # its masks are those of free text (masks.py)
    if frame.verdicts.is_sparse:
        return 0  # what a step costs is bounded, and no token makes a state (glushkov.py)
    budget = QUESTION.budget()
    with budget.spent():
        far = _after(space, frame.id, FAR, skips=True)
    n_units = QUESTION.n_units - budget.n_units
    if n_units >= FEW_UNITS:
        for at in dict.fromkeys((frame.id, far)):
            _read_words(space, at)
    return n_units


def _read_words(space: Space, local: int) -> None:
    """Raises OverBudget if a mask takes more than a question may.

    How much the second half of some words adds to the first tells how much every doubling will.
    """
    spend(len(WORDS))  # beside the budget: it foretells what new states will cost
    budget = MOST.budget()
    with budget.spent():
        for word in (*LONG, *WORDS[: len(WORDS) // 2]):
            _after(space, local, word)
    half = 1 + MOST.n_units - budget.n_units
    with budget.spent():
        for word in WORDS[len(WORDS) // 2 :]:
            _after(space, local, word)
    whole = 1 + MOST.n_units - budget.n_units
    if whole ** (DOUBLINGS + 1) > half**DOUBLINGS * MOST.n_units:
        raise OverBudget("work")


def _after(space: Space, local: int, text: bytes, *, skips: bool = False) -> int:
    """The place behind the bytes of `text`, as far as they may come; `skips`: those that may not are left out."""
    for byte in text:
        entry = space.tables.entry(local, byte)
        if entry >= 0 and space.tables.kind_of[entry] == FOREIGN:
            local = entry
        elif not skips:
            break
    return local


def _led_to(space: Space, frame: ValueStart | ObjectPhase | ArrayPhase) -> Iterator[int]:
    space.tables.entry(frame.id, BLANK)
    if isinstance(frame, ValueStart):
        yield from _values(space, frame)
    elif isinstance(frame, ObjectPhase):
        yield from _members(frame)
    elif (item := frame.state.item) is not None:
        goal, waiting = item
        yield space.values.start(goal, True).id
        for bits in _results(waiting):
            yield space.arrays.phase(waiting.after(bits), "after", False).id


def _values(space: Space, frame: ValueStart) -> Iterator[int]:
    for entry in dict.fromkeys(space.tables.rows[frame.id].tolist()):
        if entry >= 0:
            yield entry
        elif entry <= FIRST_OP:
            yield from (target for target in space.tables.operation(entry) if target >= 0)


def _members(frame: ObjectPhase) -> Iterator[int]:
    state, objects = frame.state, frame.state.objects
    if state.keys.is_limited and not state.keys.apart and state.keys.start != DEAD:
        yield objects.key_texts.opened(state.keys)
    for kind in islice(state.keys.known_kinds(), MAX_NAMES):
        member = state.member(kind)
        if member is not None:
            yield objects.values.start(member.goal, True).id
            if not state.is_simple:
                for bits in _results(member.waiting):
                    yield objects.phase(member.waiting.after(bits), "after", False).id


def _results(waiting: WaitingMember | WaitingItem) -> list[Bits]:
    """What is known so far of how the value may turn out."""
    return [()] if waiting.judge is None else waiting.judge.vectors[:4]
