"""Where the machines of patterns, formats, lengths and numbers come from; each is made once.

Numbers come in two alphabets. Unconstrained ones may have an exponent; as soon as anything but the type is asked,
only plain decimals are offered: which of 1, 10e-1, 100e-2 ... is meant isn't regular.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from imp_server.core import GrammarRefused
from imp_server.grammar.languages.definitions import definition_machine
from imp_server.grammar.languages.formats import ENFORCED, format_machine
from imp_server.grammar.languages.regex.compile import compile_regex
from imp_server.grammar.machines.lazy_product import lazy_product
from imp_server.grammar.machines.lengths import with_length
from imp_server.grammar.machines.machine import Machine
from imp_server.grammar.machines.memo import remembered
from imp_server.grammar.machines.numbers import Bound, joint
from imp_server.grammar.machines.plain_length import PlainLength
from imp_server.grammar.values.listed_numbers import ListedNumbers

__all__ = [
    "any_number",
    "definition_machine",
    "format_machine",
    "is_enforced_format",
    "length_bounded",
    "number_leaf_machine",
    "number_obeys",
    "pattern_machine",
    "plain_number",
    "typed_number",
]


def pattern_machine(pattern: str) -> Machine:
    return compile_regex(pattern)


def length_bounded(machine: Machine, low: int, high: int | None) -> Machine:
    """The texts of `machine` of `low` to `high` code points. Raises GrammarRefused where none is found."""
    try:
        return with_length(machine, low, high)
    except GrammarRefused:
        return lazy_product([machine, PlainLength(low, high)], [])


def is_enforced_format(name: str) -> bool:
    """Every other format is an annotation."""
    return name in ENFORCED


@remembered(maxsize=1)
def any_number() -> Machine:
    """Every JSON number."""
    return compile_regex(r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$")


@remembered(maxsize=1)
def plain_number() -> Machine:
    """JSON numbers without an exponent."""
    return compile_regex(r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$")


@remembered(maxsize=1024)
def number_leaf_machine(kind: str, what: Any) -> Machine:
    """Exactly the plain decimals that satisfy one number leaf."""
    if kind == "listed":
        return ListedNumbers(what)
    return _together([(kind, what)], point=True)


def typed_number(wanted: Sequence[tuple[str, Any]]) -> Machine:
    """The numbers that satisfy all leaves; integers are written without a fraction unless theirs say otherwise."""
    if not wanted:
        return any_number()
    listed = [what for kind, what in wanted if kind == "listed"]
    rest = [leaf for leaf in wanted if leaf[0] != "listed"]
    point = ("integer", "digits") not in rest
    if not listed:
        return _together(rest, point=point)
    values = frozenset.intersection(*listed)
    return ListedNumbers([v for v in values if all(number_obeys(v, *leaf) for leaf in rest)], point=point)


def number_obeys(value: Decimal, kind: str, what: Any) -> bool:
    """Whether a number satisfies a leaf."""
    if kind == "listed":
        return value in what
    if kind == "range":
        low, high = what
        above = low is None or value > low[0] or (value == low[0] and not low[1])
        return above and (high is None or value < high[0] or (value == high[0] and not high[1]))
    # remainders of Decimal are rounded to its context; fractions are exact
    return (Fraction(value) / (1 if kind == "integer" else Fraction(what))).denominator == 1


def typed_range(steps: Sequence[tuple[str, Any]], span: Any, *, point: bool) -> Machine:
    """The plain decimals within a range that obey all steps (leaves integer and multiple)."""
    return _together([*steps, ("range", span)], point=point)


def _together(leaves: Sequence[tuple[str, Any]], point: bool) -> Machine:
    ranges = []
    for kind, what in leaves:
        if kind == "range":
            low, high = what
            ranges.append((low and Bound(*low), high and Bound(*high)))
    steps = [Decimal(1) if kind == "integer" else what for kind, what in leaves if kind != "range"]
    return joint(ranges, steps, point=point)
