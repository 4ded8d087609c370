"""The memory of grammars: what all of an engine share, in generations that are given up as wholes.

States refer to each other, so no single one can be given up; a generation can, once nothing stands on it. The bytes are
those charged by the constructors (core/turns.py) while the generation's lock was held, and those of its masks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import chain
from threading import RLock
from types import TracebackType
from typing import Any
from weakref import WeakSet

from imp_server.core import GrammarMemoryFull, GrammarPlan
from imp_server.core.turns import kept, n_charged, spend
from imp_server.grammar.frames.gaps import N_BLANKS
from imp_server.grammar.frames.space import Space
from imp_server.grammar.frames.stack import State, Stepper
from imp_server.grammar.machines.giving_up import emptied
from imp_server.grammar.machines.memo import forgotten
from imp_server.grammar.masks.distance import Distances
from imp_server.grammar.masks.fitting import Fitting
from imp_server.grammar.masks.masks import Masks
from imp_server.vocab.table import Vocabulary

MEMORY = 256 << 20
N_GENERATIONS = 4
"""The memory is shared by so many: the more, the less is lost when the oldest is given up."""
UNITS_PER_PIECE = 2
"""What it costs to take one interned thing apart."""


def _give_back() -> None:
    """Have the C library return what it holds free, where it knows how to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class SpaceLock:
    """A lock that several places of a thread may hold at once, and the bytes that were charged while it was held."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._depth = 0
        self._before = 0
        self.n_bytes = 0

    def acquire(self, timeout: float = -1) -> bool:
        if not self._lock.acquire(timeout=timeout):
            return False
        self._depth += 1
        if self._depth == 1:
            self._before = n_charged()
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.n_bytes += n_charged() - self._before
        self._lock.release()

    def __enter__(self) -> None:
        """As `acquire`: every question passes here."""
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._before = n_charged()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class GrammarGeneration:
    """Owner of everything that the grammars started in it share."""

    def __init__(self, vocabulary: Vocabulary, n_blanks: int, native: bool) -> None:
        self.lock = SpaceLock()
        with self.lock:
            self.space = Space(native=native, n_blanks=n_blanks)
            self.stepper = Stepper(self.space)
            self.masks = Masks(self.space, self.stepper, vocabulary, native)
        self.distances = Distances(self.stepper, self.masks.by_bytes)
        self.fitting = Fitting(self.stepper, self.distances, vocabulary, self.masks.trie, self.masks.nearest)
        self.places: dict[State, Any] = {}
        """What places.py keeps of states."""
        self.starts: dict[str, tuple[State, ...]] = {}
        """Of grammars, by digest."""

        self.users: WeakSet[Any] = WeakSet()
        """Whoever asks it something."""

    @property
    def n_bytes(self) -> int:
        return self.lock.n_bytes + self.masks.n_bytes

    def given_up(self) -> Iterator[None]:
        """Take everything apart, a piece at each step: what refers to each other would stay. It has no users."""
        yield from emptied(self.places)
        yield from self.distances.given_up()
        yield from self.stepper.given_up()
        yield from self.masks.given_up()
        yield from self.space.given_up()


class GrammarGenerations:
    """Owner of the generations of one vocabulary: one that grows, older ones, and what is left of one given up."""

    def __init__(
        self, vocabulary: Vocabulary, *, n_blanks: int = N_BLANKS, n_bytes: int = MEMORY, native: bool = True
    ) -> None:
        """`n_blanks`: most of them in a row outside strings, 0 for none at all. `n_bytes`: of all together.

        `native` False: everything in Python, for tests that compare.
        """
        self.vocabulary = vocabulary
        self._n_blanks, self._native = n_blanks, native
        self._most = n_bytes
        self._old: tuple[GrammarGeneration, ...] = ()
        """Replaced, never changed: the loop looks through them while another thread begins one."""
        self._leaving: Iterator[None] | None = None
        self._n_leaving = 0
        """Bytes of the generation that is being given up."""
        self._lock = RLock()
        self.current = self._begun()

    def _begun(self) -> GrammarGeneration:
        return GrammarGeneration(self.vocabulary, self._n_blanks, self._native)

    @property
    def space(self) -> Space:
        return self.current.space

    @property
    def stepper(self) -> Stepper:
        return self.current.stepper

    @property
    def masks(self) -> Masks:
        return self.current.masks

    @property
    def n_bytes(self) -> int:
        """Of all generations."""
        return self._n_leaving + sum(generation.n_bytes for generation in (self.current, *self._old))

    def of(self, plan: GrammarPlan) -> GrammarGeneration:
        """The generation in which a grammar lives, or may begin. Raises GrammarMemoryFull.

        Who begins a grammar pays for the room that is made for it.
        """
        with self._lock:
            for generation in (self.current, *self._old):
                if plan.digest in generation.starts:
                    return generation
            if self.current.n_bytes > self._most // N_GENERATIONS:
                self._old = (*self._old, self.current)
                self.current = self._begun()
            while self.n_bytes > self._most:
                self._give_up()
            return self.current

    def _give_up(self) -> None:
        """Let go of the oldest generation that nobody uses: piece by piece, over several turns if need be."""
        if self._leaving is None:
            oldest = next((generation for generation in self._old if not generation.users), None)
            if oldest is None:
                raise GrammarMemoryFull("the grammars of replies under way fill the memory for grammars; try again")
            self._old = tuple(generation for generation in self._old if generation is not oldest)
            self._n_leaving = oldest.n_bytes
            self._leaving = chain(forgotten(), oldest.given_up())
            del oldest
        for _ in self._leaving:
            spend(UNITS_PER_PIECE)
            kept()
        self._leaving, self._n_leaving = None, 0
        _give_back()
