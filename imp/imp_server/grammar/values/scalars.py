"""Machines of the leaves about strings and numbers, and of Boolean formulas over them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, cast

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.combine import anything, intersect, nothing, union
from imp_server.grammar.machines.explored import representatives
from imp_server.grammar.machines.lazy_product import either_one, either_product, lazy_product
from imp_server.grammar.machines.literals import Literals
from imp_server.grammar.machines.machine import DEAD, Machine
from imp_server.grammar.machines.memo import remembered
from imp_server.grammar.machines.plain_length import PlainLength
from imp_server.grammar.machines.unlike import Unlike
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.formula import AND, NOT, ONE, OR, Formula, Leaf
from imp_server.grammar.values.leaves import NumberLeaf, TextLeaf
from imp_server.grammar.values.number_sets import ranges_machine
from imp_server.grammar.values.text_machines import (
    definition_machine,
    format_machine,
    length_bounded,
    number_leaf_machine,
    number_obeys,
    pattern_machine,
    plain_number,
    typed_number,
)

__all__ = [
    "in_digits",
    "is_finite",
    "literals_machine",
    "number_machine",
    "pattern_machine",
    "string_machine",
    "watched_number",
    "words",
]


N_BYTES_WORD = 120
"""Memory of a beginning that is looked at while texts are listed."""


@remembered(maxsize=256)
def literals_machine(texts: frozenset[bytes]) -> Machine:
    return Literals(texts)


def string_machine(algebra: Algebra, f: Formula) -> Machine:
    """The decoded texts that satisfy `f`, which is restricted to STRING."""
    found = algebra.string_machines.get(f)
    if found is None:
        found = algebra.string_machines[f] = _build(algebra, f, algebra.string_machines, _text_leaf, anything())
    return found


def number_machine(algebra: Algebra, f: Formula) -> Machine:
    """The spellings of the JSON numbers that satisfy `f`, which is restricted to NUMBER."""
    found = algebra.number_machines.get(f)
    if found is None:
        found = algebra.number_machines[f] = _numbers(algebra, f)
    return found


def is_finite(algebra: Algebra, f: Formula) -> bool:
    """Whether only listed strings satisfy `f`."""
    if isinstance(f.leaf, TextLeaf):
        return f.leaf.kind == "literals"
    if f.op not in (AND, OR):
        return False
    found = algebra.finite.get(f)
    if found is None:
        spend()
        combined = any if f.op == AND else all
        found = algebra.finite[f] = combined(is_finite(algebra, a) for a in f.args)
    return found


def in_digits(f: Formula) -> bool:
    """Whether only integers without a fraction satisfy `f`: nothing else among them needs watching."""
    return any(
        isinstance(p.leaf, NumberLeaf) and (p.leaf.kind, p.leaf.what) == ("integer", "digits") for p in f.conjuncts()
    )


def words(machine: Machine) -> Iterator[str]:
    """All texts that are accepted, each once: those of a few letters first, and short ones before long ones."""
    found: set[bytes] = set()
    for samples in (_sample_bytes(machine.classes), tuple(range(256))):
        queue: deque[tuple[int, bytes]] = deque([(machine.start, b"")] if machine.start != DEAD else ())
        while queue:
            charge(N_BYTES_WORD * len(samples) // 4, 1 + len(samples) // 4)
            state, text = queue.popleft()
            rest = machine.shortest(state)
            if rest is not None and text + rest not in found:
                found.add(text + rest)
                yield (text + rest).decode()
            for byte in samples:
                after = machine.step(state, byte)
                if after != DEAD:
                    queue.append((after, text + bytes([byte])))


@remembered(maxsize=256)
def _sample_bytes(classes: bytes) -> tuple[int, ...]:
    """A few bytes of each class, letters first: words should differ even where the machine doesn't care."""
    chosen = [b for b in b"abcdefghijABC0123" if b < 256]
    return tuple(dict.fromkeys([*chosen, *representatives(classes)]))


def _text_leaf(leaf: Leaf) -> Machine:
    assert isinstance(leaf, TextLeaf)
    what: Any = leaf.what
    if leaf.kind == "literals":
        return literals_machine(what)
    if leaf.kind == "pattern":
        return pattern_machine(what)
    if leaf.kind == "format":
        return format_machine(what)
    if leaf.kind == "definition":
        return definition_machine(*what)
    return PlainLength(*what)


def _build(
    algebra: Algebra,
    f: Formula,
    made: dict[Formula, Machine],
    leaf_machine: Callable[[Leaf], Machine],
    everything: Machine,
) -> Machine:
    fs = algebra.formulas

    def build(g: Formula) -> Machine:
        found = made.get(g)
        if found is None:
            found = made[g] = _build(algebra, g, made, leaf_machine, everything)
        return found

    if f is fs.true:
        return everything
    if f is fs.false:
        return nothing()
    if f.leaf is not None:
        return leaf_machine(f.leaf)
    if f.op == AND:
        return _conjunction(f, build)
    if f.op == OR:
        return union([build(a) for a in f.args])
    if f.op == ONE:
        return either_one([build(a) for a in f.args])
    inner = f.args[0]
    if isinstance(inner.leaf, TextLeaf) and inner.leaf.kind == "literals":
        return Unlike(everything, texts_of(inner.leaf))
    if isinstance(inner.leaf, TextLeaf) and inner.leaf.kind == "length":
        return build(_other_lengths(algebra, inner.leaf))
    if isinstance(inner.leaf, NumberLeaf) and inner.leaf.kind == "range":
        return build(_other_numbers(algebra, inner.leaf))
    if inner.op in (AND, OR):
        flipped = [fs.neg(a) for a in inner.args]
        return build(fs.disj(flipped) if inner.op == AND else fs.conj(flipped))
    return either_product([], [build(inner)])


