"""The space: everything interned that masks and advances are made of. Shared by all grammars of an engine.

Content is interned by what it means, so two schemas with the same subschema share its states, transitions and masks.
"""

from __future__ import annotations

from collections.abc import Iterator

from imp_server.grammar.frames.arrays import Arrays
from imp_server.grammar.frames.ends import Ends
from imp_server.grammar.frames.gaps import N_BLANKS, Gaps
from imp_server.grammar.frames.key_texts import KeyTexts
from imp_server.grammar.frames.objects import Objects
from imp_server.grammar.frames.plain_values import Booleans, Nulls, Numbers, Scalars, StringValues, WordFrames
from imp_server.grammar.frames.position_texts import PositionTexts
from imp_server.grammar.frames.scripts import Scripts
from imp_server.grammar.frames.simple_objects import NativeKeyTexts, NativeObjects, SimpleObjects, Views, native_store
from imp_server.grammar.frames.store import Store
from imp_server.grammar.frames.texts import Texts
from imp_server.grammar.frames.values import Values
from imp_server.grammar.frames.verdicts import AllVerdicts
from imp_server.grammar.machines.abi import grammar_library
from imp_server.grammar.machines.giving_up import part
from imp_server.grammar.values.leaves import ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING
from imp_server.grammar.values.schema.document import Document

N_LOCALS = 1 << 18


class Space:
    """Owner of a store and of the factories of all kinds of frames."""

    def __init__(self, n_locals: int = N_LOCALS, native: bool = True, n_blanks: int = N_BLANKS) -> None:
        """`n_locals`: room for this many locals is reserved (not touched) at once. `native`: where it is built.

        `n_blanks`: most blanks in a row outside strings; 0 allows no newline, either.
        """
        self.store = store = Store(n_locals, n_blanks)
        self.algebra, self.solver, self.tables, self.locals = store.algebra, store.solver, store.tables, store.locals
        self.verdicts = AllVerdicts(store)
        self.texts = Texts(store, self.verdicts)
        self.gaps = Gaps(store)
        self.ends = Ends(store)
        self.values = Values(store, self.gaps)
        self.words = WordFrames(store)
        self.scalars = Scalars(self.texts)
        self.arrays = Arrays(self.values, self.texts)
        self.scripts = Scripts(self.values, self.scalars, self.ends)
        self.document: tuple[str, Document] | None = None
        """The one read last, and the digest of its plan: a start that goes on in another turn doesn't read it again."""
        self.simple: SimpleObjects | None = None
        if native and grammar_library() is not None:
            self.objects = self._native_objects()
        else:
            self.objects = Objects(self.values, self.words, KeyTexts(self.texts))
        self.values.kinds |= {
            NULL: Nulls(self.words),
            BOOLEAN: Booleans(self.words),
            NUMBER: Numbers(self.scalars),
            STRING: StringValues(self.texts),
            ARRAY: self.arrays,
            OBJECT: self.objects,
        }

    def _native_objects(self) -> Objects:
        store = self.store
        store.native = native_store(store, self.gaps, self.texts)
        self.texts.positions = PositionTexts(self.tables)
        self.simple = SimpleObjects(store.native, self.values)
        objects = NativeObjects(self.values, self.words, NativeKeyTexts(self.texts, self.simple), self.simple)
        store.view = Views(store.native, self.simple, objects).of
        return objects

    def given_up(self) -> Iterator[None]:
        """Take everything apart, a piece at each step. Nobody uses it any more."""
        yield from self.store.given_up()
        part(self)
        yield
