"""Sets of positions against subsets made states: the same language, the same masks, byte by byte and bit by bit."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import numpy as np
import pytest
from imp_server.core import GrammarRefused
from imp_server.grammar.check import check_regex, check_schema
from imp_server.grammar.engine import GrammarSpace, Matcher, State
from imp_server.grammar.frames.texts import Text
from imp_server.grammar.frames.verdicts import Single
from imp_server.grammar.languages.regex.anchors import Splitter
from imp_server.grammar.languages.regex.compile import compile_regex
from imp_server.grammar.languages.regex.parser import parse
from imp_server.grammar.machines import containing, position_machine
from imp_server.grammar.machines import joint as joint_module
from imp_server.grammar.machines.combine import anything, universal
from imp_server.grammar.machines.containing import containing_machine
from imp_server.grammar.machines.counted import CountedMachine
from imp_server.grammar.machines.glushkov import MAX_COST, positions_of
from imp_server.grammar.machines.joint import joint_machine
from imp_server.grammar.machines.lazy_product import lazy_one, searched_product
from imp_server.grammar.machines.lengths import with_length
from imp_server.grammar.machines.machine import DEAD, Machine
from imp_server.grammar.machines.memo import forgotten
from imp_server.grammar.machines.nodes import Node, Nodes
from imp_server.grammar.machines.position_machine import PositionMachine
from imp_server.grammar.machines.terms import TermMachine
from imp_server.grammar.masks.masks import Masks
from imp_server.grammar.masks.native_walk import available
from jsonschema.validators import Draft202012Validator

from tests.grammar.test_masks import VOCABULARY, allowed, walk_states

ATOMS = ("a", "b", "[ab]", ".", "é", "[^a]", "\\w", "[à-ü]", "😀", "(a|ab)", "ab?", "c", "\\s", "[\\u0800-\\uffff]")
WORDS = "|".join(f"x{i}.*y{i}" for i in range(60))
DEAR = [".*a.{300}", "(.*[ab].{30}c)+", "(.*[ab].{300}c)+", "(.*a){20}.{300}", WORDS]


def some_regex(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return rng.choice(ATOMS)
    if kind < 0.6:
        return some_regex(rng, depth - 1) + some_regex(rng, depth - 1)
    if kind < 0.75:
        return f"({some_regex(rng, depth - 1)}|{some_regex(rng, depth - 1)})"
    low = rng.randrange(4)
    high = low + rng.randrange(4)
    count = rng.choice(["*", "+", "?", f"{{{low},{high}}}", f"{{{high}}}", f"{{{low},}}"])
    return f"({some_regex(rng, depth - 1)}){count}"


def node_of(pattern: str) -> tuple[Nodes, Node]:
    nodes = Nodes()
    return nodes, nodes.either(Splitter(nodes).split(parse(pattern)))


def both(pattern: str) -> tuple[TermMachine, PositionMachine]:
    nodes, node = node_of(pattern)
    positions = positions_of(node)
    assert positions is not None
    return TermMachine(nodes, node), PositionMachine([node], positions)


def read(machine: Any, state: int, word: bytes) -> int:
    for byte in word:
        state = machine.step(state, byte) if state != DEAD else DEAD
    return state


@pytest.mark.parametrize("seed", range(3))
def test_sets_of_positions_accept_what_subsets_accept(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        pattern = some_regex(rng, rng.randrange(1, 6))
        terms, sets = both(pattern)
        here = terms.start, sets.start
        for _ in range(10):
            assert terms.accepts(here[0]) == sets.accepts(here[1]), pattern
            spreads = terms.spread(here[0]), sets.spread(here[1])
            assert spreads[0][:2] == spreads[1][:2], pattern
            words = terms.shortest(here[0]), sets.shortest(here[1])
            assert words[0] is not None and words[1] is not None and len(words[0]) == len(words[1]), pattern
            assert terms.accepts(read(terms, here[0], words[1])) and sets.accepts(read(sets, here[1], words[0])), (
                pattern
            )
            after = [(terms.step(here[0], byte), sets.step(here[1], byte)) for byte in range(256)]
            assert all((a == DEAD) == (b == DEAD) for a, b in after), pattern
            alive = [pair for pair in after if pair[0] != DEAD]
            if not alive:
                break
            here = rng.choice(alive)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets of positions for every pattern, however few its subsets are."""
    monkeypatch.setattr(position_machine, "is_small", lambda _: False)
    monkeypatch.setattr(joint_module, "is_small", lambda _: False)
    monkeypatch.setattr(position_machine, "_is_ambiguous", lambda _: True)
    list(forgotten())
    yield
    list(forgotten())


