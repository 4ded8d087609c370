"""The memory of grammars: what all of an engine share, in generations that are given up as wholes.

States refer to each other, so no single one can be given up; a generation can, once nothing stands on it. The bytes are
those charged by the constructors (core/turns.py) while the generation's lock was held, and those of its masks.
"""

from __future__ import annotations

import ctypes
import gc
from collections import deque
from collections.abc import Iterator
from threading import RLock
from types import TracebackType
from typing import Any
from weakref import ref

from imp_server.core import GrammarMemoryFull, GrammarPlan
from imp_server.core.turns import n_charged
from imp_server.grammar.distance import Distances
from imp_server.grammar.fitting import Fitting
from imp_server.grammar.frames.local import N_BLANKS
from imp_server.grammar.frames.space import Space
from imp_server.grammar.frames.stack import State, Stepper
from imp_server.grammar.masks import Masks
from imp_server.grammar.memo import forget
from imp_server.vocab.table import Vocabulary

MEMORY = 256 << 20
N_GENERATIONS = 4
"""The memory is shared by so many: the more, the less is lost when the oldest is given up."""


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
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Generation:
    """Owner of everything that the grammars started in it share."""

    def __init__(self, vocabulary: Vocabulary, n_blanks: int, native: bool) -> None:
        self.lock = SpaceLock()
        with self.lock:
            self.space = Space(native=native, n_blanks=n_blanks)
            self.stepper = Stepper(self.space)
            self.masks = Masks(self.space, self.stepper, vocabulary, native)
        self.distances = Distances(self.stepper, self.masks.by_bytes)
        self.fitting = Fitting(self.stepper, self.distances, vocabulary, self.masks.trie)
        self.places: dict[State, Any] = {}
        """What places.py keeps of states."""
        self.starts: dict[str, tuple[State, ...]] = {}
        """Of grammars, by digest."""

    @property
    def n_bytes(self) -> int:
        return self.lock.n_bytes + self.masks.n_bytes


class Generations:
    """Owner of the generations of one vocabulary: one that grows, older ones, and those that only rows keep alive."""

    def __init__(
        self, vocabulary: Vocabulary, *, n_blanks: int = N_BLANKS, n_bytes: int = MEMORY, native: bool = True
    ) -> None:
        """`n_blanks`: most of them in a row outside strings, 0 for none at all. `n_bytes`: of all together.

        `native` False: everything in Python, for tests that compare.
        """
        self.vocabulary = vocabulary
        self._n_blanks, self._native = n_blanks, native
        self._most = n_bytes
        self._refs: tuple[ref[Generation], ...] = ()
        """Replaced, never changed: the loop looks through them while another thread begins one."""
        self._old: deque[Generation] = deque()
        self._lock = RLock()
        self.current = self._begun()

    def _begun(self) -> Generation:
        made = Generation(self.vocabulary, self._n_blanks, self._native)
        self._refs = (*(one for one in self._refs if one() is not None), ref(made))
        return made

    def _alive(self) -> Iterator[Generation]:
        return (made for one in self._refs if (made := one()) is not None)

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
        """Of all generations, those included that live rows alone keep alive."""
        return sum(generation.n_bytes for generation in self._alive())

    def of(self, plan: GrammarPlan) -> Generation:
        """The generation in which a grammar lives, or may begin. Raises GrammarMemoryFull."""
        with self._lock:
            for generation in (self.current, *self._alive()):
                if plan.digest in generation.starts:
                    return generation
            if self.current.n_bytes > self._most // N_GENERATIONS:
                self._old.append(self.current)
                self.current = self._begun()
            if self.n_bytes > self._most:
                self._give_up()
            return self.current

    def _give_up(self) -> None:
        """Let go of old generations until there is room."""
        while self._old and self.n_bytes > self._most:
            self._old.popleft()
            forget()
            gc.unfreeze()  # what is given up has cycles: frozen, it would stay
            gc.collect()
            gc.freeze()  # what was just looked through needn't be again
            _give_back()
        if self.n_bytes > self._most:
            raise GrammarMemoryFull("the grammars of replies under way fill the memory for grammars; try again")
