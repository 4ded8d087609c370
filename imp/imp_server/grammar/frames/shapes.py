"""What the Props leaves of an object say about each name: the part of its state that its members don't change."""

from __future__ import annotations

from typing import NamedTuple

from imp_server.grammar.frames.values import Values
from imp_server.grammar.machines.literals import Literals
from imp_server.grammar.machines.machine import DEAD, Machine
from imp_server.grammar.values.algebra import has_surrogates
from imp_server.grammar.values.formula import Formula
from imp_server.grammar.values.leaves import Props
from imp_server.grammar.values.scalars import pattern_machine


class KeyKind(NamedTuple):
    """What matters about a property name. `name` is None for one that no leaf knows by name."""

    name: str | None
    matched: frozenset[str]
    """Patterns that it matches."""
    lawful: tuple[bool, ...]
    """Per Names leaf (in the order of ObjectState.names_leaves): whether it obeys."""


UNDECLARED = KeyKind(None, frozenset(), ())


class Shape:
    """Interned by Objects.shape. Owner of the tries of its names and of what each kind of name asks of its value."""

    def __init__(self, values: Values, props: tuple[Props, ...]) -> None:
        self._value_frames = values
        self.props = props
        self.names = frozenset(n for leaf in props for n in leaf.names)
        self.patterns = tuple(dict.fromkeys(p for leaf in props for p, _ in leaf.patterns))
        self.machines: list[Machine] = [pattern_machine(p) for p in self.patterns]
        fs = values.store.algebra.formulas
        self._conj = fs.conj
        self.formula = fs.conj(fs.leaf(leaf) for leaf in props)
        self._values: dict[KeyKind, Formula] = {}
        self._satisfiable: dict[KeyKind, bool] = {}
        self._tries: dict[frozenset[str], NameTrie] = {}

    def value(self, kind: KeyKind) -> Formula:
        """What all leaves ask together of the value."""
        found = self._values.get(kind)
        if found is None:
            found = self._values[kind] = self._conj(self.value_by(leaf, kind) for leaf in self.props)
        return found

    def value_by(self, leaf: Props, kind: KeyKind) -> Formula:
        subs = [leaf.names[kind.name]] if kind.name is not None and kind.name in leaf.names else []
        subs += [s for p, s in leaf.patterns if p in kind.matched]
        return self._conj(s.formula for s in (subs or [leaf.rest]))

    def is_satisfiable(self, kind: KeyKind) -> bool:
        found = self._satisfiable.get(kind)
        if found is None:
            answer = self._value_frames.shortest(self._value_frames.store.goal(self.value(kind)))
            found = self._satisfiable[kind] = answer is not None
        return found

    def trie(self, extra: frozenset[str]) -> NameTrie:
        """The trie of all names that have to be told apart: the declared ones and `extra`."""
        extra -= self.names
        found = self._tries.get(extra)
        if found is None:
            found = self._tries[extra] = NameTrie(self.names | extra, self.patterns, self.machines)
        return found


class NameTrie:
    """A trie of names with what is known of each."""

    def __init__(self, names: frozenset[str], patterns: tuple[str, ...], machines: list[Machine]) -> None:
        spelled = {n.encode("utf-8", "surrogatepass"): n for n in names}
        self.literals = Literals(spelled) if names else None
        self.list: list[str] = [spelled[t] for t in self.literals.texts] if self.literals else []
        self._patterns, self._machines = patterns, machines
        self._kinds: dict[int, KeyKind | None] = {}

    def kind(self, index: int) -> KeyKind | None:
        """The kind of name number `index`, name rules left out; None if it can't be written."""
        if index not in self._kinds:
            name = self.list[index]
            text = name.encode("utf-8", "surrogatepass")
            matched = frozenset(p for p, m in zip(self._patterns, self._machines) if accepts(m, text))
            self._kinds[index] = None if has_surrogates(name) else KeyKind(name, matched, ())
        return self._kinds[index]


def accepts(machine: Machine, text: bytes) -> bool:
    state = machine.start
    for byte in text:
        if state == DEAD:
            return False
        state = machine.step(state, byte)
    return state != DEAD and machine.accepts(state)
