"""Boolean combinations and lengths of machines against sets of texts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import GrammarRefused
from imp_server.grammar.languages.regex.compile import compile_regex
from imp_server.grammar.machines.combine import alias_of, complement, exactly_one, intersect, union
from imp_server.grammar.machines.lazy_product import lazy_one, lazy_product
from imp_server.grammar.machines.lengths import with_length
from imp_server.grammar.machines.machine import DEAD, UNBOUNDED, Machine

from tests.grammar.test_regex import accepted, patterns

TEXTS = ["".join(t) for n in range(5) for t in itertools.product("abé", repeat=n)]


def regex(pattern: str) -> Machine:
    return compile_regex(pattern.replace(r"(?!\n)\Z", "$"))


def check(machine: Machine, expected: set[str], *, shortest: bool = True) -> None:
    """`machine` accepts exactly `expected` of TEXTS, and none of its states is a dead end.

    `shortest`: it also knows the shortest ways out, not just some.
    """
    assert {t for t in TEXTS if accepted(machine, t)} == expected
    for text in TEXTS[:60]:
        state = machine.start
        for byte in text.encode():
            if state == DEAD:
                break
            state = machine.step(state, byte)
        if state != DEAD:
            rest = machine.shortest(state)
            assert rest is not None
            assert accepted(machine, text.encode() + rest)
            known = [t for t in expected if t.startswith(text)]
            assert not known or not shortest or len(rest) <= min(len(t.encode()) - len(text.encode()) for t in known)


def language(machine: Machine) -> set[str]:
    return {t for t in TEXTS if accepted(machine, t)}


@settings(max_examples=120, deadline=None)
@given(patterns(), patterns(), patterns())
def test_boolean_combinations(one: str, two: str, three: str) -> None:
    a, b, c = regex(one), regex(two), regex(three)
    in_a, in_b, in_c = language(a), language(b), language(c)
    check(intersect([a, b]), in_a & in_b)
    check(intersect([a], [b, c]), in_a - in_b - in_c)
    check(union([a, b, c]), in_a | in_b | in_c)
    check(complement(a), set(TEXTS) - in_a)
    check(exactly_one([a, b, c]), {t for t in TEXTS if (t in in_a) + (t in in_b) + (t in in_c) == 1})
    check(union([intersect([a, b]), complement(c)]), (in_a & in_b) | (set(TEXTS) - in_c))


@settings(max_examples=80, deadline=None)
@given(patterns(), patterns(), patterns())
def test_lazy_combinations(one: str, two: str, three: str) -> None:
    """The same as those that are explored as a whole."""
    a, b, c = regex(one), regex(two), regex(three)
    for whole, lazy in (
        (intersect([a, b]), lazy_product([a, b], [])),
        (intersect([a], [b, c]), lazy_product([a], [b, c])),
        (exactly_one([a, b, c]), lazy_one([a, b, c])),
    ):
        check(lazy, language(whole), shortest=False)


@settings(max_examples=200, deadline=None)
@given(patterns(), st.integers(0, 4), st.integers(0, 4))
def test_lengths(pattern: str, low: int, high: int) -> None:
    machine = regex(pattern)
    texts = language(machine)
    check(with_length(machine, low, high), {t for t in texts if low <= len(t) <= high})
    check(with_length(machine, low, None), {t for t in texts if low <= len(t)})


@settings(max_examples=60, deadline=None)
@given(patterns(), patterns(), st.integers(0, 3), st.integers(0, 4))
def test_lengths_of_products(one: str, two: str, low: int, high: int) -> None:
    machine = intersect([regex(one)], [regex(two)])
    texts = language(machine)
    check(with_length(machine, low, high), {t for t in texts if low <= len(t) <= high})
    check(
        with_length(union([machine, regex(two)]), low, high),
        language(with_length(machine, low, high)) | {t for t in language(regex(two)) if low <= len(t) <= high},
    )


def within(machine: Machine, state: int, n: int) -> list[tuple[bool, bool]]:
    """What n code points of every kind lead to: (live, accepted) of each."""
    found = []
    for text in ["".join(t) for size in range(n + 1) for t in itertools.product("abé", repeat=size)]:
        at = state
        for byte in text.encode():
            at = machine.step(at, byte) if at != DEAD else DEAD
        found.append((at != DEAD, at != DEAD and machine.accepts(at)))
    return found


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(["a{0,7}", "[ab]{2,9}", "(ab?){3,5}", "é", "b*", "(a|é){6}"]), min_size=1, max_size=3),
    st.text("abé", max_size=3), st.integers(1, 3), st.integers(0, 2), st.integers(2, 30),
)  # fmt: skip
def test_aliases_are_alike_as_far_as_asked(parts: list[str], prefix: str, n: int, low: int, high: int) -> None:
    pattern = compile_regex("".join(parts), search=False)
    for machine in (pattern, with_length(pattern, low, high), union([pattern, compile_regex("^x")])):
        state = machine.start
        for byte in prefix.encode():
            state = machine.step(state, byte) if state != DEAD else DEAD
        if state != DEAD:
            assert within(*alias_of(machine, state, n), n) == within(machine, state, n)


def test_far_counts_share_their_states() -> None:
    machine = with_length(compile_regex("^[a-z]{1,900}$"), 0, 800)
    states = [machine.start]
    for byte in b"abcabcabc":
        states.append(machine.step(states[-1], byte))
    assert len({alias_of(machine, s, 32) for s in states[1:]}) == 1


def test_lengths_count_code_points() -> None:
    machine = with_length(complement(complement(compile_regex(""))), 2, 3)
    assert [accepted(machine, t) for t in ("é", "é€", "😀é€", "ab😀é")] == [False, True, True, False]


def test_a_gap_between_lengths_is_no_way_out() -> None:
    machine = with_length(compile_regex("^(a{3}|b{5}|c{9})$"), 4, 8)
    assert [accepted(machine, t) for t in ("aaa", "bbbbb", "c" * 9)] == [False, True, False]
    assert machine.step(machine.start, ord("a")) == DEAD
    assert machine.step(machine.start, ord("c")) == DEAD
    even = with_length(compile_regex("^([0-9a-f]{2})*$"), 5, 5)
    assert even.start == DEAD


def test_long_lengths_cost_nothing() -> None:
    machine = with_length(compile_regex("^[a-z]+( [a-z]+)*$"), 1, 1_000_000)
    state = machine.start
    for byte in b"hello world" * 50:
        state = machine.step(state, byte)
    assert machine.accepts(state)
    free = with_length(compile_regex(""), 5, 1_000_000)
    assert free.room(free.start) == 1_000_000
    assert free.shortest(free.start) == b"aaaaa"
    assert with_length(compile_regex(""), 5, None).room(0) == UNBOUNDED


def test_products_over_the_budget_are_refused() -> None:
    with pytest.raises(GrammarRefused, match="allOf needs more than"):
        intersect([compile_regex("^[a-y]{1,9999}$"), compile_regex("^[b-z]{1,8888}x$")], what="allOf")


def test_empty_languages_have_no_start() -> None:
    assert intersect([compile_regex("^a$"), compile_regex("^b$")]).start == DEAD
    assert complement(compile_regex("")).start == DEAD
    assert union([]).start == DEAD
    assert with_length(compile_regex("^abc$"), 4, None).start == DEAD
