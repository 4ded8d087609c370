"""How a lark grammar is read, what is refused and where, and that hostile ones cost little."""

from __future__ import annotations

import time
from inspect import unwrap

import pytest
from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from imp_server.grammar.languages.lark.compile import compile_lark
from imp_server.grammar.machines.machine import DEAD

from tests.grammar.test_regex import accepted, run


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('start: "a"', ["a"], ["", "aa"]),
        ('start: ""', [""], ["a"]),
        ("start:", [""], ["a"]),
        ('start:\n    | "a"', ["", "a"], ["aa"]),
        ('start: "a"\n\n   | "b" -> other\n// note\n   | "c"\n', ["a", "b", "c"], ["d"]),
        ('?start.-3 : _x!\n'.replace("!", "") + '!_x: "a" | y\n!?y: "b"', ["a", "b"], ["ab"]),
        ('start: ("a"\n | "b"\n  # note\n )+ [ "c" ]', ["ab", "bc"], ["", "c"]),
        ('start: "a"~2..3 "b" ~ 1', ["aab", "aaab"], ["ab", "aabb"]),
        ('start: "a" \\\n  "b"', ["ab"], ["a"]),
        ('start: A\nA.2: "x"i "y" | B\nB: "0".."9"', ["xy", "Xy", "7"], ["xY", "77"]),
        ('start: A " " A\nA: "a"\n%ignore " "', ["a a", "a   a", " a  a "], ["aa"]),
        ('start: A A\nA: "a" "b"\n%ignore /x/ | "y"', ["abab", "xabyxabx"], ["axbab"]),
        ("start: INT\n%import common.INT\n%import common.INT\n%import common (WS, LF)\n%ignore WS", ["1 ", "12"], [""]),
        ("start: /a#b/ /[\\/]/ # note", ["a#b/"], ["a"]),
        ('start: "//" "#"', ["//#"], [""]),
        ('start: e\ne: e "+" e | "1"', ["1", "1+1+1"], ["1+", "+1", "11"]),
        ('start: a\na: b "x" | "1"\nb: c "y" | a\nc: a | b "z"', ["1", "1x", "1yx", "1zyx", "1xx"], ["x", "1y"]),
        ('start: start | "a" | start start', ["a", "aaa"], ["", "b"]),
        ('start: "x"? start "y" | "z"', ["z", "zy", "xzy", "xzyy"], ["xz", "y"]),
        ('start: ("x" | start)~2 | "q"', ["xx", "q", "qx", "xq", "qq", "xxx"], ["x", ""]),
        ('start: o start "x" | "y"\no: "q"?', ["y", "qyx", "yxx", "qqyxx"], ["qy", "x", "qyq"]),
        ('start: a b\na: b a? | "x" |\nb: a "y" | o\no: "z" |', ["", "x", "xy", "z", "yy", "zyxzy"], ["q"]),
        (f'start: start "{"x" * 3000}" | o\no: "a" |', ["a"], ["x" * 2999]),
        ('start: start start | o\no: "a" |', ["", "a", "aaa"], ["b"]),
        ('start: ("x"? start?)+ "q" | "r"', ["q", "rq", "xq", "xrqq", "rxrq"], ["x", "rx"]),
    ],
)  # fmt: skip
def test_syntax(grammar: str, yes: list[str], no: list[str]) -> None:
    machine = compile_lark(grammar)
    assert [t for t in yes if not accepted(machine, t)] == []
    assert [t for t in no if accepted(machine, t)] == []
    for text in (t.encode() for t in yes):
        for n in range(len(text)):
            rest = machine.shortest(run(machine, text[:n]))
            assert rest is not None and accepted(machine, text[:n] + rest) and len(rest) <= len(text) - n