def _other_lengths(algebra: Algebra, leaf: TextLeaf) -> Formula:
    low, high = bounds(leaf)
    parts = [algebra.text("length", (0, low - 1))] if low else []
    if high is not None:
        parts.append(algebra.text("length", (high + 1, None)))
    return algebra.formulas.disj(parts)


def _other_numbers(algebra: Algebra, leaf: NumberLeaf) -> Formula:
    low, high = cast("tuple[tuple[Decimal, bool] | None, ...]", leaf.what)
    parts = []
    if low is not None:
        parts.append(algebra.number("range", (None, (low[0], not low[1]))))
    if high is not None:
        parts.append(algebra.number("range", ((high[0], not high[1]), None)))
    return algebra.formulas.disj(parts)


def _conjunction(f: Formula, build: Callable[[Formula], Machine]) -> Machine:
    wanted: list[Machine] = []
    without: list[Machine] = []
    unlike: set[bytes] = set()
    low, high = bounds(None)
    for part in f.args:
        leaf = part.leaf
        if isinstance(leaf, TextLeaf) and leaf.kind == "length":
            least, most = bounds(leaf)
            low = max(low, least)
            high = most if high is None or (most is not None and most < high) else high
        elif part.op == NOT and isinstance(inner := part.args[0].leaf, TextLeaf) and inner.kind == "literals":
            unlike |= texts_of(inner)
        elif part.op == NOT and part.args[0].leaf is not None and not _is_range(part.args[0].leaf):
            without.append(build(part.args[0]))
        else:
            wanted.append(build(part))
    if high is not None and high < low:
        return nothing()
    bounded = low > 0 or high is not None
    if not wanted and not without:
        plain: Machine = PlainLength(low, high) if bounded else anything()
        return Unlike(plain, unlike) if unlike else plain
    if unlike:
        without.append(literals_machine(frozenset(unlike)))
    if not without and len(wanted) == 1:
        return length_bounded(wanted[0], low, high) if bounded else wanted[0]
    if any(m.start == DEAD for m in wanted):
        return nothing()
    if bounded:
        wanted.append(PlainLength(low, high))
    return lazy_product(wanted or [anything()], [m for m in without if m.start != DEAD])


def texts_of(leaf: TextLeaf) -> frozenset[bytes]:
    return cast("frozenset[bytes]", leaf.what)


def bounds(leaf: TextLeaf | None) -> tuple[int, int | None]:
    """(fewest, most) code points of a length leaf; of no leaf: any number."""
    if leaf is None:
        return 0, None
    low, high = cast("tuple[int, int | None]", leaf.what)
    return low, high


def _is_range(leaf: Leaf) -> bool:
    """Whether the negation is best said with other ranges, not with a complement."""
    return isinstance(leaf, TextLeaf | NumberLeaf) and leaf.kind in ("length", "range")


def _numbers(algebra: Algebra, f: Formula) -> Machine:
    if f is algebra.formulas.false:
        return nothing()
    parts = f.conjuncts()
    wanted = [(p.leaf.kind, p.leaf.what) for p in parts if isinstance(p.leaf, NumberLeaf)]
    if len(wanted) == len(parts):
        return typed_number(wanted)
    listed = [cast("frozenset[Decimal]", what) for kind, what in wanted if kind == "listed"]
    if listed:
        left = frozenset(v for v in frozenset.intersection(*listed) if _number_holds(algebra, f, v))
        return typed_number([*(w for w in wanted if w == ("integer", "digits")), ("listed", left)])
    plain = intersect([plain_number(), typed_number(wanted)]) if wanted else plain_number()
    others = [p for p in parts if not isinstance(p.leaf, NumberLeaf)]
    unlike = [p.args[0].leaf for p in others if p.op == NOT]
    if all(isinstance(leaf, NumberLeaf) and leaf.kind == "listed" for leaf in unlike) and len(unlike) == len(others):
        # many numbers to be left out, as of unique items: never explored as a whole
        left_out = [_number_leaf(leaf) for leaf in unlike if leaf]
        return lazy_product([typed_number(wanted) if wanted else plain], left_out)
    ranges = ranges_machine(f, point=not in_digits(f))
    if ranges is not None:
        return ranges
    # pieces live in a memo of their own: complements of numbers aren't numbers
    return intersect([plain, _build(algebra, f, {}, _number_leaf, plain_number())])


def _number_holds(algebra: Algebra, f: Formula, value: Decimal) -> bool:
    def obeys(leaf: Leaf) -> bool:
        return isinstance(leaf, NumberLeaf) and number_obeys(value, leaf.kind, leaf.what)

    return algebra.formulas.evaluate(f, obeys)


def watched_number(algebra: Algebra, f: Formula) -> Machine:
    """The same among plain decimals alone, exactly: for formulas whose truth is watched."""
    return ranges_machine(f, point=True) or intersect(
        [plain_number(), _build(algebra, f, {}, _number_leaf, plain_number())]
    )


def _number_leaf(leaf: Leaf) -> Machine:
    assert isinstance(leaf, NumberLeaf)
    return number_leaf_machine(leaf.kind, leaf.what)
