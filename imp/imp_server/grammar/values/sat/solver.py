"""Can a formula be satisfied, and by how short a text? The search that keeps every automaton out of dead ends."""

from __future__ import annotations

from collections.abc import Callable

from imp_server.core import GrammarRefused
from imp_server.core.turns import spend
from imp_server.grammar.machines.machine import Machine
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.formula import Formula
from imp_server.grammar.values.json_values import spelled
from imp_server.grammar.values.leaves import ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING, BoolIs, Watched
from imp_server.grammar.values.sat import arrays, objects
from imp_server.grammar.values.sat.found import Found, found, joined, shorter
from imp_server.grammar.values.sat.questions import Doubt, Questions
from imp_server.grammar.values.sat.search import Literals, Search, literal
from imp_server.grammar.values.sat.tags import cases, tag_of
from imp_server.grammar.values.scalars import number_machine, string_machine

MAX_BRANCHES = 24
"""Conjunctions looked at before the shortest of those that worked is taken."""
MANY = 8
"""Literals of a conjunction for which it counts as one more."""
MAX_CASES = 8
"""The same of values of a tag, which are often very many and alike."""
MAX_FAILURES = 2_000
MAX_CUBES = 1_024
"""Ways in which what a value obeys may please its parent."""

Cube = frozenset[tuple[int, bool]]
"""Numbers of watches that have to be true, or false."""
Ask = Callable[[Formula], Found | None]
IsEnough = Callable[[Formula, Literals], bool]
CanBe = Callable[[Cube], bool]


def _never(*_: object) -> bool:
    return False


