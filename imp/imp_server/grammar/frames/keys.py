"""The keys that may be typed next in an object, as one machine over decoded names.

Declared and used names run through a trie, everything else through the patterns and name rules of the leaves.
Names are compared decoded, so no spelling slips past its schema, and a used name can't be typed again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Protocol

from imp_server.core.turns import GaveUp, spend
from imp_server.grammar.frames.goals import Goal
from imp_server.grammar.frames.plain_values import WordFrames
from imp_server.grammar.frames.shapes import UNDECLARED, KeyKind, Shape, accepts
from imp_server.grammar.frames.store import ListedFrame
from imp_server.grammar.frames.texts import needs_escape
from imp_server.grammar.frames.verdicts import Verdicts
from imp_server.grammar.machines.combine import anything, nothing
from imp_server.grammar.machines.explored import refined
from imp_server.grammar.machines.machine import DEAD, Machine
from imp_server.grammar.machines.product import Product, States, one_by_one
from imp_server.grammar.values.leaves import STRING, Names
from imp_server.grammar.values.sat.found import LONGEST, Found
from imp_server.grammar.values.scalars import string_machine

MAX_COMPARED = 32


class Keyed(Protocol):
    """The object whose keys they are, as far as they ask about it."""

    @property
    def goal(self) -> Goal: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def seen(self) -> frozenset[str]: ...
    @property
    def missing(self) -> frozenset[str]: ...
    @property
    def names_leaves(self) -> list[Names]: ...

    def allows(self, kind: KeyKind) -> bool:
        """Whether a key of this kind may be typed."""
        ...

    def colon(self, kind: KeyKind) -> int:
        """The local behind the closing quote of such a key; DEAD if none may be typed."""
        ...

    def colon_named(self, kind: KeyKind, name: str) -> int:
        """The same for an unknown name of the kind, which is remembered as used."""
        ...

    def size_with(self, kind: KeyKind) -> int | None:
        """Bytes of a shortest rest that begins with such a key."""
        ...

    def remaining_after_one(self) -> Found | None: ...


class WaitingName(ListedFrame):
    """The object's frame while the rest of its only possible key is read above it."""

    __slots__ = ("keys", "result")

    captures = True

    def __init__(self, keys: Keys, result: int) -> None:
        super().__init__(keys.words.store)
        self.keys = keys
        self.result = result

    def entries(self) -> dict[int, int]:
        return {0: self.keys.closed(self.result)}


