"""The items that complete an array, given a conjunction of array leaves and negated ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from itertools import combinations, product
from typing import Any, NamedTuple

from imp_server.core.turns import spend
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.formula import Formula, Leaf
from imp_server.grammar.values.json_values import parse_exact
from imp_server.grammar.values.leaves import Contains, Items, Length, Unique
from imp_server.grammar.values.sat.found import Found, joined
from imp_server.grammar.values.sat.questions import Questions
from imp_server.grammar.values.subschema import Sub

MAX_SEARCH = 400
"""Positions looked at while obligations (contains, negated leaves) are spread over the items."""


MAX_KINDS = 5
"""Different things asked of one item by leaves that must be broken, all of whose sets are tried."""

MAX_DISTINCT = 128
"""Items that uniqueness may demand at once."""


Ranges = tuple[tuple[int, int | None], ...]
"""Of counts: first and last of each, None for no last one."""
EVERY: Ranges = ((0, None),)


class ItemTask(NamedTuple):
    items: tuple[Items, ...]
    contains: tuple[Contains, ...]
    low: int
    high: int | None
    unique: bool
    seen: frozenset[Any]
    against: tuple[Items, ...]
    repeated: tuple[Unique, ...]
    """Uniqueness that must be broken."""


def items(solver: Questions, literals: Iterable[tuple[Leaf, bool]]) -> Found | None:
    fixed: list[tuple[Leaf, bool]] = []
    left: dict[Sub | None, Ranges] = {}
    for leaf, sign in literals:
        if sign or isinstance(leaf, Items | Unique):
            fixed.append((leaf, sign))
        else:
            assert isinstance(leaf, Length | Contains)
            counted = leaf.sub if isinstance(leaf, Contains) else None
            left[counted] = _without(left.get(counted, EVERY), leaf.low, leaf.high)
    choices = [[_counted(solver, counted, *bounds) for bounds in ranges] for counted, ranges in left.items()]
    best: Found | None = None
    for chosen in product(*choices):
        spend()
        answer = _solve(solver, _task([*fixed, *((leaf, True) for leaf in chosen)]))
        if answer is not None and (best is None or answer.size < best.size):
            best = answer
    return best


def _without(ranges: Ranges, low: int, high: int | None) -> Ranges:
    """The counts that are none of `low` to `high`: of many of these, as many ranges as lie between them."""
    spend(1 + len(ranges) // 4)
    found: list[tuple[int, int | None]] = []
    for first, last in ranges:
        if first < low:
            found.append((first, low - 1 if last is None else min(last, low - 1)))
        if high is not None and (last is None or last > high):
            found.append((max(first, high + 1), last))
    return tuple(found)


def _counted(solver: Questions, counted: Sub | None, low: int, high: int | None) -> Leaf:
    leaves = solver.algebra.leaves
    return leaves.get(Length, low, high) if counted is None else leaves.get(Contains, counted, low, high)


def _task(literals: Iterable[tuple[Leaf, bool]]) -> ItemTask:
    found: dict[type[Leaf], list[Any]] = {Items: [], Contains: []}
    against: list[Items] = []
    repeated: list[Unique] = []
    low, high, unique, seen = 0, None, False, frozenset[Any]()
    for leaf, sign in literals:
        if isinstance(leaf, Unique):
            if sign:
                unique, seen = True, seen | leaf.seen
            else:
                repeated.append(leaf)
        elif not sign:
            assert isinstance(leaf, Items)
            against.append(leaf)
        elif isinstance(leaf, Length):
            low = max(low, leaf.low)
            high = leaf.high if high is None or (leaf.high is not None and leaf.high < high) else high
        else:
            found[type(leaf)].append(leaf)
    return ItemTask(
        tuple(found[Items]), tuple(found[Contains]), low, high, unique, seen, tuple(against), tuple(repeated)
    )


def item_formula(algebra: Algebra, leaves: Iterable[Items], index: int) -> Formula:
    """What the leaves ask together of the item `index` places from here."""
    return algebra.formulas.conj(
        (leaf.prefix[index] if index < len(leaf.prefix) else leaf.rest).formula for leaf in leaves
    )


def _solve(solver: Questions, task: ItemTask) -> Found | None:
    if task.high is not None and task.low > task.high:
        return None
    if task.contains or task.against or task.repeated:
        return _Search(solver, task).run()
    if task.unique:
        return _distinct(solver, task)
    prefix = max((len(leaf.prefix) for leaf in task.items), default=0)
    parts = []
    for index in range(min(task.low, prefix)):
        part = solver.value(item_formula(solver.algebra, task.items, index))
        if part is None:
            return None
        parts.append(part)
    more = task.low - len(parts)
    if more:
        last = solver.value(item_formula(solver.algebra, task.items, prefix))
        if last is None:
            return None
        one = last
        first = joined(parts)
        comma = 1 if parts else 0
        return Found(
            first.size + comma + more * (one.size + 1) - 1,
            lambda: b",".join([p.text() for p in parts] + [one.text()] * more),
        )
    return joined(parts)


def _distinct(solver: Questions, task: ItemTask) -> Found | None:
    if task.low > MAX_DISTINCT:
        solver.give_up()
        return None
    prefix = max((len(leaf.prefix) for leaf in task.items), default=0)
    used = set(task.seen)
    parts: list[Found] = []
    for index in range(min(task.low, prefix)):
        formula = item_formula(solver.algebra, task.items, index)
        part = solver.value(unlike(solver.algebra, formula, used))
        if part is None:
            return _matched(solver, task, prefix) if index else None
        used.add(parse_exact(part.text()))
        parts.append(part)
    more = task.low - len(parts)
    rest = _shortest_values(solver, item_formula(solver.algebra, task.items, prefix), used, more) if more else []
    if len(rest) < more:
        return _matched(solver, task, prefix) if parts else None
    return joined([*parts, *rest])


def _shortest_values(solver: Questions, formula: Formula, used: Set[Any], n: int) -> list[Found]:
    """The `n` shortest values of a formula, without the used ones; fewer where there are no more.

    The shortest values there are, without regard to the used ones, are the same at every state of the array: the
    solver knows them from the first time.
    """
    listed: set[Any] = set()
    parts: list[Found] = []
    while len(parts) < n:
        part = solver.value(unlike(solver.algebra, formula, listed))
        if part is None:
            break
        value = parse_exact(part.text())
        if value not in used:
            parts.append(part)
        listed.add(value)
    return parts


def _matched(solver: Questions, task: ItemTask, prefix: int) -> Found | None:
    """Different values where the shortest ones got in each other's way: a matching of places and values.

    As many values of each place as there are places will do: the others can't take them all.
    """
    alike = min(task.low, prefix)
    formulas = [item_formula(solver.algebra, task.items, index) for index in range(alike + (task.low > prefix))]
    lists = [_shortest_values(solver, formula, task.seen, task.low) for formula in formulas]
    offers = [{parse_exact(part.text()): part for part in lists[min(i, alike)]} for i in range(task.low)]
    holder: dict[Any, int] = {}

    def placed(place: int, tried: set[Any]) -> bool:
        for value in offers[place]:
            if value not in tried:
                tried.add(value)
                if value not in holder or placed(holder[value], tried):
                    holder[value] = place
                    return True
        return False

    if not all(placed(place, set()) for place in range(task.low)):
        return None
    chosen = {place: value for value, place in holder.items()}
    return joined(offers[place][chosen[place]] for place in range(task.low))


def unlike(algebra: Algebra, formula: Formula, used: Iterable[Any]) -> Formula:
    """`formula`, and none of the `used` values."""
    return algebra.formulas.conj([formula, algebra.formulas.neg(algebra.one_of_values(used))])


class _Search:
    """Spreads obligations over positions, depth first, fewest items first."""

    def __init__(self, solver: Questions, task: ItemTask) -> None:
        self._solver = solver
        self._task = task
        self._left = MAX_SEARCH
        self._is_blocked = False
        """Some value was chosen among several where another one might have left more to those behind it."""
        prefix = max((len(i.prefix) for i in (*task.items, *task.against)), default=0)
        extra = sum(c.low for c in task.contains) + len(task.against) + (2 if task.repeated else 0)
        most = max(task.low, prefix * bool(task.against or extra)) + extra
        self._most = most if task.high is None else min(most, task.high)

    def run(self) -> Found | None:
        task = self._task
        for n in range(task.low, self._most + 1):
            counts = tuple((c.low, c.high) for c in task.contains)
            parts = self._place(0, n, counts, frozenset(task.against), frozenset(task.seen), ())
            if parts is not None:
                return joined(parts)
        if self._is_blocked and _Search(self._solver, self._task._replace(unique=False, repeated=())).run():
            self._solver.give_up()
        return None

    def _place(
        self,
        index: int,
        n: int,
        counts: tuple[tuple[int, int | None], ...],
        against: frozenset[Items],
        used: frozenset[Any],
        made: tuple[Any, ...],
    ) -> list[Found] | None:
        if index == n:
            settled = all(low <= 0 for low, _ in counts) and not against
            return [] if settled and self._repeats(made) else None
        spend(4)
        self._left -= 1
        if self._left < 0:
            self._solver.give_up()
            return None
        fs = self._solver.algebra.formulas
        base = item_formula(self._solver.algebra, self._task.items, index)
        if self._task.unique:
            base = unlike(self._solver.algebra, base, used)
        for extra, counts_after, against_after in self._options(index, n, counts, against):
            parts = [(fs.conj([base, extra]), None)]
            for formula, _ in self._repetitions(parts[0][0], made):
                found = self._solver.value(formula)
                if found is None:
                    continue
                known = self._task.unique or bool(self._task.repeated)
                value = parse_exact(found.text()) if known else None
                rest = self._place(index + 1, n, counts_after, against_after, used | {value}, (*made, value))
                if rest is not None:
                    return [found, *rest]
                self._is_blocked = self._is_blocked or known
        return None

    def _repetitions(self, formula: Formula, made: tuple[Any, ...]) -> list[tuple[Formula, None]]:
        ways: list[tuple[Formula, None]] = [(formula, None)]
        if self._task.repeated:
            earlier = set(made) | {v for u in self._task.repeated for v in u.seen}
            algebra = self._solver.algebra
            if earlier:
                ways.insert(0, (algebra.formulas.conj([formula, algebra.one_of_values(earlier)]), None))
        return ways

    def _repeats(self, made: tuple[Any, ...]) -> bool:
        return all(len(set(made)) < len(made) or any(v in leaf.seen for v in made) for leaf in self._task.repeated)

    def _options(
        self, index: int, n: int, counts: tuple[tuple[int, int | None], ...], against: frozenset[Items]
    ) -> Iterable[tuple[Formula, tuple[tuple[int, int | None], ...], frozenset[Items]]]:
        fs = self._solver.algebra.formulas
        left = n - index
        for truths in product((True, False), repeat=len(counts)):
            spend(2 + len(counts))
            after, parts = [], []
            for contains, (low, high), truth in zip(self._task.contains, counts, truths):
                if truth and high == 0:
                    break
                low, high = low - truth, None if high is None else high - truth
                if low > left - 1:
                    break
                after.append((low, high))
                inner = contains.sub.formula
                parts.append(inner if truth else fs.neg(inner))
            else:
                for broken in self._breakable(index, against):
                    spend(1 + 2 * len(broken))
                    wrong = [fs.neg(item_formula(self._solver.algebra, [leaf], index)) for leaf in broken]
                    yield fs.conj([*parts, *wrong]), tuple(after), against - broken

    def _breakable(self, index: int, against: frozenset[Items]) -> Iterator[frozenset[Items]]:
        """Which of the leaves the item here may break: as many as possible first.

        Leaves that ask the same here break together. Of many, all or all but one kind: of constants no item spares two.
        """
        alike: dict[Formula, set[Items]] = {}
        spend(1 + 2 * len(against))
        for leaf in against:
            alike.setdefault(item_formula(self._solver.algebra, [leaf], index), set()).add(leaf)
        kinds = [frozenset(leaves) for formula, leaves in sorted(alike.items(), key=lambda pair: pair[0].uid)]
        if len(kinds) > MAX_KINDS:
            yield against
            yield from (against - kind for kind in kinds)
            self._solver.give_up()
            return
        for n in range(len(kinds), -1, -1):
            for chosen in combinations(kinds, n):
                yield frozenset().union(*chosen)
