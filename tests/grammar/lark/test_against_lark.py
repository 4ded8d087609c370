"""Lark grammars against lark itself: made ones, and the grammars of its documentation."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from imp_server.core import GrammarUnsatisfiable
from imp_server.grammar.languages.lark.compile import compile_lark
from imp_server.grammar.languages.lark.terminals import COMMON
from imp_server.grammar.machines.machine import DEAD
from imp_server.grammar.machines.terms import TermMachine

from tests.grammar.lark.grammars import APPLY_PATCH, EXAMPLES
from tests.grammar.test_regex import accepted, run

lark = pytest.importorskip("lark", reason="the oracle is the package lark (extra: test)")


def theirs(grammar: str) -> Any:
    return lark.Lark(grammar, parser="earley", lexer="dynamic_complete")


def agrees(parser: Any, text: str) -> bool:
    try:
        parser.parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


@pytest.mark.parametrize(("grammar", "yes", "no"), EXAMPLES)
def test_known_grammars(grammar: str, yes: list[str], no: list[str]) -> None:
    machine = compile_lark(grammar)
    # lark has no terminals that may match nothing
    parser = theirs(grammar.replace("/(.*)/", "/(.+)/?"))
    for text in yes:
        assert accepted(machine, text) and agrees(parser, text), text
        for end in range(len(text)):
            rest = machine.shortest(run(machine, text[:end]))
            assert rest is not None and accepted(machine, text[:end].encode() + rest)
    for text in no:
        assert not accepted(machine, text) and not agrees(parser, text), text


# --- rules: terminals are fixed strings, so lark's scanner is exact -----------------------------------------

ATOMS = ['"a"', '"b"', '"ab"', "A", "AB", "start", "r", "s"]


def bodies() -> st.SearchStrategy[str]:
    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        row = st.lists(inner, min_size=1, max_size=3).map(" ".join)
        options = st.lists(row, min_size=1, max_size=3).map(" | ".join)
        operators = st.sampled_from(["?", "*", "+", "~2", "~1..2", "~0..1"])
        group = options.map(lambda body: f"({body})")
        return st.one_of(row, options.map(lambda o: f"[{o}]"), st.tuples(group, operators).map("".join), group)

    grown = st.recursive(st.sampled_from(ATOMS), extend, max_leaves=5)
    return st.lists(grown, min_size=1, max_size=3).map("\n    | ".join)


TEXTS = ["".join(t) for n in range(6) for t in itertools.product("ab", repeat=n)]
BLANK_TEXTS = ["".join(t) for n in range(5) for t in itertools.product("ab ", repeat=n)]


SLOW = [HealthCheck.filter_too_much, HealthCheck.too_slow]


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(bodies(), bodies(), bodies(), st.booleans())
def test_made_rules(start: str, r: str, s: str, blanks: bool) -> None:
    compare(start, r, s, blanks)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=1000, deadline=None, suppress_health_check=SLOW)
@given(bodies(), bodies(), bodies(), st.booleans())
def test_made_rules_at_length(start: str, r: str, s: str, blanks: bool) -> None:
    compare(start, r, s, blanks)


def compiled(grammar: str) -> TermMachine | None:
    """None if there is no text."""
    try:
        return compile_lark(grammar)
    except GrammarUnsatisfiable:
        return None


def compare(start: str, r: str, s: str, blanks: bool) -> None:
    grammar = f'start: {start}\nr: {r}\ns: {s}\nA: "a"\nAB: A "b"\n' + ('%ignore " "\n' if blanks else "")
    try:
        parser = theirs(grammar)
    except lark.exceptions.GrammarError:
        assume(False)  # an alternative that stands there twice, for instance
    texts = BLANK_TEXTS if blanks else TEXTS
    good = {text for text in texts if agrees(parser, text)}
    machine = compiled(grammar)
    if machine is None:
        assert not good
        return
    assert {text for text in texts if accepted(machine, text)} == good
    for prefix in texts[:40]:
        state = run(machine, prefix)
        assert state != DEAD or not any(text.startswith(prefix) for text in good)
        if state != DEAD:
            rest = machine.shortest(state)
            assert rest is not None and accepted(machine, prefix.encode() + rest)


# --- terminals: what they match as a whole ------------------------------------------------------------------

STRINGS = ['"a"', '"B"i', '"é"i', r'"\n"', r'"\x41\u00e9"', r'"\d"', r'"a\"b\\"', '"//"', '"k"i', '"."']
REGEXES = [
    "/(a|ab)/", "/[a-c]+x?/i", "/./", "/./s", r"/\d\w\s/", r"/[^\d\w]\S/", r"/a{1,2}(?:b|c)*/", r"/[]a-]/", r"/[^]a]/",
    r"/\/\.\n/", "/a b # c\n  [ #]/x", "/(?i:é)a/", r"/x\u00e9\x62/", "/a{,2}b/", "/K+/i",
]  # fmt: skip
RANGES = ['"a".."c"', r'"\x30".."5"', '"é".."î"']


def terminals() -> st.SearchStrategy[str]:
    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        row = st.lists(inner, min_size=1, max_size=3).map(" ".join)
        options = st.lists(row, min_size=1, max_size=3).map(lambda parts: f"({' | '.join(parts)})")
        operators = st.sampled_from(["?", "*", "+", "~2", "~1..3"])
        return st.one_of(row, options, options.map(lambda o: f"[{o}]"), st.tuples(options, operators).map("".join))

    return st.recursive(st.sampled_from([*STRINGS, *RANGES, *REGEXES, "INNER"]), extend, max_leaves=4)


def pattern_of(grammar: str, name: str) -> str:
    """The regex that lark makes of a terminal."""
    made = lark.load_grammar.load_grammar(grammar, "test", [], False)[0].compile(["start"], "*")[0]
    found: str = next(t.pattern.to_regexp() for t in made if t.name == name)
    return found


LETTERS = 'abcABkKxé\u212a0٣ \n\x1c\u2028\\".//]-#'


@settings(max_examples=120, deadline=None)
@given(terminals(), terminals(), st.lists(st.text(LETTERS, max_size=5), min_size=10, max_size=10), st.data())
def test_made_terminals(body: str, inner: str, texts: list[str], data: st.DataObject) -> None:
    inner = inner.replace("INNER", '"q"')
    grammar = f"start: T\nT: {body}\nINNER: {inner}\n"
    pattern = pattern_of(grammar, "T")
    machine = compile_lark(grammar)
    fitting = st.from_regex(pattern, fullmatch=True)
    for text in [*texts, data.draw(fitting)]:
        if not any("\ud800" <= c <= "\udfff" for c in text):
            assert accepted(machine, text) == (re.fullmatch(pattern, text) is not None), (text, grammar, pattern)


@pytest.mark.parametrize("letter", ["k", "s", "é", "ß", "I", "ſ", "µ", "Σ", "ǆ"])
@pytest.mark.parametrize("kind", ["/{}/i", '"{}"i', "/[{}]/i"])
def test_case_is_ignored_as_python_does(letter: str, kind: str) -> None:
    grammar = f"start: T\nT: {kind.format(letter)}\n"
    machine, pattern = compile_lark(grammar), re.compile(pattern_of(grammar, "T"))
    # Unicode's folding keeps the Turkish dotted and dotless i apart from the others
    every = [chr(c) for c in range(1, 0x3000) if chr(c) not in "\u0130\u0131"]
    assert [c for c in every if accepted(machine, c)] == [c for c in every if pattern.fullmatch(c)]


@pytest.mark.parametrize("shorthand", ["\\d", "\\D", "\\w", "\\W", "\\s", "\\S", "."])
def test_shorthands_are_pythons(shorthand: str) -> None:
    machine, pattern = compile_lark(f"start: /{shorthand}/"), re.compile(shorthand)
    every = [chr(c) for c in (*range(0x3100), *range(0x1D400, 0x1F100)) if not 0xD800 <= c < 0xE000]
    assert [c for c in every if accepted(machine, c)] == [c for c in every if pattern.fullmatch(c)]


@pytest.mark.parametrize("name", COMMON)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_common_terminals(name: str, data: st.DataObject) -> None:
    grammar = f"%import common.{name}\nstart: {name}\n"
    pattern = pattern_of(grammar, name)
    lazy = name in ("ESCAPED_STRING", "C_COMMENT")
    other = st.text('aZ_09.+-eE"\\\n\r\t /*#', max_size=6)
    for text in (data.draw(st.from_regex(pattern, fullmatch=True)), data.draw(other)):
        right = in_one(pattern, text) if lazy else re.fullmatch(pattern, text) is not None
        assert accepted(compile_lark(grammar), text) == right


def in_one(pattern: str, text: str) -> bool:
    """A lazy terminal ends where it can for the first time."""
    found = re.match(pattern, text)
    return found is not None and found.end() == len(text)


def test_terminals_that_match_nothing_go_beyond_lark() -> None:
    with pytest.raises(lark.exceptions.LarkError):
        theirs(APPLY_PATCH)
    assert accepted(compile_lark('start: "a" /b*/ "c"'), "ac")