class Keys:
    """Verdicts over the names of one object, and the Closer of their texts. Results number the KeyKinds."""

    strict = True
    is_sparse = False

    def __init__(self, words: WordFrames, state: Keyed) -> None:
        self.words = words
        self.object = state
        self._algebra = algebra = words.store.owned_by(self).algebra
        self._waiting: dict[int, WaitingName] = {}
        shape = state.shape
        self._names = shape.trie(state.seen | state.missing)
        self._trie = self._names.literals
        self._patterns = shape.patterns
        self._parts: list[Machine] = [*shape.machines]
        restrict = algebra.formulas.restrict
        for leaf in state.names_leaves:
            self._parts.append(string_machine(algebra, restrict(leaf.sub.formula, STRING)))
        self.is_limited = bool(self._parts)
        self._kinds: list[KeyKind] = []
        self._kind_numbers: dict[KeyKind, int] = {}
        self._alive: dict[int, bool] = {}
        self._moves: dict[int, dict[int, int]] = {}
        self._text = anything()
        self.apart = not self._parts and state.allows(UNDECLARED)
        """Undeclared names are read by a pushed free text (key_texts.py): this machine knows the others alone."""
        self._open = bool(self._parts)
        """Undeclared names are read here, since rules of their own bind them."""
        parts = [self._text if self._open else nothing(), self._trie or nothing(), *self._parts]
        self._product = Product(parts, _is_lost, self._may_close, self._guesses, self._place)
        self._first = tuple(m.start for m in parts)
        first = self._product.number(self._first)
        self.start = first if first != DEAD and self._is_alive(first) else DEAD

    @cached_property
    def classes(self) -> bytes:
        known: list[Machine] = [self._trie] if self._trie else []
        machines = [self._text, *known, *self._parts] if self._open else known
        return refined([m.classes for m in machines]) if machines else bytes(256)

    @property
    def possible(self) -> bool:
        """Whether any key may be typed."""
        return self.apart or self.start != DEAD

    def undeclared(self) -> int:
        """The local behind the closing quote of any name unknown to the leaves; DEAD if none may be typed."""
        return self.object.colon(UNDECLARED)

    def undeclared_named(self, name: str) -> int:
        """The same, and the name is remembered as used."""
        return self.object.colon_named(UNDECLARED, name)

    # --- Verdicts ---------------------------------------------------------------------------

    def step(self, state: int, byte: int) -> int:
        target = self._product.raw_step(state, byte)
        return target if target != DEAD and self._is_alive(target) else DEAD

    def result(self, state: int) -> int:
        kind = self._kind(self._product.states(state))
        if kind is None or not self.object.allows(kind):
            return -1
        return self._number(kind)

    def _may_close(self, states: States) -> bool:
        kind = self._kind(states)
        return kind is not None and self.object.allows(kind)

    def _place(self) -> str | None:
        return self._algebra.place_of(self.object.goal.must)

    def _guesses(self, states: States) -> Iterator[bytes]:
        """A shortest name that one rule knows may suit all, or what pleases the rules one by one.

        Of the first byte's place also what the solver knows.
        """
        alive = [(part, state) for part, state in zip(self._parts, states[2:]) if state != DEAD]
        for part, state in alive:
            yield part.shortest(state) or b""
        n = len(self._patterns)
        lawful, at = self._parts[n:], states[2 + n :]
        if lawful and DEAD not in at:
            yield one_by_one(lawful, at)
            for pattern, state in zip(self._parts[:n], states[2:]):
                if state != DEAD:
                    yield one_by_one([pattern, *lawful], [state, *at])
        if states == self._first:
            yield self._witness()

    def _number(self, kind: KeyKind) -> int:
        number = self._kind_numbers.setdefault(kind, len(self._kinds))
        if number == len(self._kinds):
            self._kinds.append(kind)
        return number

    def room(self, state: int) -> int:
        return 0

    def moves(self, state: int) -> dict[int, int] | None:
        return None if self._open else self.known_moves(state)

    def known_moves(self, state: int) -> dict[int, int]:
        """byte -> next state on the trie."""
        found = self._moves.get(state)
        if found is None:
            assert self._trie is not None
            found = {}
            for byte, trie in self._trie.row(self._product.states(state)[1]).items():
                target = self._product.number((DEAD, trie))
                if self._is_alive(target):
                    found[byte] = target
            self._moves[state] = found
        return found

    def is_known(self, state: int) -> bool:
        """Whether a declared or used name ends here."""
        trie = self._product.states(state)[1]
        return trie != DEAD and self._trie is not None and self._trie.index(trie) >= 0

    def pending(self, state: int) -> bytes:
        """The bytes of the code point that isn't complete here."""
        assert self._trie is not None
        trie = self._product.states(state)[1]
        read = self._trie.texts[self._trie.span(trie)[0]][: self._trie.depth(trie)]
        for n in range(1, min(3, len(read)) + 1):
            if read[-n] >= 0xC0:
                return read[-n:] if read[-n] >= (0xC0, 0xE0, 0xF0)[n - 1] else b""
            if read[-n] < 0x80:
                break
        return b""

    def undeclared_rest(self, state: int) -> bytes:
        """A way from here to the end of a name that is unknown."""
        assert self._trie is not None
        trie = self._product.states(state)[1]
        read = self._trie.texts[self._trie.span(trie)[0]][: self._trie.depth(trie)]
        text = self._text.start
        for byte in self.pending(state):
            text = self._text.step(text, byte)
        rest = self._text.shortest(text) or b""
        while read + rest in self._trie.texts:
            rest += b"z"
        return rest

    def shortest(self, state: int) -> bytes:
        """The rest of the name whose member is shortest; an undeclared one only if it's the only way."""
        known = self.nearest(state)
        if known is not None:
            return known
        word = self._product.word(state)
        assert word is not None
        return word

    def nearest(self, state: int) -> bytes | None:
        """The rest of the known name whose member is shortest."""
        best: tuple[int, bytes] | None = None
        trie = self._product.states(state)[1]
        if self._trie is not None and trie != DEAD:
            first, end = self._trie.span(trie)
            depth = self._trie.depth(trie)
            # wanted ones first: of very many names only some are compared
            names, n_left = sorted(range(first, end), key=self._is_unwanted), MAX_COMPARED
            for at in names:
                cost = self._cost(at) if n_left else None
                if cost is not None:
                    n_left -= 1
                    if best is None or cost < best[0]:
                        best = cost, self._trie.texts[at][depth:]
        return None if best is None else best[1]

    def alias(self, state: int) -> tuple[Verdicts, int]:
        return self, state

    def at(self, name: int, depth: int) -> int:
        """The state behind the first `depth` bytes of known name number `name`."""
        assert self._trie is not None
        state = self._trie.start
        for byte in self._trie.texts[name][:depth]:
            state = self._trie.step(state, byte)
        return self._product.number((DEAD, state))

    def known_kinds(self) -> Iterator[KeyKind]:
        """The kinds of the names that leaves know and that may be typed, in the order of the names."""
        for at in range(len(self._trie.texts) if self._trie else 0):
            kind = self._kind_at(at)
            if kind is not None:
                yield kind

    def number_of(self, name: str) -> int:
        """The result of a known name that may be typed."""
        assert self._trie is not None
        kind = self._kind_at(self._trie.texts.index(name.encode()))
        assert kind is not None
        return self._number(kind)

    # --- Closer -----------------------------------------------------------------------------

    def closed(self, result: int) -> int:
        return self.object.colon(self._kinds[result])

    def only(self, state: int) -> int | None:
        """One name left, spelled plainly: its rest is a word shared by all objects with such a name."""
        if self.apart or self._open or self._trie is None:
            return None
        trie = self._product.states(state)[1]
        left = list(islice((at for at in range(*self._trie.span(trie)) if self._allowed(at)), 2))
        if len(left) != 1:
            return None
        rest = self._trie.texts[left[0]][self._trie.depth(trie) :]
        if any(needs_escape(b) for b in rest):
            return None
        kind = self._kind_at(left[0])
        assert kind is not None
        waiting = self.waiting_name(self._number(kind))
        return self.words.store.tables.op(waiting.id, self.words.word(rest + b'"', 0).id)

    def waiting_name(self, result: int) -> WaitingName:
        return self.words.store.local(self._waiting, result, lambda: WaitingName(self, result))

    def closed_named(self, result: int, name: str) -> int:
        """The local after an actual name: an undeclared one is remembered as used."""
        kind = self._kinds[result]
        return self.closed(result) if kind.name is not None else self.object.colon_named(kind, name)

    # --- inside -----------------------------------------------------------------------------

    def _kind(self, states: States) -> KeyKind | None:
        text, trie, *parts = states
        truths = [s != DEAD and m.accepts(s) for m, s in zip(self._parts, parts)]
        matched = frozenset(p for p, t in zip(self._patterns, truths) if t)
        lawful = tuple(truths[len(self._patterns) :])
        index = self._trie.index(trie) if trie != DEAD and self._trie else -1
        if index >= 0 and self._trie:
            return self._kind_at(index)
        return KeyKind(None, matched, lawful) if text != DEAD and self._text.accepts(text) else None

    def _is_alive(self, state: int) -> bool:
        found = self._alive.get(state)
        if found is None:
            spend()
            found = self._alive[state] = self._find(state)
        return found

    def _find(self, state: int) -> bool:
        text, trie, *_ = self._product.states(state)
        if self.apart:
            return True
        if self._trie is not None and trie != DEAD:
            first, end = self._trie.span(trie)
            if any(self._allowed(at) for at in range(first, end)):
                return True
        return text != DEAD and self._product.can_end(state)

    def _witness(self) -> bytes:
        """A name that the solver knows may come next; empty if it knows none."""
        try:
            rest = self.object.remaining_after_one()
        except GaveUp:
            return b""  # a guess less
        if rest is None or not 0 < rest.size <= LONGEST:
            return b""
        name, _ = json.JSONDecoder().raw_decode(rest.text().decode())
        return bytes(name.encode())

    def _allowed(self, index: int) -> bool:
        kind = self._kind_at(index)
        return kind is not None and self.object.allows(kind)

    def _kind_at(self, index: int) -> KeyKind | None:
        """The kind of a known name; None if it was used or can't be written."""
        kind = self._names.kind(index)
        if kind is None or kind.name in self.object.seen:
            return None
        rules = self._parts[len(self._patterns) :]
        if not rules:
            return kind
        assert self._trie is not None
        return kind._replace(lawful=tuple(accepts(m, self._trie.texts[index]) for m in rules))

    def _is_unwanted(self, index: int) -> bool:
        return self._names.list[index] not in self.object.missing

    def _cost(self, index: int) -> int | None:
        kind = self._kind_at(index)
        return None if kind is None else self.object.size_with(kind)


def _is_lost(states: States) -> bool:
    return states[0] == DEAD and states[1] == DEAD