@pytest.mark.parametrize(
    ("grammar", "named"),
    [
        ("", "no rule named start"),
        ('root: "a"', "no rule named start"),
        ("start: missing", "line 1, column 8: the rule missing isn't defined"),
        ('start: "a"\n  | MISSING', "line 2, column 5: the terminal MISSING isn't defined"),
        ("start: DIGIT", "%import common.DIGIT brings it"),
        ("start: A\n%import common.FOO -> A", "line 2, column 16: `common` has no terminal FOO"),
        ("%import python.NAME\nstart: NAME", "line 1, column 9: only lark's `common`"),
        ("%import .other.NAME\nstart: NAME", "line 1, column 9: only lark's `common`"),
        ("%import common\nstart: A", "an import is"),
        ("%declare A\nstart: A", "line 1, column 1: the directive %declare"),
        ('%override start: "a"', "the directive %override"),
        ('%extend start: "a"', "the directive %extend"),
        ('%llguidance {}\nstart: "a"', "the directive %llguidance"),
        ('start: %json {"type": "string"}', "line 1, column 8: % has no meaning"),
        ("start: <think>", "line 1, column 8: < has no meaning"),
        ('start: list{"a"}\nlist{x}: x+', "line 1, column 8: list{...} is a template"),
        ('list{x}: x+\nstart: list{"a"}', "line 1, column 1: list{...} is a template"),
        ("start: A\nA: b\nb: /x/", "line 2, column 4: the rule b can't stand inside a terminal"),
        ('start: A\nA: "x" B\nB: A | "y"', "made of itself"),
        ('start: "a"\nstart: "b"', "line 2, column 1: start is defined twice"),
        ('start: A\nA: "a"\nA: "b"', "line 3, column 1: A is defined twice"),
        ('start: LF\nLF: "x"\n%import common.LF', "line 3, column 16: LF is defined twice"),
        ('start: "a', "line 1, column 8: an unclosed string"),
        ('start: "a\n"', "line 1, column 8: an unclosed string"),
        ("start: /a", "line 1, column 8: an unclosed regex"),
        ("start: /a\nb/", "only with the flag x"),
        ("start: /a/l", "the flag l isn't supported"),
        ("start: /a/iq", "the flag q isn't supported"),
        ('start: "x"\n  | /b(?=c)/', "line 2, column 7: a lookahead isn't supported"),
        ("start: /(?<!a)b/", "line 1, column 9: a lookbehind"),
        (r"start: /a\b/", "word boundary"),
        (r"start: /(a)\1/", "line 1, column 12: pattern"),
        ("start: /a+?/", "line 1, column 11: pattern 'a+?': a lazy quantifier"),
        ("start: /^a/", "line 1, column 9: pattern '^a': the anchor ^"),
        (r"start: /a\Z/", r"the anchor \Z"),
        ("start: /[a/", "unclosed class"),
        (r'start: "\x4"', "line 1, column 8: the escape \\x without"),
        (r'start: "\ud800"', "no character"),
        ('start: "a".."bc"', "line 1, column 8: a range needs a single character"),
        ('start: "b".."a"', "out of order"),
        ('start: "a".. b', 'a range is "a".."z"'),
        ('start: "a"~3..2', "line 1, column 11: a repetition whose minimum"),
        ('start: "a"~', "a number of repetitions is expected"),
        ('start: "a"~-1', "a negative count"),
        ("start: *", "line 1, column 8: nothing before *"),
        ('start: "a"?*', "nothing before *"),
        ('start: ("a"', "line 1, column 8: this ( is never closed"),
        ('start: ["a")', "] is expected, not ')'"),
        ('start: "a" )', "line 1, column 12:"),
        ('start "a"', ": is expected after start"),
        ('start.x: "a"', "a priority is a number"),
        ('start: "a" -> B', "an alias is a name in small letters"),
        ("1", "line 1, column 1: a rule, a terminal or a directive is expected"),
        ("start: " + "(" * 200 + ")" * 200, "nested deeper"),
        ("start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(500)) + 'r500: "x"', "chain of more than 100"),
        (
            "start: r0\n" + "".join(f"r{i}: {'(A? ' * 10}r{i + 1}{')?' * 10}\n" for i in range(60)) + 'r60: A\nA: "a"',
            "nested too deeply",
        ),
        ("start: T0\n" + "".join(f"T{i}: T{i + 1}\n" for i in range(500)) + 'T500: "x"', "terminals nested deeper"),
        ('start: "a"~99999999', "characters"),
        ("start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(60)) + 'T60: "ab"', "more than 262144"),
        ("start:" + " T0" * 300 + '\nT0: "' + "a" * 1000 + '"', "line 1, column 1: the rules up to start"),
        ("start: /(a|aa)*(a{1,9}b?){300}(a|aa){900}c/", "thousands of ways"),
    ],
)
def test_refusals(grammar: str, named: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        compile_lark(grammar)
    assert named in caught.value.message


def test_a_start_without_an_end_is_unsatisfiable() -> None:
    for grammar in ('start: "a" start', "start: start", "start: /[^\\s\\S]/"):
        with pytest.raises(GrammarUnsatisfiable):
            compile_lark(grammar)
    machine = compile_lark('start: "a" (loop | "c")\nloop: "b" loop')
    assert machine.step(run(machine, "a"), ord("b")) == DEAD


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('start: start "a" | start start | "a"', "a" * 400),
        ('start: e\ne: e "+" e | e "*" e | "(" e ")" | "a"', "a+a*(a)+" * 50),
        ('start: w*\nw: W\nW: /a+/\n%ignore /a+/', "a" * 400),
        ("start: r0\n" + "".join(f'r{i}: "a" r{i + 1} r{i + 1}\n' for i in range(13)) + 'r13: "a"', "a" * 400),
        ("start: (" + " ".join(["A?"] * 400) + ') "c"\nA: "a"', "a" * 300),
        (
            "start: r0\n" + "".join(f"r{i}: r{(i + 1) % 20} S | r{(i * 7 + 3) % 20} S S | S\n" for i in range(20))
            + 'S: "a" | "aa"',
            "a" * 200,
        ),
    ],
)  # fmt: skip
def test_hostile_grammars_answer_quickly(grammar: str, text: str) -> None:
    start = time.process_time()
    machine = unwrap(compile_lark)(grammar)
    state = machine.start
    for byte in text.encode():
        following = machine.step(state, byte)
        state = following if following != DEAD else machine.start
    assert machine.shortest(state) is not None
    assert time.process_time() - start < 4.0
