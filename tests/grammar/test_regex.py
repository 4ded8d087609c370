"""Regexes against Python's `re`, where both mean the same, and the facts of ECMA-262 where they don't."""

from __future__ import annotations

import itertools
import re
import time
from inspect import unwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import GrammarRefused
from imp_server.grammar.languages.regex.compile import compile_regex
from imp_server.grammar.machines.codepoints import utf8_size
from imp_server.grammar.machines.machine import DEAD, Machine

ALPHABET = "ab1é€😀\n"


def run(machine: Machine, text: str | bytes) -> int:
    state = machine.start
    for byte in text.encode() if isinstance(text, str) else text:
        if state == DEAD:
            return DEAD
        state = machine.step(state, byte)
    return state


def accepted(machine: Machine, text: str | bytes) -> bool:
    state = run(machine, text)
    return state != DEAD and machine.accepts(state)


def patterns() -> st.SearchStrategy[str]:
    """Regexes whose meaning is the same in Python and here; `$` is written so that no newline may follow."""
    atoms = st.sampled_from(
        ["a", "b", "1", "é", "€", "😀", "[ab]", "[^a]", "[a-cé-€]", r"[^\x00-é]", r"\u20ac", r"\x61", "(?:)", "[^ab\n]"]
    )

    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        groups = inner.map(lambda p: f"(?:{p})")
        bounds = st.tuples(st.integers(0, 3), st.integers(0, 3)).map(lambda t: f"{{{min(t)},{max(t)}}}")
        quantifiers = st.one_of(st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,}", "{0}"]), bounds)
        return st.one_of(
            st.tuples(groups, quantifiers).map("".join),
            st.lists(groups, min_size=2, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(?:" + "|".join(parts) + ")"),
            inner.map(lambda p: f"^(?:{p})"),
            inner.map(lambda p: rf"(?:{p})(?!\n)\Z"),
        )

    return st.recursive(atoms, extend, max_leaves=6)


def in_python(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def ours(pattern: str) -> str:
    return pattern.replace(r"(?!\n)\Z", "$")


TEXTS = ["".join(t) for n in range(4) for t in itertools.product("ab1é", repeat=n)]


@settings(max_examples=250, deadline=None)
@given(patterns(), st.lists(st.text(ALPHABET, max_size=8), max_size=20), st.booleans())
def test_agrees_with_python(pattern: str, texts: list[str], search: bool) -> None:
    machine = compile_regex(ours(pattern), search=search)
    oracle = in_python(pattern)
    for text in [*texts, *TEXTS]:
        expected = bool(oracle.search(text) if search else oracle.fullmatch(text))
        assert accepted(machine, text) == expected, (pattern, text)


@settings(max_examples=250, deadline=None)
@given(patterns(), st.text(ALPHABET, max_size=6))
def test_every_state_can_end(pattern: str, text: str) -> None:
    """Whatever isn't dead has a shortest continuation that is accepted, in the middle of characters, too."""
    machine = compile_regex(ours(pattern))
    oracle = in_python(pattern)
    state = machine.start
    data = text.encode()
    for at in range(len(data) + 1):
        if state == DEAD:
            assert not oracle.search(text)
            return
        rest = machine.shortest(state)
        assert machine.live(state) and rest is not None
        end = state
        for byte in rest:
            end = machine.step(end, byte)
        assert machine.accepts(end)
        assert oracle.search((data[:at] + rest).decode()), (pattern, data[:at], rest)
        if at < len(data):
            state = machine.step(state, data[at])


@settings(max_examples=150, deadline=None)
@given(patterns(), st.text(ALPHABET, max_size=5))
def test_shortest_and_spread_are_right(pattern: str, prefix: str) -> None:
    machine = compile_regex(ours(pattern))
    state = run(machine, prefix)
    if state == DEAD:
        return
    found = [t for t in TEXTS if accepted(machine, prefix + t)]
    shortest = machine.shortest(state)
    assert shortest is not None
    spread = machine.spread(state)  # type: ignore[attr-defined]
    lengths = sorted({len(t) for t in found})
    assert all(spread.low <= n <= spread.high for n in lengths)
    if lengths:
        assert len(shortest) <= min(len(t.encode()) for t in found)
        assert spread.low == 0 or not accepted(machine, prefix)
    assert spread.low <= len(shortest.decode(errors="replace")) + 1


@settings(max_examples=150, deadline=None)
@given(patterns(), st.text(ALPHABET, max_size=4))
def test_bytes_of_a_class_behave_alike(pattern: str, prefix: str) -> None:
    machine = compile_regex(ours(pattern))
    fresh = unwrap(compile_regex)(ours(pattern))
    state = run(machine, prefix)
    if state == DEAD:
        return
    for byte in range(256):
        # the fresh machine computes each entry from the byte itself, never from another one of its class
        fresh._rows = [[-2] * len(row) for row in fresh._rows] if hasattr(fresh, "_rows") else []
        other = run(fresh, prefix.encode() + bytes([byte]))
        ours_ = machine.step(state, byte)
        assert (other == DEAD) == (ours_ == DEAD)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("cat", ["cat", "a cat!", "concatenate"], ["ca", "", "c at"]),
        ("^cat|dog$", ["cats", "hotdog"], ["acat", "dogs"]),
        ("(^a|b)+c$|d", ["ac", "abc", "xbc", "d", "ede"], ["xac", "acx"]),
        ("(a$|b){2}", ["bb", "ba", "xbbx"], ["ab", "bax"]),
        ("^$", [""], ["a", "\n"]),
        ("a$b?", ["a", "ba"], ["ab"]),
        ("(^)*a", ["a", "ba"], [""]),
        (r"^\d+$", ["0", "12"], ["", "\u0663", "1a"]),
        (r"^\S+$", ["[x]", "a"], ["a b", " ", "a\ufeff"]),
        (r"^\w+$", ["aZ_9"], ["é", "-"]),
        (r"^.$", ["a", "é", "😀"], ["\n", "\r", "\u2028", "ab"]),
        (r"^[^]$", ["\n", "a"], ["", "ab"]),
        (r"^[\w-]+$", ["a-b"], ["a b"]),
        (r"^[a-\d]+$", ["a-1"], ["b"]),
        (r"^\p{Lu}\p{Letter}+$", ["Ab", "Äß"], ["ab", "A1"]),
        (r"^\P{L}$", ["1"], ["a"]),
        (r"^[\p{Nd}x]+$", ["\u0663x"], ["y"]),
        (r"^\cJ\x41\u0042\u{1F600}\ud83d\ude00$", ["\nAB😀😀"], ["\nAB😀"]),
        (r"^\/a\-b\.$", ["/a-b."], ["/a-bx"]),
        ("^(?<year>[0-9]{4})-(?P<m>[0-9]{2})$", ["2024-01"], ["24-01"]),
        ("^(?i)straße|x$", ["STRAßE", "X", "straße"], ["STRASSE"]),
        ("(?i:k)", ["K"], ["\u212a", "x"]),
        ("^a{,2}$", ["", "a", "aa"], ["aaa"]),
        ("^a{x}{2$", ["a{x}{2"], ["a"]),
        ("^(?!foo)[a-z]+$", ["bar", "fo", "fooo"[1:]], ["foo", "foobar", ""]),
        (r"^(?=.*\d)(?=.*[a-z]).{4,8}$", ["abc1", "1234567a"], ["abcd", "1234", "a1", "123456789a"]),
        (r"^(?=.*[A-Z])(?=.*[a-z])(?=.*\d)(?=.*[!@#$%^&*]).{8,64}$", ["Aa1!bbbb"], ["Aa1bbbbb", "Aa1!bbb", "a" * 65]),
        (r"^(?!.*\.\.)[a-z.]+(?<!\.)$", ["a.b", "a"], ["a..b", "a.", ""]),
        ("^[a-z]{2,100000}$", ["ab", "a" * 1000], ["a", "A" * 3]),
        (r"^\A[a-z]+\z$", ["a"], ["a\n"]),
    ],
)
def test_meaning(pattern: str, yes: list[str], no: list[str]) -> None:
    machine = compile_regex(pattern)
    assert [t for t in yes if not accepted(machine, t)] == []
    assert [t for t in no if accepted(machine, t)] == []


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        (r"(a)\1", "back-reference"),
        (r"(?<n>a)\k<n>", "back-reference"),
        ("(?P<n>a)(?P=n)", "back-reference"),
        ("(?<=a(?=c))b", "looks ahead"),
        ("(?>a)", "group (?>"),
        ("a++", "possessive"),
        ("(a", "unclosed group"),
        ("a)", "unmatched )"),
        ("[a", "unclosed class"),
        ("*a", "nothing before *"),
        ("a**", "quantifier after"),
        ("[b-a]", "out of order"),
        ("a{3,2}", "minimum exceeds"),
        ("[[:alpha:]]", "POSIX"),
        (r"\p{Greek}", r"\p{Greek}"),
        (r"\a", r"\a"),
        ("\\", "backslash"),
        (r"\u12", "4 hexadecimal"),
        ("(" * 200 + ")" * 200, "nested deeper"),
        ("a" * 40_000, "characters"),
        ("^(a|aa){5000}$", "ways at once"),
        ("(?x)a", "group (?x"),
    ],
)
def test_refusals_name_what_and_where(pattern: str, named: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        compile_regex(pattern)
    assert named in caught.value.message
    assert "character" in caught.value.message or "ways" in caught.value.message


@pytest.mark.parametrize(
    ("pattern", "at"), [("ab|*c", 3), ("(a", 0), ("a**", 2), (r"a\01", 1), (r"ab\k<n>", 2), ("ab)", 2)]
)
def test_a_refusal_points_at_the_character(pattern: str, at: int) -> None:
    with pytest.raises(GrammarRefused) as caught:
        compile_regex(pattern)
    assert f"at character {at}" in caught.value.message, caught.value.message


def test_code_points_take_as_many_bytes_as_utf8_has() -> None:
    for edge in (0x7F, 0x7FF, 0xFFFF, 0x10FFFF):
        for code_point in (edge - 1, edge, min(edge + 1, 0x10FFFF)):
            assert utf8_size(code_point) == len(chr(code_point).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    "pattern",
    [
        "(a|a)*b",
        "(a*)*b",
        "((a{0,100}){0,100}){0,100}",
        "^(a{1000}){1000}$",
        "^[a-z]{0,1000000}$",
        "^(([a-z]{1,63}-?){1,10}\\.){1,10}$",
        "(x+x+)+y",
        "^(.*a){20}.*$",
        "^.*[ab].{15}c$",
        "a?" * 300 + "a" * 300,
        "a?" * 1000,
        "(" * 20 + "a?" + "){0,9}" * 20,
        "|".join(f"word{i}" for i in range(2000)),
        "^(" + "|".join("abcdefgh"[:i] for i in range(1, 8)) + ")*$",
    ],
)
def test_hostile_patterns_answer_quickly(pattern: str) -> None:
    start = time.process_time()
    machine = unwrap(compile_regex)(pattern)
    state = machine.start
    for byte in b"aaaaabab" * 30:
        following = machine.step(state, byte)
        state = following if following != DEAD else machine.start
    assert time.process_time() - start < 2.0


def test_counts_are_never_unrolled() -> None:
    machine = unwrap(compile_regex)("^[a-z]{0,1000000}$")
    run(machine, "abcdef")
    assert machine.n_states < 30