def around(pattern: str, rng: random.Random) -> Any:
    text: Any = {"type": "string", "pattern": pattern if rng.random() < 0.3 else f"^(?:{pattern})$"}
    if rng.random() < 0.4:
        low = rng.randrange(6)
        text |= {"minLength": low, "maxLength": low + rng.randrange(9)}
    ways: list[Any] = [
        text,
        {"type": "array", "items": text},
        {"type": "object", "properties": {"a": text, "ab": text}, "additionalProperties": False},
        {"anyOf": [text, {"type": "integer"}]},
        {"type": "array", "items": text, "uniqueItems": True},
    ]
    return rng.choice(ways)


def same_masks(shared: GrammarSpace, plain: Masks, m: Matcher, rng: random.Random, n_tokens: int = 8) -> None:
    for state in walk_states(m, rng, n_tokens):
        assert np.array_equal(plain.row(state), shared.masks.row(state))


@pytest.mark.skipif(not available(), reason="the native library 'grammar' isn't built")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("always")
def test_masks_over_sets_equal_those_over_states(seed: int) -> None:
    rng = random.Random(seed)
    shared = GrammarSpace(VOCABULARY)
    plain = Masks(shared.space, shared.stepper, VOCABULARY, use_native=False)
    for _ in range(12):
        pattern = some_regex(rng, rng.randrange(1, 5))
        try:
            plan = check_regex(pattern) if rng.random() < 0.3 else check_schema(around(pattern, rng))
        except GrammarRefused:  # no text is as long
            continue
        same_masks(shared, plain, shared.matcher(plan), rng)


def advanced(m: Matcher, state: State) -> set[int]:
    return {i for i in range(VOCABULARY.size) if m.advance(state, i) is not None}


@pytest.mark.parametrize("pattern", DEAR)
def test_dear_patterns_are_served(pattern: str) -> None:
    """Their masks are those of the exact step; in the middle of escapes and characters, too."""
    rng = random.Random(5)
    beginnings = [b"", b"\\u", b"\\ud83", b"\\ud83d\\ude", b"\xf0\x9f", b"aab\\n", b"a" * 20]
    texts = GrammarSpace(VOCABULARY).matcher(check_schema({"type": "string", "pattern": f"^(?:{pattern})$"}))
    bare = GrammarSpace(VOCABULARY).matcher(check_regex(pattern))
    for m, quote in ((texts, b'"'), (bare, b"")):
        for beginning in beginnings:
            state = m.advance_bytes(m.start, quote + (beginning if quote else beginning.replace(b"\\", b"a")))
            if state is not None:
                assert allowed(m, state) == advanced(m, state)
        for state in walk_states(m, rng, 6):
            assert allowed(m, state) == advanced(m, state)
        way = m.way_out(m.start)
        end = m.advance_bytes(m.start, way)
        assert end is not None and m.is_done(end)


# --- lengths ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_counted_sets_are_counted_states(seed: int) -> None:
    rng = random.Random(seed)
    n_compared = 0
    for _ in range(80):
        terms, sets = both(some_regex(rng, rng.randrange(1, 5)))
        low = rng.choice([0, 0, 2, 5])
        high = rng.choice([None, low + rng.randrange(12)])
        try:
            twin = with_length(terms, low, high)
        except GrammarRefused:
            continue
        if twin is terms:
            continue
        counted = with_length(sets, low, high)
        assert isinstance(counted, CountedMachine)
        n_compared += twin.start != DEAD
        if twin.start == DEAD:
            assert counted.start == DEAD
        else:
            same_states(twin, counted, rng)
    assert n_compared > 10


