"""Lookarounds and word boundaries anywhere, against Python's `re`, and against the simple places' own construction."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from inspect import unwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption
from imp_server.core import GrammarRefused
from imp_server.core.turns import OutOfTurn, n_kept, turn
from imp_server.grammar.languages.regex.compile import compile_regex
from imp_server.grammar.languages.regex.lookarounds import looking_machine
from imp_server.grammar.machines.combine import exactly_one
from imp_server.grammar.machines.machine import DEAD, Machine
from imp_server.grammar.machines.memo import alone

from tests.grammar.judging import matcher, reads
from tests.grammar.test_regex import accepted, ours

TEXTS = ["".join(t) for n in range(5) for t in itertools.product("ab-é", repeat=n)]


def patterns() -> st.SearchStrategy[str]:
    """Regexes that mean the same in Python under re.ASCII."""
    atoms = st.sampled_from(["a", "b", "-", "é", "[ab]", "[^a]", "(?:)", r"\b", r"\B", "^", r"(?!\n)\Z", "(?s:.)"])

    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        groups = inner.map(lambda p: f"(?:{p})")
        looks = st.tuples(st.sampled_from(["(?=", "(?!", "(?<=", "(?<!"]), inner).map(lambda t: f"{t[0]}{t[1]})")
        return st.one_of(
            looks,
            looks,
            st.tuples(groups, st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])).map("".join),
            st.lists(st.one_of(groups, looks), min_size=2, max_size=4).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(?:" + "|".join(parts) + ")"),
        )

    return st.recursive(atoms, extend, max_leaves=8)


def machine_of(pattern: str, search: bool) -> Machine:
    """Refused are lookbehinds that look ahead, and products above the budget alone."""
    try:
        return looking_machine(pattern, search)
    except GrammarRefused as refusal:
        if "looks ahead" not in refusal.message and "steps to combine" not in refusal.message:
            raise
        raise UnsatisfiedAssumption from None


@settings(max_examples=250, deadline=None)
@given(patterns(), st.lists(st.text("ab-é😀", max_size=9), max_size=20), st.booleans())
def test_agrees_with_python(pattern: str, texts: list[str], search: bool) -> None:
    try:
        # \B isn't true of the empty text in Python
        compiled = re.compile(pattern.replace(r"\B", r"(?!\b)"), re.ASCII)
    except re.error:  # a lookbehind of several lengths
        raise UnsatisfiedAssumption from None
    machine = machine_of(ours(pattern), search)
    find = compiled.search if search else compiled.fullmatch
    for text in [*texts, *TEXTS]:
        assert accepted(machine, text) == (find(text) is not None), (pattern, text)


SIMPLE = [
    "^(?!foo)[a-z]+$",
    r"^(?=.*\d)(?=.*[a-z]).{4,8}$",
    r"^(?!.*\.\.)[a-z.]+(?<!\.)$",
    "^(?!a|b$)[ab]*$|^c(?<=c|dc)$",
    "^(?=a)|b(?<!ab)$",
]


@pytest.mark.parametrize("pattern", SIMPLE)
@pytest.mark.parametrize("search", [True, False])
def test_equals_the_intersection_where_that_will_do(pattern: str, search: bool) -> None:
    """compile_regex makes these without marks; no text is in one of both alone."""
    plain, marked = compile_regex(pattern, search=search), looking_machine(pattern, search)
    assert exactly_one([plain, marked]).start == DEAD
    assert plain.start != DEAD


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"\bfoo\b", ["foo", "a foo.", "éfoo"], ["food", "_foo", ""]),
        (r"^\B-\B$", ["-"], ["a", ""]),
        (r"^((?!message|severity).)*$", ["", "mess age", "é"], ["a message", "severity"]),
        (r"^P(?!$)(\d+Y)?(T(?=\d)(\d+H)?(\d+M)?)?$", ["P1Y", "PT1H", "P1YT1M"], ["P", "PT", "P1YT"]),
        (r"^@([\da-z](?:(?!.*--)[\da-z-]*[\da-z])?)/[a-z]+$", ["@a-b/c", "@a/b"], ["@a--b/c", "@-a/b"]),
        ("(?<!a)b", ["b", "cb", "ab b"], ["ab", "a"]),
        ("a(?=b)", ["ab", "aab"], ["a", "ac", "b"]),
        ("a(?!b(?<=xab))c?$", ["a", "abac", "ba"], ["ab", "xb"]),
        ("^(?:a(?=(?:aa)*b)|b)*$", ["ab", "aab"[1:], "b", "abab"], ["aab", "a"]),
        ("(?<=a(?<!ba))c", ["ac", "cac"], ["bac", "c"]),
        ("x(?:(?=a)|(?=b)){2}.", ["xa", "xb"], ["xc", "x"]),
        ("(?=^)(?=$)a|b", ["b"], ["a"]),
        ("^(?!ab)x?(?=a|b)..", ["ba", "xab"], ["ab", "xc"]),
        (r"^(?i:\bA)b", ["ab", "Ab"], ["aB"]),
    ],
)
def test_meaning(pattern: str, yes: list[str], no: list[str]) -> None:
    machine = compile_regex(pattern)
    assert [t for t in yes if not accepted(machine, t)] == []
    assert [t for t in no if accepted(machine, t)] == []


def test_text_is_never_read_as_a_mark() -> None:
    machine = compile_regex(r"a\b\b.*(?!b)")
    for stray in (b"a\x80", b"\x80", b"a\x81", b"a\xc3", b"a\xc3\xa9\x80", b"a\xed\xa0\x80"):
        assert not accepted(machine, stray)
    assert accepted(machine, "aé")


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("(?<=a(?=b))b", "looks ahead"),
        (r"(?<=a\b)b", "looks ahead"),
        ("(?<=a$)", "looks ahead"),
        ("".join(f"(?={chr(0x4E00 + i)})|" for i in range(65)) + "a", "more than 64"),
        ("^(?:(?!(a|aa){5000}b)a)*$", "ways at once"),
    ],
)
def test_refusals(pattern: str, named: str) -> None:
    with pytest.raises(GrammarRefused, match=named):
        compile_regex(pattern)


HOSTILE = [
    "^(?:(?=.*a.{6}b)c?.)*$",
    "^" + "".join(f"(?:(?!.*{c}.{{5}}d)x?)" for c in "abcdefgh") + "[a-h]*$",
    "^(?:(?!foo).){1,5000}$",
    "(?<=a.{14})(?<!b.{14})c",
    r"^(?:\b\w{1,20}\b ?){1,30}$",
]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_hostile_patterns_answer_quickly(pattern: str) -> None:
    began = time.process_time()
    try:
        machine = unwrap(compile_regex)(pattern)
    except GrammarRefused:
        machine = None
    assert time.process_time() - began < 8
    state = machine.start if machine else DEAD
    for byte in b"aaaaabab":
        state = machine.step(state, byte) if machine and state != DEAD else DEAD
    assert time.process_time() - began < 12


def test_it_is_made_in_turns() -> None:
    """Each turn goes on where the last one ended, so no turn has to be long enough for everything."""
    pattern = "^(?:(?=.*a.{4}b)c?[a-d])*$"
    whole = unwrap(compile_regex)(pattern)
    n_turns, n_units, machine = 0, 2000, None
    with alone():
        while machine is None:
            n_turns += 1
            before = n_kept()
            try:
                with turn(n_units):
                    machine = unwrap(compile_regex)(pattern)
            except OutOfTurn:
                n_units *= 1 if n_kept() > before else 2
    assert n_turns > 4
    assert n_units < 20_000
    assert exactly_one([whole, machine]).start == DEAD


@pytest.mark.parametrize("pattern", [r"^(?:(?!foo).){1,500}$", r"\b[a-c]{3}\b-(?!-)", "^(?:(?=a).|b(?!b))+$"])
def test_masks_and_ways_out(pattern: str) -> None:
    """Whatever is walked, the way out satisfies the pattern; dead ends aren't offered."""
    m = matcher({"type": "string", "pattern": pattern})
    rng = random.Random(pattern)
    compiled = re.compile(pattern, re.ASCII)
    for _ in range(15):
        state, out = m.start, b""
        for _ in range(rng.randrange(14)):
            allowed = [i for i in (*b'"abcfo -', 0xC3, 0xA9) if m.advance_bytes(state, bytes([i])) is not None]
            assert allowed or m.is_done(state)
            if not allowed:
                break
            byte = bytes([rng.choice(allowed)])
            after = m.advance_bytes(state, byte)
            assert after is not None
            state, out = after, out + byte
        out += m.way_out(state)
        assert reads(m, out)
        assert compiled.search(json.loads(out))
