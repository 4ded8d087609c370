"""The members that complete an object, given a conjunction of object leaves and negated ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from itertools import islice, product
from math import prod
from typing import NamedTuple

from imp_server.core import GrammarRefused
from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.combine import nothing
from imp_server.grammar.machines.lazy_product import either_product
from imp_server.grammar.machines.machine import DEAD, Machine
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.formula import AND, NOT, ONE, OR, Formula, Formulas, Leaf
from imp_server.grammar.values.json_values import spelled
from imp_server.grammar.values.leaves import STRING, Count, Names, Props, Required, Watched
from imp_server.grammar.values.sat.drawn import Drawn
from imp_server.grammar.values.sat.found import Found, joined
from imp_server.grammar.values.sat.questions import Questions
from imp_server.grammar.values.scalars import pattern_machine, string_machine, words

MAX_CHOICES = 64
MAX_BEGUN = 4_096
"""Choices looked at while those of all leaves are put together."""
FEW = 8
N_FRESH = 3
"""Unknown names tried for each way to break a leaf."""
MAX_REGIONS = 16
ANY = "\ud800"
"""No name."""
MAX_FRESH = 64
N_BYTES = 300
"""Memory of what is kept of one property's value."""


class MemberTask(NamedTuple):
    """A conjunction, sorted by what it asks."""

    props: tuple[Props, ...]
    names: tuple[Names, ...]
    needed: frozenset[str]
    low: int
    high: int | None
    against: tuple[Leaf, ...]
    """Leaves that must be false."""
    order: tuple[str, ...] = ()


class Choice(NamedTuple):
    """One way to make a leaf false: forbid a name, demand a value, or bound the count."""

    forbid: str | None = None
    name: str | None = None
    extra: Formula | None = None
    low: int = 0
    high: int | None = None


def members(
    solver: Questions, literals: Iterable[tuple[Leaf, bool]], seen: frozenset[str], order: tuple[str, ...] = ()
) -> Found | None:
    task = _task(literals, order)
    if not seen.isdisjoint(task.needed):
        return None
    if task.high is not None and len(task.needed) > task.high:
        return None
    known = Members(solver, task)
    if not task.against:
        return _complete(solver, task, seen, (), known)
    if any(known.get(name, solver.algebra.formulas.true) is None for name in task.needed):
        return None
    found = _broken(solver, task, seen, known, [list(_ways(solver, task, leaf, seen)) for leaf in task.against])
    if found is not None or all(_is_exhaustive(solver, task, leaf, seen) for leaf in task.against):
        return found
    regions = list(_regions(solver, task, len(task.against)))
    thorough = [_thorough_ways(solver, task, leaf, seen, regions) for leaf in task.against]
    return _broken(solver, task, seen, known, thorough)


def _broken(
    solver: Questions, task: MemberTask, seen: frozenset[str], known: Members, options: list[list[Choice]]
) -> Found | None:
    """Members under one choice of each list."""
    if prod(map(len, options)) > FEW:
        # what is impossible alone is impossible together
        options = [[c for c in ways if _is_possible(task, c, known)] for ways in options]
    for tried, choices in enumerate(_together(task, options, known)):
        if tried == MAX_CHOICES or choices is None:
            solver.give_up()
            break
        answer = _complete(solver, task, seen, choices, known)
        if answer is not None:
            return answer
    return None


