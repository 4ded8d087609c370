"""Combinations of many ranges of numbers: against exact arithmetic, and against the product they replace."""

from __future__ import annotations

import json
import random
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.grammar.machines.combine import exactly_one, intersect
from imp_server.grammar.machines.machine import DEAD
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.formula import Formula, Leaf
from imp_server.grammar.values.leaves import NumberLeaf
from imp_server.grammar.values.number_sets import ranges_machine
from imp_server.grammar.values.scalars import _build, _number_leaf
from imp_server.grammar.values.text_machines import number_obeys, plain_number
from jsonschema.validators import Draft202012Validator

from tests.grammar.judging import matcher, reads
from tests.grammar.test_numbers import TEXTS
from tests.grammar.test_regex import accepted

ALGEBRA = Algebra()
values = st.builds(lambda n, e: Decimal(n).scaleb(-e), st.integers(-60, 60), st.integers(0, 1))
bounds = st.none() | st.tuples(values, st.booleans())
ranges = st.tuples(bounds, bounds).map(lambda span: ALGEBRA.number("range", span))
listed = st.frozensets(values, min_size=1, max_size=3).map(lambda found: ALGEBRA.number("listed", found))
steps = st.sampled_from(
    [ALGEBRA.number("integer", "any"), *(ALGEBRA.number("multiple", Decimal(n)) for n in ("2", "0.5", "3"))]
)
fs = ALGEBRA.formulas


def combined(leaves: st.SearchStrategy[Formula], *, negated: bool) -> st.SearchStrategy[Formula]:
    def extend(inner: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
        several = st.lists(inner, min_size=2, max_size=4)
        both = several.map(fs.conj) | several.map(fs.disj)
        return both | several.map(fs.one) | inner.map(fs.neg) if negated else both

    return st.recursive(leaves, extend, max_leaves=8)


formulas = combined(ranges | listed, negated=True) | combined(ranges | listed | steps, negated=False)


def holds(f: Formula, value: Decimal) -> bool:
    def obeys(leaf: Leaf) -> bool:
        return isinstance(leaf, NumberLeaf) and number_obeys(value, leaf.kind, leaf.what)

    return fs.evaluate(f, obeys)


@settings(max_examples=250, deadline=None)
@given(formulas)
def test_agrees_with_exact_arithmetic(f: Formula) -> None:
    machine = ranges_machine(f, point=True)
    if machine is None:
        numbers = {leaf for leaf in f.leaves() if isinstance(leaf, NumberLeaf)}
        assert len({leaf for leaf in numbers if leaf.kind in ("integer", "multiple")}) > 3
        return
    wrong = [t for t in TEXTS if (machine.start != DEAD and accepted(machine, t)) != holds(f, Decimal(t))]
    assert wrong == []
    if machine.start != DEAD:
        assert holds(f, Decimal((machine.shortest(machine.start) or b"").decode()))


@settings(max_examples=25, deadline=None)
@given(combined(ranges, negated=True))
def test_equals_the_product(f: Formula) -> None:
    """No number's spelling is in one of both alone."""
    machine = ranges_machine(f, point=True)
    assert machine is not None
    product = intersect([plain_number(), _build(ALGEBRA, f, {}, _number_leaf, plain_number())])
    assert exactly_one([machine, product]).start == DEAD


def test_negated_steps_are_left_to_the_product() -> None:
    even = ALGEBRA.number("multiple", Decimal(2))
    assert ranges_machine(fs.neg(even), point=True) is None
    assert ranges_machine(fs.one([even, ALGEBRA.number("range", (None, (Decimal(1), False)))]), point=True) is None


SPANS = [{"minimum": 10 * i, "maximum": 10 * i + 3.5} for i in range(500)]
MANY: dict[str, Any] = {
    "any": {"type": "number", "anyOf": SPANS},
    "one, overlapping": {"type": "number", "oneOf": [*SPANS, {"minimum": 1000, "maximum": 3000}]},
    "integers": {"anyOf": [{"type": "integer", **span} for span in SPANS]},
    "none": {"type": "number", "minimum": -5, "not": {"anyOf": SPANS}},
    "two unions": {
        "type": "number",
        "allOf": [{"anyOf": SPANS}, {"anyOf": [{"minimum": 7 * i, "exclusiveMaximum": 7 * i + 2} for i in range(600)]}],
    },
    "watched": {"if": {"anyOf": SPANS[:200]}, "then": {"multipleOf": 2}, "type": "number", "maximum": 2500},
}


@pytest.mark.parametrize("name", MANY)
def test_hundreds_of_ranges(name: str) -> None:
    schema = MANY[name]
    began = time.process_time()
    m = matcher(schema)
    assert time.process_time() - began < 4
    validator = Draft202012Validator(schema)
    rng = random.Random(name)
    seen = set()
    for _ in range(40):
        value = rng.choice([rng.randrange(-20, 5200), rng.randrange(-20, 52000) / 10, 10 * rng.randrange(500) + 3.75])
        if isinstance(value, float) and value.is_integer():
            continue
        valid = validator.is_valid(value)
        assert reads(m, json.dumps(value)) == valid, value
        seen.add(valid)
    assert seen == {True, False}
    assert validator.is_valid(json.loads(m.way_out(m.start)))