LONG: list[Any] = [
    {"type": "string", "pattern": "^(.*[ab].{30}c)+$", "maxLength": 80},
    {"type": "string", "pattern": "^(.*[ab].{30}c)+$", "minLength": 50, "maxLength": 60},
    {"type": "string", "pattern": "a.{30}b", "minLength": 400},
]


@pytest.mark.parametrize("schema", LONG, ids=range(len(LONG)))
def test_a_dear_pattern_with_a_length_is_served(schema: Any) -> None:
    shared = GrammarSpace(VOCABULARY)
    plain = Masks(shared.space, shared.stepper, VOCABULARY, use_native=False)
    m, rng = shared.matcher(check_schema(schema)), random.Random(3)
    text = m.advance_bytes(m.start, b'"')
    assert text is not None
    local = m.local(text.cell.top)
    assert isinstance(local, Text) and isinstance(local.verdicts, Single)
    assert isinstance(local.verdicts.machine, CountedMachine)
    state = text
    for byte in "b\n cab é".encode() + b"lorem ipsum " * 5:
        assert np.array_equal(plain.row(state), shared.masks.row(state))
        state = m.advance_bytes(state, bytes([byte])) or state
    assert allowed(m, state) == advanced(m, state)
    for state in walk_states(m, rng, 10):
        assert np.array_equal(plain.row(state), shared.masks.row(state))
        after = m.advance_bytes(state, m.way_out(state))
        assert after is not None and m.is_done(after)


# --- side by side -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("always")
def test_patterns_side_by_side_are_their_product(seed: int) -> None:
    rng = random.Random(seed)
    n_compared = 0
    for _ in range(60):
        parts = [compile_regex(some_regex(rng, rng.randrange(3))) for _ in range(rng.randrange(1, 4))]
        parts = [part for part in parts if not universal(part, part.start)]
        one, n_wanted = rng.random() < 0.4, rng.randrange(len(parts) + 1)
        joint = joint_machine(parts, [], one=True) if one else joint_machine(parts[:n_wanted], parts[n_wanted:])
        if joint is None or not parts:
            continue
        wanted = parts[:n_wanted] or [anything()]
        try:
            twin = lazy_one(parts) if one else searched_product(wanted, parts[n_wanted:])
        except GrammarRefused:
            continue
        if joint.word is None:
            word = twin.shortest(twin.start)
            if word is None:
                assert twin.start == DEAD
                continue
            joint.prove(word)
        n_compared += 1
        same_states(twin, joint, rng)
    assert n_compared > 10


def same_states(twin: Machine, joint: Machine, rng: random.Random) -> None:
    here = twin.start, joint.start
    for _ in range(12):
        assert twin.accepts(here[0]) == joint.accepts(here[1])
        word = joint.shortest(here[1])
        assert (
            word is not None and twin.accepts(read(twin, here[0], word)) and joint.accepts(read(joint, here[1], word))
        )
        after = [(twin.step(here[0], byte), joint.step(here[1], byte)) for byte in range(256)]
        assert all((a == DEAD) == (b == DEAD) for a, b in after)
        alive = [pair for pair in after if pair[0] != DEAD]
        if not alive:
            break
        here = rng.choice(alive)


@pytest.mark.parametrize("seed", range(3))
def test_texts_that_hold_some_of_each_kind_are_their_product(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containing, "FEW_STATES", 0)
    rng = random.Random(seed)
    kinds = ["[ab]", "[b-f]", "é", "[0-9]", "[à-ü]", "😀", "[^a-y]", "x"]
    n_compared = 0
    for _ in range(40):
        low = rng.randrange(6)
        length = rng.choice(["[a-zé0-9]", ".", "[^q]"]) + f"{{{low},{low + rng.randrange(9)}}}"
        wanted = [compile_regex(length, search=False), *map(compile_regex, rng.sample(kinds, rng.randrange(1, 5)))]
        without = [compile_regex(kind) for kind in rng.sample(kinds, rng.randrange(3))]
        sets = containing_machine(wanted, without)
        try:
            twin = searched_product(wanted, without)
        except GrammarRefused:
            continue
        if sets is None:
            continue
        n_compared += twin.start != DEAD
        if twin.start == DEAD:
            assert sets.start == DEAD
        else:
            same_states(twin, sets, rng)
    assert n_compared > 5


