"""Bounded numbers against exact arithmetic on Fractions."""

from __future__ import annotations

import itertools
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import Matcher
from imp_server.grammar.machines.machine import DEAD
from imp_server.grammar.machines.numbers import Bound, Decimals, joint
from imp_server.grammar.values.listed_numbers import ListedNumbers
from imp_server.vocab.table import Vocabulary

from tests.grammar.judging import accepts
from tests.grammar.test_regex import accepted, run

PLAIN = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?\Z")
TEXTS = [t for n in range(1, 5) for t in map("".join, itertools.product("-.01259", repeat=n)) if PLAIN.match(t)]
VALUES = {t: Fraction(t) for t in TEXTS}


def holds(text: str, low: Bound | None, high: Bound | None, step: Decimal | None, point: bool) -> bool:
    if not PLAIN.match(text) or ("." in text and not point):
        return False
    value = Fraction(text)
    if low is not None and (value < Fraction(low.value) or (low.strict and value == Fraction(low.value))):
        return False
    if high is not None and (value > Fraction(high.value) or (high.strict and value == Fraction(high.value))):
        return False
    return step is None or (value / Fraction(step)).denominator == 1


def decimals(n_decimals: int) -> st.SearchStrategy[Decimal]:
    return st.integers(-1200, 1200).map(lambda n: Decimal(n).scaleb(-n_decimals))


bounds = st.none() | st.builds(Bound, st.integers(0, 2).flatmap(decimals), st.booleans())
steps = st.none() | st.builds(lambda n, e: Decimal(n).scaleb(-e), st.integers(1, 60), st.integers(-1, 2))


@settings(max_examples=120, deadline=None)
@given(bounds, bounds, steps, st.booleans())
def test_agrees_with_fractions(low: Bound | None, high: Bound | None, step: Decimal | None, point: bool) -> None:
    assume(point or (step is not None and step == step.to_integral_value()))
    machine = Decimals(low, high, step, point=point)
    good = [t for t in TEXTS if holds(t, low, high, step, point)]
    assert [t for t in TEXTS if (machine.start != DEAD and accepted(machine, t))] == good
    prefixes = {t[:i] for t in good for i in range(len(t) + 1)}
    for text in TEXTS[:80]:
        for at in range(len(text) + 1):
            state = run(machine, text[:at])
            if state == DEAD:
                assert text[:at] not in prefixes
                continue
            rest = machine.shortest(state)
            assert rest is not None and holds(text[:at] + rest.decode(), low, high, step, point)
            known = [len(t) - at for t in good if t.startswith(text[:at])]
            assert not known or len(rest) <= min(known)


@settings(max_examples=100, deadline=None)
@given(st.integers(-(10**40), 10**40), st.integers(0, 10**30), st.integers(1, 10**12), st.integers(0, 6), st.data())
def test_large_bounds_and_steps(low: int, width: int, step: int, scale: int, data: st.DataObject) -> None:
    """Follow the machine at random: it never gets stuck, and what it spells is right."""
    least, most = Bound(Decimal(f"{low}e-{scale}")), Bound(Decimal(f"{low + width}e-{scale}"))
    grid = Decimal(f"{step}e-{scale}")
    machine = Decimals(least, most, grid)
    exists = -(-low // step) * step <= low + width
    assert (machine.start != DEAD) == exists
    if not exists:
        return
    state, text = machine.start, ""
    for _ in range(90):
        options = [(b, machine.step(state, b)) for b in b"-.0123456789"]
        options = [(b, t) for b, t in options if t != DEAD]
        if machine.accepts(state) and (not options or data.draw(st.booleans())):
            break
        assert options
        byte, state = data.draw(st.sampled_from(options))
        text += chr(byte)
    if not machine.accepts(state):
        text += (machine.shortest(state) or b"?").decode()
    assert holds(text, least, most, grid, True)


@pytest.mark.parametrize(
    ("low", "high", "step", "yes", "no"),
    [
        (Bound(Decimal(0), True), None, None, ["0.1", "5", "0.0001"], ["0", "0.0", "-0", "-1", "-"]),
        (Bound(Decimal(1)), Bound(Decimal(5)), None, ["1", "5", "4.99", "5.0"], ["5.7", "0.99", "5.01", "10", "01"]),
        (Bound(Decimal("0.5")), None, None, ["0.5", "1", "0.50"], ["0,5", "0.49", "-0.5"]),
        (Bound(Decimal(3)), None, Decimal(1), ["3", "10", "3.0"], ["01", "03", "2", "3.5"]),
        (None, None, Decimal("0.01"), ["19.99", "0", "-0.25", "1.100"], ["0.001", "1.005"]),
        (Bound(Decimal(0)), Bound(Decimal(0)), None, ["0", "-0", "0.00", "-0.0"], ["1", "0.1"]),
        (Bound(Decimal("0.5"), True), Bound(Decimal("0.6"), True), None, ["0.501", "0.5001", "0.59"], ["0.5", "0.60"]),
        (None, Bound(Decimal(-10)), Decimal(1), ["-10", "-11"], ["-9", "10", "-1", "0"]),
    ],
)
def test_known_cases(
    low: Bound | None, high: Bound | None, step: Decimal | None, yes: list[str], no: list[str]
) -> None:
    machine = Decimals(low, high, step)
    assert [t for t in yes if not accepted(machine, t)] == []
    assert [t for t in no if accepted(machine, t)] == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(bounds, bounds), max_size=3), st.lists(steps.filter(bool), max_size=2))
