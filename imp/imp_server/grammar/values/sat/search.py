"""The conjunctions of literals whose disjunction is a formula, one after the other, without those that can't hold.

What is certain is settled first and told to all the rest; then the choice with the fewest ways is made. Once a
conjunction has failed, every further choice is made only where what is certain so far is possible by itself: so a
contradiction between two parts is found where they meet, not once for each combination of all the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from imp_server.core.turns import spend
from imp_server.grammar.values.formula import AND, NOT, ONE, OR, Formula, Formulas, Leaf
from imp_server.grammar.values.leaves import Watched

Literals = tuple[tuple[Leaf, bool], ...]
Node = tuple[Formula, Literals]


class Search:
    """One walk through a formula. Owner of the number of conjunctions that failed."""

    def __init__(
        self,
        formulas: Formulas,
        is_possible: Callable[[Literals], bool],
        most: int,
        is_enough: Callable[[Formula, Literals], bool] = lambda f, literals: False,
    ) -> None:
        """`is_possible`: False only where the literals can't hold together.

        `is_enough`: whether what is left of the formula holds of whatever satisfies the literals in the fewest bytes.
        `most`: failures after which the search is given up.
        """
        self._fs = formulas
        self._is_possible = is_possible
        self._most = most
        self._is_enough = is_enough
        self.n_failed = 0
        """Told by whoever looks at the solutions."""
        self.is_broken_off = False

    def solutions(self, f: Formula, is_known: Callable[[Literals], bool] = lambda _: False) -> Iterator[Literals]:
        """`is_known`: whether what holds of any solution that has these literals is known already."""
        path: list[Iterator[Node]] = [iter([(f, ())])]
        while path:
            node = next(path[-1], None)
            if node is None:
                path.pop()
                continue
            if self.n_failed >= self._most:
                self.is_broken_off = True
                return
            spend(1 + len(node[0].args) // 8)
            g, literals = propagated(self._fs, *node)
            if g is self._fs.false or is_known(literals):
                continue
            if g is self._fs.true or self._is_enough(g, literals):
                yield literals
            elif not self.n_failed or len(literals) == len(node[1]) or self._is_possible(literals):
                path.append(self._chosen(g, literals))
            else:
                self.n_failed += 1

    def _chosen(self, f: Formula, literals: Literals) -> Iterator[Node]:
        """What `f` becomes by each way of its narrowest choice."""
        fs = self._fs
        parts = f.conjuncts()
        choice = min(parts, key=_n_ways)
        rest = [part for part in parts if part is not choice]
        for way in self._ways(choice):
            yield fs.conj([*way, *rest]), literals

    def _ways(self, choice: Formula) -> Iterator[Sequence[Formula]]:
        fs = self._fs
        inner = choice.args[0]
        if choice.op == OR:
            yield from ([a] for a in sorted(choice.args, key=_watches))
        elif choice.op == ONE:
            # each verdict of a watch is looked for first: together they may be all there are
            for a in sorted(choice.args, key=lambda a: not a.is_watching):
                yield a, fs.neg(fs.disj(b for b in choice.args if b is not a))
        elif inner.op == AND:
            yield from ([fs.neg(a)] for a in sorted(inner.args, key=_watches))
        else:
            yield (fs.neg(fs.disj(inner.args)),)
            for at, a in enumerate(inner.args[:-1]):
                # the first that holds, and another one
                earlier = [fs.neg(b) for b in inner.args[:at]]
                yield (*earlier, a, fs.disj(inner.args[at + 1 :]))


def propagated(fs: Formulas, f: Formula, literals: Literals) -> Node:
    """What is left of `f` once the leaves that decide by themselves are known."""
    while True:
        truth: dict[Leaf, Formula] = {}
        rest: list[Formula] = []
        spend(1 + len(f.args) // 8)
        for part in _flat(fs, f):
            inner = part.args[0] if part.op == NOT else part
            if inner.leaf is None:
                rest.append(part)
            elif truth.setdefault(inner.leaf, fs.constant(part is inner)) is not fs.constant(part is inner):
                return fs.false, literals
        f = fs.conj(rest)
        if not truth:
            return f, literals
        literals += tuple((leaf, value is fs.true) for leaf, value in truth.items())
        f = fs.map_leaves(f, truth)


def _flat(fs: Formulas, f: Formula) -> Iterator[Formula]:
    """The conjuncts, each once; a negated alternative is the conjunction of its negations."""
    todo = list(reversed(f.conjuncts()))
    seen: set[Formula] = set()
    while todo:
        part = todo.pop()
        if part in seen:
            continue
        seen.add(part)
        if part.op == NOT and part.args[0].op == OR:
            args = part.args[0].args
            spend(1 + len(args) // 8)
            todo += [g for a in reversed(args) for g in reversed(fs.neg(a).conjuncts())]
        elif part.op == AND:
            todo += reversed(part.args)
        else:
            yield part


def _n_ways(part: Formula) -> int:
    return len(part.args[0].args) if part.op == NOT else len(part.args)


def _watches(f: Formula) -> bool:
    """What leaves more open comes first: what is asked of the value that is being read comes last."""
    leaf = f.args[0].leaf if f.op == NOT else f.leaf
    return isinstance(leaf, Watched)


def literal(fs: Formulas, leaf: Leaf, sign: bool) -> Formula:
    return fs.leaf(leaf) if sign else fs.neg(fs.leaf(leaf))