JOINT: dict[str, Any] = {
    "password": {
        "type": "string",
        "pattern": "^(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])(?=.*[!@#é])(?!.*[\\s\\\\]).{8,64}$",
    },
    "held and counted": {
        "type": "string",
        "allOf": [{"pattern": "[a-f]"}, {"pattern": "[c-h]"}, {"not": {"pattern": "x"}}],
        "maxLength": 30,
    },
    "one of eight": {"oneOf": [{"type": "string", "pattern": f"{chr(97 + i)}..{chr(98 + i)}"} for i in range(8)]},
    "all of nine": {"type": "string", "allOf": [{"pattern": f"{chr(97 + i)}.{{{i}}}{chr(98 + i)}"} for i in range(9)]},
    "all but two": {
        "type": "string",
        "allOf": [{"pattern": "a.{20}b"}, {"not": {"pattern": "b.{9}é"}}, {"not": {"pattern": "xy"}}],
    },
    "not one": {"type": "string", "not": {"pattern": "(.*[ab].{30}c)+"}},
    "any of two": {
        "anyOf": [{"type": "string", "pattern": "^(.*[ab].{30}c)+$"}, {"type": "string", "pattern": "^.*a.{99}$"}]
    },
}


@pytest.mark.parametrize("name", JOINT)
def test_what_hangs_on_several_patterns_is_served(name: str) -> None:
    shared = GrammarSpace(VOCABULARY)
    plain = Masks(shared.space, shared.stepper, VOCABULARY, use_native=False)
    m, rng = shared.matcher(check_schema({"type": "array", "items": JOINT[name]})), random.Random(3)
    text = m.advance_bytes(m.start, b'["')
    assert text is not None
    local = m.local(text.cell.top)
    assert isinstance(local, Text) and local.verdicts.is_sparse
    same_masks(shared, plain, m, rng, 20)
    for state in walk_states(m, rng, 6):
        assert allowed(m, state) == advanced(m, state)
    way = m.way_out(text)
    assert Draft202012Validator(JOINT[name]).is_valid(json.loads((b'["' + way).decode())[0])


def test_which_patterns_are_sets() -> None:
    """Few subsets are an automaton of their own; characters that are read in one way alone make no more states."""
    for pattern in DEAR:
        assert isinstance(compile_regex(pattern, search=False), PositionMachine), pattern
    for pattern in ("a+b", ".*foo", r"^[a-z]{3,400}@[a-z]+\.com$", "(foo|bar)*", ".{1,2000}", "^.{1,2000}$"):
        assert not isinstance(compile_regex(pattern), PositionMachine), pattern


@pytest.mark.parametrize("pattern", [*DEAR, "((a|ab){2,9}b?){2,9}", "(a?b?c?){30}", "([a-c]{2,30}x|[b-d]{3,40}y){2,9}"])
def test_what_a_step_costs_is_known_before(pattern: str) -> None:
    positions = positions_of(node_of(pattern)[1])
    assert positions is not None and positions.cost <= MAX_COST


def test_what_costs_too_much_is_no_set() -> None:
    assert positions_of(node_of("(a{1000}){1000}")[1]) is None
    assert positions_of(node_of("([ab]?[bc]?[ac]?){600}")[1]) is None


def test_an_answer_of_thousands_of_bytes_takes_little_memory() -> None:
    """A state for each byte, whatever else could be read there."""
    shared = GrammarSpace(VOCABULARY)
    m = shared.matcher(check_schema({"type": "string", "pattern": "^(.*[ab].{300}c)+$"}))
    state = m.advance_bytes(m.start, b'"')
    assert state is not None
    before, began_s = shared.n_bytes, time.thread_time()
    for byte in b"lorem ipsum abc " * 60:
        state = m.advance_bytes(state, bytes([byte]))
        assert state is not None
    assert shared.n_bytes - before < 960 * 5000
    assert time.thread_time() - began_s < 2