class Solver(Questions):
    """Answers questions about formulas."""

    def value(self, f: Formula) -> Found | None:
        """A shortest value that satisfies `f`."""
        return self.ask(f, lambda: self._value(f))

    def members(self, f: Formula, seen: frozenset[str], order: tuple[str, ...] = ()) -> Found | None:
        """The members still missing from an object: b'' or b'"a":1,"b":2'. `f` is restricted to OBJECT.

        `seen`: names that can't come any more. `order`: in which names have to come, all others behind them.
        """
        return self.ask((f, "members", seen, order), lambda: self._members(f, seen, order))

    def items(self, f: Formula) -> Found | None:
        """The items still missing from an array. `f` is restricted to ARRAY."""
        return self.ask((f, "items"), lambda: self._best(f, lambda ls: arrays.items(self, ls)))

    def member_cubes(self, f: Formula, seen: frozenset[str], order: tuple[str, ...], can_be: CanBe) -> list[Cube]:
        """Of the watches in `f`, for the members still missing from an object.

        `can_be`: False where no value has its watches so.
        """
        tag = tag_of(self.algebra, f, seen, order)
        if tag is None:
            return self.cubes(f, lambda rest: self.members(rest, seen, order), can_be, self._is_enough)
        found: list[Cube] = []
        for case in cases(self, tag, seen):
            spend(8)
            for cube in self.member_cubes(case.rest, seen | {tag.name}, order, can_be):
                if not any(known <= cube for known in found):
                    found = [*(known for known in found if not cube <= known), cube]
            if len(found) > MAX_CUBES:
                self.give_up()
                break
            if found and not found[0]:
                break
        return found

    def item_cubes(self, f: Formula, can_be: CanBe) -> list[Cube]:
        """The same for the items still missing from an array."""
        return self.cubes(f, self.items, can_be)

    def _value(self, f: Formula) -> Found | None:
        best: Found | None = None
        fs = self.algebra.formulas
        for kind, ask in (
            (NUMBER, self._number),
            (STRING, self._string),
            (BOOLEAN, self._boolean),
            (NULL, lambda g: found(b"null") if g is fs.true else None),
            (ARRAY, self._array),
            (OBJECT, self._object),
        ):
            if best is not None and best.size <= 2:
                break
            restricted = fs.restrict(f, kind)
            if restricted is not fs.false:
                best = shorter(best, ask(restricted))
        return best

    def _number(self, f: Formula) -> Found | None:
        text = self._shortest(number_machine, f)
        return None if text is None else found(text)

    def _string(self, f: Formula) -> Found | None:
        text = self._shortest(string_machine, f)
        return None if text is None else found(spelled(("string", text.decode())).encode())

    def _shortest(self, make: Callable[[Algebra, Formula], Machine], f: Formula) -> bytes | None:
        try:
            machine = make(self.algebra, f)
            return machine.shortest(machine.start) if machine.start >= 0 else None
        except GrammarRefused:
            # a combination above its budget: unproved
            self.give_up()
            return None

    def _boolean(self, f: Formula) -> Found | None:
        for value in (True, False):
            if self.boolean_holds(f, value):
                return found(b"true" if value else b"false")
        return None

    def boolean_holds(self, f: Formula, value: bool) -> bool:
        return self.algebra.formulas.evaluate(f, lambda leaf: isinstance(leaf, BoolIs) and leaf.value == value)

    def _array(self, f: Formula) -> Found | None:
        rest = self.items(f)
        return None if rest is None else Found(rest.size + 2, lambda: b"[" + rest.text() + b"]")

    def _object(self, f: Formula) -> Found | None:
        rest = self.members(f, frozenset(), self.algebra.order(f.leaves()))
        return None if rest is None else Found(rest.size + 2, lambda: b"{" + rest.text() + b"}")

    def _members(self, f: Formula, seen: frozenset[str], order: tuple[str, ...]) -> Found | None:
        tag = tag_of(self.algebra, f, seen, order)
        if tag is None:
            return self._best(f, lambda literals: objects.members(self, literals, seen, order), self._is_enough)
        best: Found | None = None
        n_hits = 0
        for case in cases(self, tag, seen):
            rest = self.members(case.rest, seen | {tag.name}, order)
            if rest is not None:
                best = shorter(
                    best, rest if case.member is None else joined([case.member, rest] if rest.size else [case.member])
                )
                n_hits += 1
                if n_hits == MAX_CASES or rest.size == 0:
                    break
        return best

    def _is_enough(self, f: Formula, literals: Literals) -> bool:
        return objects.is_enough(self.algebra, f, literals)

    def _best(
        self, f: Formula, solve: Callable[[Literals], Found | None], is_enough: IsEnough = _never
    ) -> Found | None:
        best: Found | None = None
        n_hits = 0
        asked = self._charged(solve)
        search = self._search(asked, is_enough)
        for literals in search.solutions(f):
            answer = asked(literals)
            if answer is None:
                search.n_failed += 1
            else:
                n_hits += 1 + len(literals) // MANY
                best = shorter(best, answer)
                if answer.size == 0 or n_hits >= MAX_BRANCHES:
                    break
        if search.is_broken_off:
            self.give_up()
        return best

    def _search(self, asked: Callable[[Literals], Found | None], is_enough: IsEnough) -> Search:
        fs = self.algebra.formulas
        return Search(fs, lambda literals: self._is_possible(asked, literals), MAX_FAILURES, is_enough)

    def cubes(self, f: Formula, ask: Ask, can_be: CanBe, is_enough: IsEnough = _never) -> list[Cube]:
        """What has to be true of the watches in `f` for it to be satisfiable: any of the cubes.

        `ask`: a value of a conjunction of literals. `gave_up` tells whether there may be more of them.
        """
        fs = self.algebra.formulas
        cubes: list[Cube] = []

        def asked(literals: Literals) -> Found | None:
            rest = fs.conj(literal(fs, *pair) for pair in literals if not isinstance(pair[0], Watched))
            return ask(rest) if can_be(cube_of(literals)) else None

        def is_known(literals: Literals) -> bool:
            cube = cube_of(literals)
            return any(known <= cube for known in cubes)

        charged = self._charged(asked)
        search = self._search(charged, is_enough)
        for literals in search.solutions(f, is_known):
            if charged(literals) is None:
                search.n_failed += 1
            elif len(cubes) == MAX_CUBES:
                search.is_broken_off = True
                break
            else:
                cubes = with_cube(cubes, cube_of(literals))
                if not cubes[-1]:
                    break
        if search.is_broken_off:
            self.give_up()
        return cubes

    def _charged(self, solve: Callable[[Literals], Found | None]) -> Callable[[Literals], Found | None]:
        """`solve`, paid for, and asked once about the same literals in a row."""
        last: list[tuple[Literals, Found | None, Doubt]] = []

        def asked(literals: Literals) -> Found | None:
            if not last or last[0][0] != literals:
                spend(2 + len(literals) // 2)
                with self.doubting() as doubt:
                    answer = solve(literals)
                last[:] = [(literals, answer, doubt)]
            _, answer, doubt = last[0]
            if doubt.was_raised and answer is None:
                self.doubt(doubt.where)
            return answer

        return asked

    def _is_possible(self, asked: Callable[[Literals], Found | None], literals: Literals) -> bool:
        with self.doubting():
            return asked(literals) is not None or self.gave_up


def cube_of(literals: Literals) -> Cube:
    return frozenset((leaf.index, sign) for leaf, sign in literals if isinstance(leaf, Watched))


def with_cube(cubes: list[Cube], cube: Cube) -> list[Cube]:
    """One more cube, last; two that differ in one truth alone are one without it."""
    for known in cubes:
        (*odd,) = known ^ cube
        if len(odd) == 2 and odd[0][0] == odd[1][0]:
            return with_cube([other for other in cubes if other is not known], known & cube)
    return [*(known for known in cubes if not cube <= known), cube]
