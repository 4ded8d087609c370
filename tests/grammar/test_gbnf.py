"""GBNF against a slow recogniser that tries every derivation, and the facts of llama.cpp's syntax."""

from __future__ import annotations

import itertools
import json
import time
from inspect import unwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from imp_server.grammar.languages.choices import choices_machine
from imp_server.grammar.languages.gbnf import compile_gbnf
from imp_server.grammar.machines.machine import DEAD

from tests.grammar.test_regex import accepted, run

JSON = r"""
# the grammar that llama.cpp ships for JSON
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""


def test_json_grammar() -> None:
    machine = compile_gbnf(JSON)
    for value in ({}, {"a": [1, -2.5, 'x"é😀\n', None, True, {"b": []}]}, {"k": 1e5}):
        for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
            assert accepted(machine, text), text
    for text in ("", "[]", "{", '{"a":}', '{"a":1,}', '{"a" 1}', '{"a":01}', '{"a":"\n"}', "{} {}"):
        assert not accepted(machine, text), text
    state = run(machine, '{"a": [[[{"b": "')
    rest = machine.shortest(state)
    assert rest == b'"}]]]}'


def derives(rules: dict[str, list[list[str]]], symbols: tuple[str, ...], text: str) -> bool:
    """Whether the symbols derive the text, by trying everything; upper-case symbols are rules."""
    if not symbols:
        return not text
    first, rest = symbols[0], symbols[1:]
    least = sum(s.islower() for s in symbols)
    if len(text) < least:
        return False
    if first.islower():
        return text.startswith(first) and derives(rules, rest, text[1:])
    return any(derives(rules, (*option, *rest), text) for option in rules[first])


symbols = st.sampled_from(["a", "b", "c", "R", "S", "T"])
options = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.lists(symbols, max_size=3)).map(lambda t: [t[0], *t[1]]),
    min_size=1,
    max_size=3,
)
TEXTS = ["".join(t) for n in range(6) for t in itertools.product("abc", repeat=n)]


@settings(max_examples=60, deadline=None)
@given(options, options, options)
def test_agrees_with_every_derivation(r: list[list[str]], s: list[list[str]], t: list[list[str]]) -> None:
    """Rules that begin with a letter each: recursion in the middle and at the end, ambiguity, dead rules."""
    rules = {"R": r, "S": s, "T": t}
    text = "root ::= R\n" + "\n".join(
        f"{name} ::= " + " | ".join(" ".join(f'"{x}"' if x.islower() else x for x in option) for option in body)
        for name, body in rules.items()
    )
    good = {x for x in TEXTS if derives(rules, ("R",), x)}
    try:
        machine = compile_gbnf(text)
    except GrammarUnsatisfiable:
        assert not good
        return
    assert {x for x in TEXTS if accepted(machine, x)} == good
    for prefix in TEXTS[:50]:
        state = run(machine, prefix)
        assert state != DEAD or not any(x.startswith(prefix) for x in good)
        if state != DEAD:
            rest = machine.shortest(state)
            assert rest is not None and accepted(machine, prefix.encode() + rest)
            known = [len(x) - len(prefix) for x in good if x.startswith(prefix)]
            assert not known or len(rest) <= min(known)


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('root ::= "a"', ["a"], ["", "aa"]),
        ('root ::= "a" | "b"\n  | "c"', ["a", "b", "c"], ["d"]),
        ('root ::= ("a"\n | "b" # note\n )+', ["ab"], [""]),
        ('root::="a"{2,3}b?\nb ::= [x-z]', ["aa", "aaax"], ["a", "aaaa"]),
        (r'root ::= "\x41\u00e9\U0001F600\n\"\\"', ['Aé😀\n"\\'], ["A"]),
        ("root ::= [^a-c\\n] .", ["dé", "d\n"], ["ad", "\nd"]),
        ('root ::= "x" | ', ["x", ""], ["y"]),
        ("root ::= [a-]{,2}", ["", "a-"], ["aaa"]),
        ('root ::= my-rule_1*\nmy-rule_1 ::= "q"', ["", "qq"], ["x"]),
        ('root ::= "a" root "b" | ""', ["", "ab", "aaabbb"], ["aab", "ba"]),
        ('root ::= r "b"\nr ::= ("a" r)?', ["b", "aab"], ["a", ""]),
    ],
)
def test_syntax(grammar: str, yes: list[str], no: list[str]) -> None:
    machine = compile_gbnf(grammar)
    assert [t for t in yes if not accepted(machine, t)] == []
    assert [t for t in no if accepted(machine, t)] == []
    for text in (t.encode() for t in yes):
        for n in range(len(text)):
            rest = machine.shortest(run(machine, text[:n]))
            assert rest is not None and accepted(machine, text[:n] + rest) and len(rest) <= len(text) - n


NEST = '("a"? ' * 10 + "r{}" + ' "b")?' * 10


@pytest.mark.parametrize(
    ("grammar", "named"),
    [
        ('start ::= "a"', "no rule named root"),
        ("root ::= missing", "missing"),
        ('root ::= root "a" | "b"', "left-recursive: root -> root"),
        ('root ::= x? y\nx ::= "a"\ny ::= root "b"', "left-recursive"),
        ('root ::= "a', "unclosed"),
        ("root ::= [a", "unclosed"),
        ('root ::= ("a"', ") is expected"),
        ('root ::= "a" )', "end of the line"),
        ("root ::= *", "nothing before *"),
        ('root ::= "a"{3,2}', "minimum exceeds"),
        ('root ::= "a"{x}', "repetition"),
        ("root ::= <think>", "token references"),
        ('root ::= "a"\nroot ::= "b"', "defined twice"),
        (r'root ::= "\q"', r"unknown escape \q"),
        ('root = "a"', "::= is expected"),
        ("root ::= [z-a]", "out of order"),
        ('root ::= "a"{99999} root | "b"{9999999}', "characters"),
        ("root ::= " + "(" * 200 + ")" * 200, "nested deeper"),
        ("\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(500)), 'r500 ::= "x"']), "chain"),
        (
            "\n".join(["root ::= r0", *(f"r{i} ::= {NEST.format(i + 1)}" for i in range(60)), 'r60 ::= "x"']),
            "too deeply",
        ),
    ],
)
def test_refusals(grammar: str, named: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        compile_gbnf(grammar)
    assert named in caught.value.message


def test_a_root_without_an_end_is_unsatisfiable() -> None:
    with pytest.raises(GrammarUnsatisfiable):
        compile_gbnf('root ::= "a" root')
    machine = compile_gbnf('root ::= "a" (loop | "c")\nloop ::= "b" loop')
    assert machine.step(run(machine, "a"), ord("b")) == DEAD


@pytest.mark.parametrize("empty", ["", '""', '("")*', '"" | ""'])
def test_a_rule_that_writes_nothing_leads_nowhere_but_behind_itself(empty: str) -> None:
    machine = compile_gbnf(f"root ::= {empty}")
    assert accepted(machine, "") and not accepted(machine, "a")
    inside = compile_gbnf(f'root ::= "a" gap "b" gap\ngap ::= {empty}')
    assert [accepted(inside, t) for t in ("ab", "a", "abb", "aab", "abab")] == [True, False, False, False, False]


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a" root x | "a" root y | "c"\nx ::= "x"\ny ::= "x" | "y"',
        'root ::= ("a" | "a" "a")* "b"',
        'root ::= "a" root "b" | "a" "a" root "b" | "c"',
        "\n".join(["root ::= r0", *(f'r{i} ::= "a" r{i + 1} r{i + 1}' for i in range(13)), 'r13 ::= "a"']),
        "root ::= (" + " ".join(["a?"] * 400) + ') "c"\na ::= "a"',
        "\n".join(["root ::= r0", *(f'r{i} ::= "a" r{i + 1} | "aa" r{i + 1}' for i in range(2000)), 'r2000 ::= "x"']),
    ],
)
def test_hostile_grammars_answer_quickly(grammar: str) -> None:
    start = time.process_time()
    machine = unwrap(compile_gbnf)(grammar)
    state = machine.start
    for _ in range(300):
        following = machine.step(state, ord("a"))
        state = following if following != DEAD else machine.start
    assert machine.shortest(state) is not None
    assert time.process_time() - start < 3.0


def test_choices() -> None:
    machine = choices_machine(["yes", "no", "yes, but", "ja é"])
    assert [accepted(machine, t) for t in ("yes", "yes, but", "ja é", "yes,", "", "nope")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    for bad in ([], ["\ud800"]):
        with pytest.raises(GrammarRefused):
            choices_machine(bad)
