"""Boolean formulas over leaves: what must hold of one JSON value. Hash-consed, so equality is identity.

A *leaf* asks one thing of the value (its type, a pattern, its properties ...; leaves.py). A leaf about
another type than the value's is true. oneOf keeps its own operator: written out, it would square.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.giving_up import dropped, emptied

TRUE_OP, FALSE_OP, LEAF, AND, OR, NOT, ONE = range(7)

MASK_BITS = 240
MANY, FEW = 8, 8
"""Parts of a formula, and leaves of one, from which and up to which it is remembered what becomes of a part."""
_PARTS_PER_UNIT, _LEAVES_PER_UNIT = 8, 100
N_BYTES, N_BYTES_ARG, N_BYTES_PART = 500, 16, 300
"""Memory of a formula, of each of its arguments, and of what became of one."""


@dataclass(eq=False, slots=True)
class Leaf:
    """One question about a value; the kinds of them: leaves.py."""

    about: ClassVar[int]
    """The bit of the type it speaks of: values of other types satisfy it."""
    is_watch: ClassVar[bool] = False

    @property
    def types(self) -> int | None:
        """The types that a TypeIs leaf allows; None of any other leaf."""
        return None


class Formula:
    """Made by `Formulas` alone. `args` are formulas, except for a LEAF, whose one argument is `leaf`."""

    __slots__ = ("_leaves", "_restricted", "args", "is_counting", "is_watching", "leaf", "mask", "op", "uid")

    def __init__(self, op: int, args: tuple[Formula, ...], leaf: Leaf | None, uid: int) -> None:
        self.op = op
        self.args = args
        self.leaf = leaf
        self.uid = uid
        self.mask = 1 << uid % MASK_BITS if leaf is not None else 0
        """A bit for each leaf in it, which others may share."""
        self.is_watching = leaf is not None and leaf.is_watch
        """Whether a Watched leaf is in it."""
        self.is_counting = op == ONE
        """Whether a ONE is in it."""
        for arg in args:
            self.mask |= arg.mask
            self.is_counting = self.is_counting or arg.is_counting
            self.is_watching = self.is_watching or arg.is_watching
        self._restricted: dict[int, Formula] = {}
        self._leaves: tuple[Leaf, ...] | None = None if leaf is None else (leaf,)

    def leaves(self) -> Collection[Leaf]:
        """Every leaf, once, in the order in which they stand there. Parts that are shared are looked at once."""
        if self._leaves is not None:
            return self._leaves
        found: dict[Leaf, None] = {}
        seen: set[Formula] = set()
        todo = list(reversed(self.args))
        n_known = 0
        while todo:
            part = todo.pop()
            if part.leaf is not None:
                found[part.leaf] = None
            elif part not in seen:
                seen.add(part)
                if part._leaves is None:
                    todo += reversed(part.args)
                else:
                    n_known += len(part._leaves)
                    found.update(dict.fromkeys(part._leaves))
        n_walked = len(seen) + max(len(found) - n_known, 0)
        charge(N_BYTES_ARG * len(found), 1 + n_walked // 8 + n_known // _LEAVES_PER_UNIT)
        self._leaves = tuple(found)
        return self._leaves

    def conjuncts(self) -> tuple[Formula, ...]:
        if self.op == AND:
            return self.args
        return () if self.op == TRUE_OP else (self,)


class Formulas:
    """Owner of the interned formulas of one space."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, object], Formula] = {}
        self.parts: dict[tuple[Formula | None, ...], Formula] = {}
        """What became of parts by what became of their leaves."""
        self.true = self._make(TRUE_OP, (), None)
        self.false = self._make(FALSE_OP, (), None)

    def __len__(self) -> int:
        return len(self._made)

    def given_up(self) -> Iterator[None]:
        yield from dropped(self.parts)
        yield from emptied(self._made)

    def _make(self, op: int, args: tuple[Formula, ...], leaf: Leaf | None) -> Formula:
        key = (op, leaf if leaf is not None else args)
        found = self._made.get(key)
        if found is None:
            charge(N_BYTES + N_BYTES_ARG * len(args), 1 + len(args) // 8)
            found = self._made[key] = Formula(op, args, leaf, len(self._made))
        return found

    def leaf(self, leaf: Leaf) -> Formula:
        return self._make(LEAF, (), leaf)

    def constant(self, value: bool) -> Formula:
        return self.true if value else self.false

    def neg(self, f: Formula) -> Formula:
        if f.op == NOT:
            return f.args[0]
        if f is self.true:
            return self.false
        return self.true if f is self.false else self._make(NOT, (f,), None)

    def conj(self, fs: Iterable[Formula]) -> Formula:
        return self._join(AND, fs, self.true, self.false)

    def disj(self, fs: Iterable[Formula]) -> Formula:
        return self._join(OR, fs, self.false, self.true)

    def _join(self, op: int, fs: Iterable[Formula], unit: Formula, zero: Formula) -> Formula:
        parts: dict[Formula, None] = {}
        n_parts = 0
        for f in fs:
            n_parts += 1
            if f is zero:
                return zero
            if f.op == op:
                parts.update(dict.fromkeys(f.args))
                n_parts += len(f.args)
            elif f is not unit:
                parts[f] = None
        if n_parts > FEW:
            spend(n_parts // _PARTS_PER_UNIT)
        for f in parts:
            if f.op == NOT and f.args[0] in parts:
                return zero
        if not parts:
            return unit
        if len(parts) == 1:
            return next(iter(parts))
        return self._make(op, tuple(sorted(parts, key=lambda f: f.uid)), None)

    def one(self, fs: Iterable[Formula]) -> Formula:
        """Exactly one holds."""
        count: dict[Formula, int] = {}
        for f in fs:
            if f is not self.false:
                count[f] = min(count.get(f, 0) + 1, 2)
        never = [self.neg(f) for f, n in count.items() if n > 1]
        once = [f for f, n in count.items() if n == 1]
        if self.true in once:
            return self.conj([*never, *(self.neg(f) for f in once if f is not self.true)])
        if not once:
            return self.false
        single = once[0] if len(once) == 1 else self._make(ONE, tuple(sorted(once, key=lambda f: f.uid)), None)
        return self.conj([*never, single])

    def map_leaves(self, f: Formula, changes: Mapping[Leaf, Formula]) -> Formula:
        """`f` with leaves replaced by what has become of them."""
        return self.map_all([f], changes)[0]

    def map_all(self, fs: Sequence[Formula], changes: Mapping[Leaf, Formula]) -> list[Formula]:
        """The same for several."""
        spend(1 + len(fs) // 8)
        return _Mapping(self, changes, self.parts).all_of(fs)

    def with_args(self, f: Formula, args: list[Formula]) -> Formula:
        """`f` with other arguments."""
        spend(1 + len(args) // 8)
        if all(a is b for a, b in zip(args, f.args)):
            return f
        if f.op == AND:
            return self.conj(args)
        if f.op == OR:
            return self.disj(args)
        return self.neg(args[0]) if f.op == NOT else self.one(args)

    def restrict(self, f: Formula, kind: int) -> Formula:
        """What `f` asks of a value of type `kind` (one bit of leaves.py)."""
        found = f._restricted.get(kind)
        if found is None:
            if f.leaf is not None:
                seen = self._seen_by(f.leaf, kind)
                found = f if seen is None else seen
            else:
                found = self.with_args(f, [self.restrict(arg, kind) for arg in f.args])
            f._restricted[kind] = found
        return found

    def _seen_by(self, leaf: Leaf, kind: int) -> Formula | None:
        allowed = leaf.types
        if allowed is not None:
            return self.constant(bool(allowed & kind))
        return None if leaf.about & kind else self.true

    def evaluate(self, f: Formula, truth: Callable[[Leaf], bool]) -> bool:
        return _Evaluation(self.true, truth).holds(f)


class _Mapping:
    """Formulas with leaves replaced. No closures: those that call themselves are cycles, and stay."""

    def __init__(
        self,
        formulas: Formulas,
        changes: Mapping[Leaf, Formula],
        parts: dict[tuple[Formula | None, ...], Formula],
    ) -> None:
        """`parts`: what became of parts before, by what became of their leaves."""
        self._formulas, self._changes, self._parts = formulas, changes, parts
        self._made: dict[Formula, Formula] = {}
        self._mask = 0
        for leaf in changes:
            self._mask |= formulas.leaf(leaf).mask

    def all_of(self, fs: Sequence[Formula]) -> list[Formula]:
        return [*map(self._part if len(fs) >= MANY else self.of, fs)]

    def of(self, f: Formula) -> Formula:
        if not f.mask & self._mask:
            return f
        found = self._made.get(f)
        if found is None:
            if f.leaf is not None:
                found = self._changes.get(f.leaf, f)
            else:
                found = self._formulas.with_args(f, self.all_of(f.args))
            self._made[f] = found
        return found

    def _part(self, f: Formula) -> Formula:
        """One of many: most of them become the same again and again."""
        if not f.mask & self._mask:
            return f
        leaves = f.leaves()
        if len(leaves) > FEW:
            return self.of(f)
        key = (f, *(self._changes.get(leaf) for leaf in leaves))
        found = self._parts.get(key)
        if found is None:
            charge(N_BYTES_PART, 1)
            found = self._parts[key] = self.of(f)
        return found


class Mapped:
    """A formula with leaves replaced, and with one or another of them replaced differently: only that is made anew."""

    def __init__(self, formulas: Formulas, f: Formula, changes: Mapping[Leaf, Formula]) -> None:
        self._formulas, self._f = formulas, f
        self._mapping = _Mapping(formulas, changes, formulas.parts)
        self._args = self._mapping.all_of(f.args)

    def but(self, changed: Mapping[Leaf, Formula]) -> Formula:
        """`changed`: what becomes of some leaves instead."""
        mask = 0
        for leaf in changed:
            mask |= self._formulas.leaf(leaf).mask
        made: dict[Formula, Formula] = {}
        pairs = zip(self._f.args, self._args, strict=True)
        args = [self._but(arg, changed, mask, made) if arg.mask & mask else known for arg, known in pairs]
        return self._formulas.with_args(self._f, args)

    def _but(self, f: Formula, changed: Mapping[Leaf, Formula], mask: int, made: dict[Formula, Formula]) -> Formula:
        if not f.mask & mask:
            return self._mapping.of(f)
        found = made.get(f)
        if found is None:
            if f.leaf is not None:
                found = changed.get(f.leaf) or self._mapping.of(f)
            else:
                found = self._formulas.with_args(f, [self._but(arg, changed, mask, made) for arg in f.args])
            made[f] = found
        return found


class _Evaluation:
    """The truth of a formula and of its parts."""

    def __init__(self, true: Formula, truth: Callable[[Leaf], bool]) -> None:
        self._true, self._truth = true, truth
        self._known: dict[Formula, bool] = {}

    def holds(self, f: Formula) -> bool:
        if f.leaf is not None:
            return self._truth(f.leaf)
        found = self._known.get(f)
        if found is None:
            spend()
            found = self._known[f] = self._combined(f)
        return found

    def _combined(self, f: Formula) -> bool:
        if f.op == AND:
            return all(map(self.holds, f.args))
        if f.op == OR:
            return any(map(self.holds, f.args))
        if f.op == NOT:
            return not self.holds(f.args[0])
        if f.op == ONE:
            return sum(map(self.holds, f.args)) == 1
        return f is self._true