def is_enough(algebra: Algebra, f: Formula, literals: Iterable[tuple[Leaf, bool]]) -> bool:
    """Whether `f` holds of an object whose further members are the ones that the literals demand, and no others."""
    needed: set[str] = set()
    low = 0
    for leaf, sign in literals:
        if isinstance(leaf, Watched):
            continue
        if isinstance(leaf, Names) or not (sign or isinstance(leaf, Required)):
            return False
        if sign and isinstance(leaf, Required):
            needed |= leaf.names
        elif isinstance(leaf, Count):
            low = max(low, leaf.low)
    spend(1 + len(f.args) // 8)
    return low <= len(needed) and all(_part_holds(algebra, part, needed) for part in f.conjuncts())


def _part_holds(algebra: Algebra, part: Formula, needed: Set[str]) -> bool | None:
    """Of an object with these further members; None if it depends on their values."""
    if part.is_watching:
        return None
    names = algebra.part_names.get(part)
    if names is None:
        names = algebra.part_names[part] = _names_of(algebra, part)
        charge(N_BYTES, 1)
    if ANY in names:
        return _holds(algebra, part, needed)
    key = part, names if names <= needed else names & needed
    if key not in algebra.parts_held:
        charge(N_BYTES, 1)
        algebra.parts_held[key] = _holds(algebra, part, key[1])
    return algebra.parts_held[key]


def _names_of(algebra: Algebra, part: Formula) -> frozenset[str]:
    """The only names whose members matter; ANY is among them where others do."""
    names: set[str] = set()
    for leaf in part.leaves():
        if isinstance(leaf, Required):
            names |= leaf.names
        elif isinstance(leaf, Props) and not leaf.patterns and leaf.rest is algebra.any:
            names |= leaf.names.keys()
        else:
            names.add(ANY)
    return frozenset(names)


def _holds(algebra: Algebra, f: Formula, needed: Set[str]) -> bool | None:
    if f.leaf is not None:
        return _leaf_holds(algebra, f.leaf, needed)
    spend()
    if not f.args:
        return f is algebra.formulas.true
    if f.op == NOT:
        inner = _inner_holds(algebra, f.args[0], needed)
        return None if inner is None else not inner
    truths = []
    for arg in f.args:
        truths.append(_inner_holds(algebra, arg, needed))
        if f.op != ONE and truths[-1] is (f.op == OR):
            return f.op == OR
    if f.op == ONE:
        n_true = truths.count(True)
        return n_true == 1 if n_true > 1 or None not in truths else None
    return None if None in truths else f.op == AND


def _inner_holds(algebra: Algebra, f: Formula, needed: Set[str]) -> bool | None:
    """Chains of conditions are long: what stands behind the names that are there is known from others."""
    is_long = f.leaf is None and not f.is_watching and len(f.leaves()) > FEW
    return _part_holds(algebra, f, needed) if is_long else _holds(algebra, f, needed)


def _leaf_holds(algebra: Algebra, leaf: Leaf, needed: Set[str]) -> bool | None:
    if isinstance(leaf, Required):
        return leaf.names <= needed
    if isinstance(leaf, Count):
        return leaf.low <= len(needed) and (leaf.high is None or len(needed) <= leaf.high)
    if isinstance(leaf, Props):
        values = {value_formula(algebra, [leaf], name) for name in needed}
        if algebra.formulas.false in values:
            return False
        return True if values <= {algebra.formulas.true} else None
    return True if isinstance(leaf, Names) and not needed else None


class BegunChoices(NamedTuple):
    """Choices put together so far, and what they come to."""

    chosen: tuple[Choice, ...]
    extras: dict[str, Formula]
    forbidden: frozenset[str]

    def and_(self, choice: Choice, task: MemberTask, known: Members) -> BegunChoices | None:
        """With one more choice; None if that is impossible."""
        chosen, (extras, forbidden) = (*self.chosen, choice), self[1:]
        if choice.forbid is not None:
            is_wanted = choice.forbid in task.needed or choice.forbid in extras
            return None if is_wanted else BegunChoices(chosen, extras, forbidden | {choice.forbid})
        if choice.name is None or choice.extra is None:
            return BegunChoices(chosen, extras, forbidden)
        both = known.joint(extras.get(choice.name), choice.extra)
        if choice.name in forbidden or known.get(choice.name, both) is None:
            return None
        extras = {**extras, choice.name: both}
        if task.high is not None and len(task.needed | extras.keys()) > task.high:
            return None
        return BegunChoices(chosen, extras, forbidden)


def _together(
    task: MemberTask, options: Sequence[Sequence[Choice]], known: Members
) -> Iterator[tuple[Choice, ...] | None]:
    """One choice of each list, in order, without those of which some are impossible together.

    None, and no more of them, where too many were begun in vain.
    """
    todo = [BegunChoices((), {}, frozenset())]
    n_left = MAX_BEGUN
    while todo:
        begun = todo.pop()
        if len(begun.chosen) == len(options):
            yield begun.chosen
            continue
        ways = options[len(begun.chosen)]
        n_left -= len(ways)
        if n_left < 0:
            yield None
            return
        spend(len(ways) * (1 + len(begun.chosen) // 64))  # each copies what was chosen so far
        grown = [more for choice in ways if (more := begun.and_(choice, task, known)) is not None]
        todo += reversed(grown)


def _is_possible(task: MemberTask, choice: Choice, known: Members) -> bool:
    """Whether nothing speaks against the choice by itself."""
    if choice.high is not None and choice.high < max(task.low, len(task.needed)):
        return False
    if choice.name is None or choice.extra is None:
        return choice.forbid not in task.needed
    return known.get(choice.name, choice.extra) is not None


def _task(literals: Iterable[tuple[Leaf, bool]], order: tuple[str, ...]) -> MemberTask:
    props, names, against = [], [], []
    needed: set[str] = set()
    low, high = 0, None
    literals = list(literals)
    spend(1 + len(literals) // 4)
    for leaf, sign in literals:
        if not sign:
            against.append(leaf)
        elif isinstance(leaf, Props):
            props.append(leaf)
        elif isinstance(leaf, Names):
            names.append(leaf)
        elif isinstance(leaf, Required):
            needed |= leaf.names
        elif isinstance(leaf, Count):
            low, high = max(low, leaf.low), _least(high, leaf.high)
    return MemberTask(tuple(props), tuple(names), frozenset(needed), low, high, tuple(against), order)


def _least(a: int | None, b: int | None) -> int | None:
    return min(x for x in (a, b) if x is not None) if a is not None or b is not None else None


def _ways(solver: Questions, task: MemberTask, leaf: Leaf, seen: frozenset[str]) -> Iterator[Choice]:
    """Every way to make `leaf` false that is worth trying, likely ones first."""
    fs = solver.algebra.formulas
    if isinstance(leaf, Required):
        yield from (Choice(forbid=n) for n in sorted(leaf.names - task.needed))
    elif isinstance(leaf, Count):
        if leaf.low:
            yield Choice(high=leaf.low - 1)
        if leaf.high is not None:
            yield Choice(low=leaf.high + 1)
    elif isinstance(leaf, Props):
        taken = seen | {n for p in (*task.props, leaf) for n in p.names}
        # a name that another leaf declares may be one that this leaf's `rest` or patterns forbid
        strange = sorted(taken - seen - leaf.names.keys(), key=lambda n: (n not in task.needed, n))[:FEW]
        for name in [*sorted(leaf.names, key=lambda n: (n not in task.needed, n)), *strange]:
            value = value_formula(solver.algebra, [leaf], name)
            if name not in seen and value is not fs.true:
                yield Choice(name=name, extra=fs.neg(value))
        others = [(p, s) for p, s in leaf.patterns if s.formula is not fs.true]
        for pattern, _ in others:
            yield from _with_fresh(solver, task, leaf, taken, pattern)
        if leaf.rest.formula is not fs.true:
            yield from _with_fresh(solver, task, leaf, taken, None)
            # a name that this leaf's patterns don't match, though another's do
            own = {p for p, _ in leaf.patterns}
            for pattern in dict.fromkeys(p for other in task.props for p, _ in other.patterns if p not in own):
                yield from _with_fresh(solver, task, leaf, taken, pattern, own)
    elif isinstance(leaf, Names):
        bad = string_machine(solver.algebra, fs.neg(fs.restrict(leaf.sub.formula, STRING)))
        good = [_names_machine(solver.algebra, n) for n in task.names]
        if bad.start != DEAD:
            declared = {n for p in task.props for n in p.names}
            for name in (*sorted(declared), *islice(words(_joint(solver, [bad, *good])), 4)):
                if name not in seen and _accepts(bad, name):
                    yield Choice(name=name, extra=fs.true)


def _with_fresh(
    solver: Questions,
    task: MemberTask,
    leaf: Props,
    taken: frozenset[str],
    pattern: str | None,
    unmatched: Collection[str] = (),
) -> Iterator[Choice]:
    for name in fresh_names(solver, task, taken, pattern, N_FRESH, unmatched):
        value = value_formula(solver.algebra, [leaf], name)
        yield Choice(name=name, extra=solver.algebra.formulas.neg(value))


def _is_exhaustive(solver: Questions, task: MemberTask, leaf: Leaf, seen: frozenset[str]) -> bool:
    """Whether `_ways` leaves out no name that could make the leaf false: those unknown to all leaves are alike."""
    if isinstance(leaf, Required | Count):
        return True
    has_patterns = bool(_patterns(task))
    if isinstance(leaf, Names):
        return not has_patterns and len(task.against) <= N_FRESH
    assert isinstance(leaf, Props)
    true = solver.algebra.formulas.true
    if leaf.rest.formula is true and all(s.formula is true for _, s in leaf.patterns):
        return True
    n_strange = len({n for p in task.props for n in p.names} - seen - leaf.names.keys())
    return not has_patterns and not task.names and n_strange <= FEW and len(task.against) <= N_FRESH


def _thorough_ways(
    solver: Questions, task: MemberTask, leaf: Leaf, seen: frozenset[str], regions: Sequence[Sequence[str]]
) -> list[Choice]:
    """As `_ways`, with all known names, and some of each region."""
    fs = solver.algebra.formulas
    ways = dict.fromkeys(_ways(solver, task, leaf, seen))
    names = dict.fromkeys([*(n for p in task.props for n in p.names), *(name for some in regions for name in some)])
    for name in (n for n in names if n not in seen):
        if isinstance(leaf, Props):
            value = value_formula(solver.algebra, [leaf], name)
            if value is not fs.true:
                ways[Choice(name=name, extra=fs.neg(value))] = None
        elif isinstance(leaf, Names) and not _accepts(_names_machine(solver.algebra, leaf), name):
            ways[Choice(name=name, extra=fs.true)] = None
    return list(ways)


def _patterns(task: MemberTask) -> tuple[str, ...]:
    props = (*task.props, *(leaf for leaf in task.against if isinstance(leaf, Props)))
    return tuple(dict.fromkeys(p for leaf in props for p, _ in leaf.patterns))


def _regions(solver: Questions, task: MemberTask, n: int, taken: Collection[str] = ()) -> Iterator[list[str]]:
    """`n` lawful names, or all there are, of each set of names that the same patterns and negated rules tell apart."""
    rules = [leaf for leaf in task.against if isinstance(leaf, Names)]
    parts = [pattern_machine(p) for p in _patterns(task)] + [_names_machine(solver.algebra, leaf) for leaf in rules]
    lawful = [_names_machine(solver.algebra, leaf) for leaf in task.names]
    declared = {name for leaf in (*task.props, *task.against) if isinstance(leaf, Props) for name in leaf.names}
    cells: list[tuple[list[Machine], list[Machine]]] = [(lawful, [])]
    for part in parts:
        halves = [half for yes, no in cells for half in (([*yes, part], no), (yes, [*no, part]))]
        cells = [half for half in halves if next(words(_joint(solver, *half)), None) is not None]
        if len(cells) > MAX_REGIONS:
            solver.give_up()
            return
    for yes, no in cells:
        drawn = words(_joint(solver, yes, no))
        yield list(islice((name for name in drawn if name not in declared and name not in taken), n))


class Members:
    """Owner of the members of one task found so far: its choices ask for the same ones again and again."""

    def __init__(self, solver: Questions, task: MemberTask) -> None:
        self._solver, self._task = solver, task
        self._found: dict[tuple[str, Formula], Found | None] = {}

    def joint(self, first: Formula | None, second: Formula) -> Formula:
        return second if first is None else self._solver.algebra.formulas.conj([first, second])

    def get(self, name: str, extra: Formula) -> Found | None:
        """The shortest member of this name whose value satisfies `extra`, too."""
        key = name, extra
        spend()
        if key not in self._found:
            self._found[key] = _member(self._solver, self._task, name, extra)
        return self._found[key]


def _complete(
    solver: Questions, task: MemberTask, seen: frozenset[str], choices: Iterable[Choice], known: Members
) -> Found | None:
    spend(2)
    fs = solver.algebra.formulas
    plan: dict[str, Formula] = dict.fromkeys(sorted(task.needed), fs.true)
    forbidden: set[str] = set()
    low, high = task.low, task.high
    for choice in choices:
        if choice.forbid is not None:
            forbidden.add(choice.forbid)
        if choice.name is not None and choice.extra is not None:
            plan[choice.name] = fs.conj([plan.get(choice.name, fs.true), choice.extra])
        low, high = max(low, choice.low), _least(high, choice.high)
    if not forbidden.isdisjoint(plan) or (high is not None and (len(plan) > high or low > high)):
        return None
    parts: dict[str, Found] = {}
    for name, extra in plan.items():
        part = known.get(name, extra)
        if part is None:
            return None
        parts[name] = part
    if len(parts) < low:
        more = _optional(solver, task, seen | forbidden | set(plan), low - len(parts))
        if more is None:
            return None
        parts.update(more)
    if task.order:
        rank = {name: at for at, name in enumerate(task.order)}
        return joined(parts[name] for name in sorted(parts, key=lambda name: rank.get(name, len(rank))))
    return joined(parts.values())


def _member(solver: Questions, task: MemberTask, name: str, extra: Formula) -> Found | None:
    spend(1)
    if not all(_accepts(_names_machine(solver.algebra, n), name) for n in task.names):
        return None
    value = solver.algebra.formulas.conj([value_formula(solver.algebra, task.props, name), extra])
    known = solver.members_made.get((name, value))
    if known is not None:
        return known
    rest = solver.value(value)
    if rest is None:
        return None
    key = spelled(("string", name)).encode() + b":"
    made = solver.members_made[name, value] = Found(len(key) + rest.size, lambda: key + rest.text())
    return made


def _optional(solver: Questions, task: MemberTask, taken: frozenset[str] | set[str], n: int) -> dict[str, Found] | None:
    """`n` more members by name, whatever they are called."""
    parts: dict[str, Found] = {}
    declared = sorted({name for p in task.props for name in p.names} - set(taken))
    fresh = fresh_names(solver, task, frozenset(taken) | set(declared), None, n + MAX_FRESH)
    for source in (declared, fresh):
        for name in source:
            part = _member(solver, task, name, solver.algebra.formulas.true)
            if part is not None:
                parts[name] = part
                if len(parts) == n:
                    return parts
    for pattern in dict.fromkeys(p for leaf in task.props for p, _ in leaf.patterns):
        for name in fresh_names(solver, task, frozenset(taken) | set(declared), pattern, n + 4):
            part = _member(solver, task, name, solver.algebra.formulas.true)
            if part is not None:
                parts[name] = part
                if len(parts) == n:
                    return parts
    if len(_patterns(task)) < 2:
        return None
    for names in _regions(solver, task, n, set(taken) | set(declared)):
        for name in names:
            part = _member(solver, task, name, solver.algebra.formulas.true)
            if part is None:
                break
            parts[name] = part
    return dict(islice(parts.items(), n)) if len(parts) >= n else None


def fresh_names(
    solver: Questions,
    task: MemberTask,
    taken: frozenset[str],
    pattern: str | None,
    n: int,
    unmatched: Collection[str] = (),
) -> Iterator[str]:
    """Undeclared, unused names: those matching `pattern`, or matching none of the patterns if it is None.

    `unmatched`: patterns that they don't match either.
    """
    patterns = {
        p for leaf in (*task.props, *(a for a in task.against if isinstance(a, Props))) for p, _ in leaf.patterns
    }
    if not task.names and not patterns:
        yield from _simple_names(taken, n)
        return
    without = frozenset(patterns if pattern is None else unmatched)
    key = task.names, pattern, without
    drawn = solver.names.get(key)
    if drawn is None:
        wanted = [_names_machine(solver.algebra, leaf) for leaf in task.names]
        if pattern is not None:
            wanted.append(pattern_machine(pattern))
        machine = _joint(solver, wanted, [pattern_machine(p) for p in sorted(without)])
        drawn = solver.names[key] = Drawn(lambda: words(machine))
    yield from islice((name for name in drawn if name not in taken), n)


def _joint(solver: Questions, wanted: Sequence[Machine], without: Sequence[Machine] = ()) -> Machine:
    """What all of `wanted` accept and none of `without`; nothing if that is too much work."""
    try:
        return either_product(wanted, without)
    except GrammarRefused:
        # unproved, so never entered
        solver.give_up()
        return nothing()


def _simple_names(taken: frozenset[str], n: int) -> Iterator[str]:
    given = size = 0
    while given < n:
        size += 1
        for letters in product("abcdefghijklmnopqrstuvwxyz", repeat=size):
            name = "".join(letters)
            if name not in taken:
                yield name
                given += 1
                if given == n:
                    return


def says_nothing(fs: Formulas, leaf: Props, seen: frozenset[str]) -> bool:
    """Whether any further member obeys the leaf."""
    if leaf.ordered or leaf.rest.formula is not fs.true or any(s.formula is not fs.true for _, s in leaf.patterns):
        return False
    return all(name in seen or sub.formula is fs.true for name, sub in leaf.names.items())


def value_formula(algebra: Algebra, props: Iterable[Props], name: str) -> Formula:
    """What the leaves ask together of the value of property `name`."""
    key = tuple(props), name
    known = algebra.property_values.get(key)
    if known is None:
        parts = []
        charge(N_BYTES, 2 + len(key[0]) // 2)
        for leaf in key[0]:
            subs = [leaf.names[name]] if name in leaf.names else []
            subs += [s for p, s in leaf.patterns if _accepts(pattern_machine(p), name)]
            parts += [s.formula for s in (subs or [leaf.rest])]
        known = algebra.property_values[key] = algebra.formulas.conj(parts)
    return known


def _names_machine(algebra: Algebra, leaf: Names) -> Machine:
    return string_machine(algebra, algebra.formulas.restrict(leaf.sub.formula, STRING))


def _accepts(machine: Machine, name: str) -> bool:
    state = machine.start
    spend(1 + len(name) // 8)
    for byte in name.encode():
        if state == DEAD:
            return False
        state = machine.step(state, byte)
    return state != DEAD and machine.accepts(state)