def test_joint_conditions(ranges: list[tuple[Bound | None, Bound | None]], grid: list[Decimal]) -> None:
    machine = joint(ranges, grid)
    parts = [Decimals(low, high, None) for low, high in ranges] + [Decimals(None, None, step) for step in grid]
    for text in TEXTS[::3]:
        expected = all(m.start != DEAD and accepted(m, text) for m in parts)
        assert (machine.start != DEAD and accepted(machine, text)) == expected


def test_floats_at_the_edge_of_their_range() -> None:
    largest = Decimal(repr(1.7976931348623157e308))
    machine = Decimals(Bound(-largest), Bound(largest), None)
    assert accepted(machine, f"{largest:f}")
    assert not accepted(machine, "2" + "0" * 308)
    assert accepted(machine, "0." + "0" * 400 + "1")


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 2).flatmap(decimals), min_size=1, max_size=12), st.booleans())
def test_listed_numbers(values: set[Decimal], point: bool) -> None:
    """Every spelling of each and nothing else; what is left to write is a shortest way."""
    assume(point or all(v == v.to_integral_value() for v in values))
    machine = ListedNumbers(values, point=point)
    exact = {Fraction(v) for v in values}
    good = [t for t in TEXTS if VALUES[t] in exact and (point or "." not in t)]
    assert [t for t in TEXTS if accepted(machine, t)] == good
    prefixes = {t[:i] for t in good for i in range(len(t) + 1)}
    for text in TEXTS[::7]:
        state = run(machine, text)
        assert text not in prefixes or state != DEAD
        if state != DEAD:
            rest = machine.shortest(state)
            assert rest is not None and Fraction(text + rest.decode()) in exact


MANY = {"enum": [*range(0, 21_000, 7), 0.5, -3.25, 10**30]}


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        (MANY, ["7", "7.0", "0.50", "-0", "-3.25", "1" + "0" * 30, "14.000"], ["8", "7.5", "-3", "20999", "14."]),
        (MANY | {"minimum": 10, "multipleOf": 5}, ["35", "70.0"], ["0", "5", "7", "14"]),
        (MANY | {"type": "integer"}, ["7"], ["7.0", "0.5"]),
        (MANY | {"not": {"enum": [*range(0, 21_000, 14)]}}, ["7"], ["0", "14"]),
        ({"type": "number", "not": {"enum": [*range(500)]}}, ["500", "0.5"], ["499", "7.00"]),
        ({"type": "number", "anyOf": [{"enum": [*range(300)]}, {"minimum": 1000}]}, ["299", "1000.5"], ["300"]),
        ({"oneOf": [{"enum": [*range(300)]}, {"enum": [*range(200, 400)]}]}, ["199", "300"], ["200", "299"]),
        ({"type": "array", "items": {"enum": [*range(300)]}, "uniqueItems": True}, ["[1,11]"], ["[1,11,1.0]"]),
    ],
    ids=range(8),
)
def test_enums_of_many_numbers(schema: Any, yes: list[str], no: list[str]) -> None:
    matcher = Matcher(check_schema(schema), Vocabulary([bytes([i]) for i in range(256)], {}))

    def valid(text: str) -> bool:
        state = matcher.advance_bytes(matcher.start, text.encode())
        return state is not None and matcher.is_done(state)

    assert [t for t in yes if not valid(t)] == []
    assert [t for t in no if valid(t)] == []


def test_a_watched_integer_is_written_in_digits() -> None:
    """A negation around the object watches what the number is; that is no reason to offer 6.0 for 6."""
    schema = {"properties": {"c": {"type": "integer"}}, "not": {"properties": {"c": {"const": 5}}, "required": ["c"]}}
    assert [accepts(schema, text) for text in ('{"c":6}', '{"c":6.0}', '{"c":5}')] == [True, False, False]
    fraction = {"required": ["c"], "type": "object", "not": {"properties": {"c": {"type": "integer"}}}}
    assert [accepts(fraction, text) for text in ('{"c":5.5}', '{"c":6.0}', '{"c":6}')] == [True, False, False]
