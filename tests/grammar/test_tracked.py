"""Lookarounds as sets of positions in tracks: the same language as Python's `re`, no dead ends, the same masks."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from imp_server.core import GrammarRefused
from imp_server.core.limits import CHECK, QUESTION
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace
from imp_server.grammar.languages.regex.compile import compile_regex
from imp_server.grammar.languages.regex.lookarounds import Bodies
from imp_server.grammar.languages.regex.parser import parse
from imp_server.grammar.machines import tracked
from imp_server.grammar.machines.counted import CountedMachine
from imp_server.grammar.machines.lengths import BoundedLength, with_length
from imp_server.grammar.machines.machine import DEAD, Machine
from imp_server.grammar.machines.memo import forgotten
from imp_server.grammar.machines.tracked import TrackedMachine, tracked_machine
from imp_server.grammar.masks.masks import Masks

from tests.grammar.test_lookarounds import TEXTS
from tests.grammar.test_masks import VOCABULARY, walk_states
from tests.grammar.test_regex import accepted, ours

DEAR: dict[str, type] = {
    "^(?:(?!foo).){1,500}$": BoundedLength,
    "^(?:(?!foo|bar).){1,200}$": BoundedLength,
    "^-(?:(?!foo).){1,500}$": TrackedMachine,
    "^-(?:(?!foo|bar).){1,200}$": TrackedMachine,
    r"\bfoo\b.{1,300}\bbar\b": TrackedMachine,
}
"""How each is read."""


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Tracks for every pattern that they can read, however few its subsets are."""
    monkeypatch.setattr(tracked, "is_small", lambda _: False)
    list(forgotten())
    yield
    list(forgotten())


def tracked_of(pattern: str) -> Machine | None:
    """As a whole match."""
    bodies = Bodies(pattern)
    return tracked_machine(bodies.node(parse(pattern)), bodies.marks, bodies.roots)


def followed(machine: Machine, state: int, word: bytes) -> int:
    for byte in word:
        state = machine.step(state, byte) if state != DEAD else DEAD
    return state


ATOMS = ("a", "b", "-", "é", "[ab]", "[^a]", r"\b", r"\B", "(?s:.)", "ab")
LOOKS = ("(?=", "(?!", "(?<=", "(?<!")


def some_pattern(rng: random.Random, depth: int, *, looks: bool = True) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.15:
        return rng.choice(ATOMS if looks else ATOMS[:6])
    if kind < 0.4 and looks:
        look = rng.choice(LOOKS)
        inner = rng.choice(["a", "b", "ab", "[ab]-", "é"]) if "<" in look else some_pattern(rng, depth - 1, looks=False)
        return f"{look}{inner})"
    if kind < 0.55:
        return f"(?:{some_pattern(rng, depth - 1, looks=looks)}|{some_pattern(rng, depth - 1, looks=looks)})"
    if kind < 0.75:
        count = rng.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}"])
        return f"(?:{some_pattern(rng, depth - 1, looks=looks)}){count}"
    return some_pattern(rng, depth - 1, looks=looks) + some_pattern(rng, depth - 1, looks=looks)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_python_and_has_no_dead_ends(seed: int) -> None:
    rng = random.Random(seed)
    n_read = n_marked = 0
    while n_read < 40:
        pattern = some_pattern(rng, 4)
        machine = tracked_of(ours(pattern))
        if machine is None:  # marks alone in a loop, or no text at all
            continue
        n_read += 1
        n_marked += "(?" in pattern.replace("(?:", "")
        compiled = re.compile(pattern.replace(r"\B", r"(?!\b)"), re.ASCII)
        for text in TEXTS[::7]:
            assert accepted(machine, text) == (compiled.fullmatch(text) is not None), (pattern, text)
        state = machine.start
        for _ in range(6):
            way = machine.shortest(state)
            assert way is not None
            end = followed(machine, state, way)
            assert end != DEAD and machine.accepts(end), (pattern, way)
            alive = [after for byte in range(256) if (after := machine.step(state, byte)) != DEAD]
            if not alive:
                break
            state = rng.choice(alive)
    assert n_marked > 15


LOOKING = [
    "^x?(?:(?!foo).){1,70}$",
    "^(?:a(?!b)|b(?!a)|[^ab]){0,9}$",
    "(?:\\bab\\b|-(?=a)){2}",
    "^(?:(?=[ab]{2})a|b)+$",
    '^(?:x(?<!aax)|a|\\\\|"(?!a))+$',
    "^(?:(?!é|😀).)+$",
]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("pattern", LOOKING)
def test_native_walks_equal_the_plain_ones(pattern: str) -> None:
    rng = random.Random(1)
    shared = GrammarSpace(VOCABULARY)
    plain = Masks(shared.space, shared.stepper, VOCABULARY, use_native=False)
    for schema in ({"pattern": pattern}, {"pattern": pattern, "maxLength": 5}):
        m = shared.matcher(check_schema({"type": "array", "items": {"type": "string", **schema}, "minItems": 1}))
        for state in walk_states(m, rng, 8):
            row = shared.masks.row(state)
            assert np.array_equal(plain.row(state), row)
            ids = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            assert len(ids), "a dead end"


@pytest.mark.usefixtures("always")
def test_lengths_count_what_lookarounds_leave() -> None:
    machine = tracked_of("(?:(?!ab).)*")
    assert machine is not None
    counted = with_length(machine, 2, 3)
    assert isinstance(counted, CountedMachine)
    for text in ("", "a", "ba", "ab", "bba", "bab", "bbbb", "aé", "éé😀", "éab"):
        assert accepted(counted, text) == (2 <= len(text) <= 3 and "ab" not in text), text


@pytest.mark.parametrize("pattern", DEAR)
def test_dear_ones_are_sets_whose_masks_are_cheap(pattern: str) -> None:
    """Before, 50,000 to 70,000 units a mask with 49k ids: 0.2 to 0.3 s with 200k."""
    with CHECK.budget().spent():
        machine = compile_regex(pattern)
        assert type(machine) is DEAR[pattern]
    shared = GrammarSpace(VOCABULARY)
    budget = QUESTION.budget()
    m = shared.matcher(check_schema({"type": "string", "pattern": pattern}))
    with budget.spent():
        for state in walk_states(m, random.Random(2), 10):
            shared.masks.row(state)
    assert QUESTION.n_units - budget.n_units < 3000


def test_what_tracks_cannot_read_is_read_otherwise() -> None:
    assert tracked_of("(?=a(?!b)).*") is None and accepted(compile_regex("^(?:(?=a(?!b)).)+$"), "aaa")


def test_what_has_no_bound_is_refused_with_its_place() -> None:
    """It was served with a search behind each state: one such mask took more than a question may."""
    pattern = "^(?:x(?:(?:(?=.*w.{3}b)w?.)*(?:(?=.*z.{3}j)z?.)*|y)+)$"
    with pytest.raises(GrammarRefused, match="lookarounds take too many states") as refused:
        check_schema({"properties": {"a": {"type": "string", "pattern": pattern}}})
    assert refused.value.pointer == "/properties/a/pattern"
