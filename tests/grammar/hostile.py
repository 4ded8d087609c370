"""Grammars made to hurt: hypothesis strategies that write them, and a harness that says what each has cost.

The kinds are those that have hurt somebody: values that double with each level, minimums inside minimums, negations
that get in each other's way, unions of unions, automata whose products explode, repetitions inside repetitions, texts
that can be read in many ways, long lists and long numbers. Sizes are drawn on both sides of what is served.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from hypothesis import strategies as st
from imp_server.core import GrammarTooCostly, ImpError
from imp_server.core.limits import QUESTION, bounded
from imp_server.grammar.check import check_gbnf, check_regex, check_schema
from imp_server.grammar.engine import GrammarSpace, Matcher
from imp_server.grammar.values.schema.closing import with_closing
from imp_server.vocab.table import Vocabulary

Kind = Literal["schema", "regex", "gbnf", "lark"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
COUNTS = st.sampled_from([0, 1, 2, 3, 7, 40, 300, 1000, 4096])
SMALL = st.integers(1, 6)


class Hostile(NamedTuple):
    kind: Kind
    what: Any


# --- schemas ------------------------------------------------------------------------------------


def _object(members: dict[str, Any], closed: bool = True) -> dict[str, Any]:
    schema = {"type": "object", "properties": members, "required": list(members)}
    return schema | ({"additionalProperties": False} if closed else {})


def _twice(next_: dict[str, Any], way: str, n: int) -> dict[str, Any]:
    """A level that holds `n` values of the next one, or asks the same of one value in many places."""
    names = [f"k{i}" for i in range(n)]
    ways: dict[str, dict[str, Any]] = {
        "prefixItems": {"type": "array", "prefixItems": [next_] * n, "minItems": n, "maxItems": n},
        "items": {"type": "array", "items": next_, "minItems": n},
        "contains": {"type": "array", "contains": next_, "minContains": n},
        "properties": _object(dict.fromkeys(names, next_)),
        "patternProperties": {"type": "object", "patternProperties": {"^k": next_}, "required": names},
        "additionalProperties": {"type": "object", "additionalProperties": next_, "minProperties": n},
        "propertyNames": {"type": "object", "propertyNames": {"maxLength": n}, "additionalProperties": next_,
                          "minProperties": n},
        "dependentSchemas": {"type": "object", "required": ["k0"], "dependentSchemas": {"k0": _object(
            dict.fromkeys(names, next_), closed=False)}},
        "allOf": {"allOf": [_object({name: next_}, closed=False) for name in names]},
        "anyOf": {"anyOf": [_object({name: next_}) for name in names]},
        "oneOf": {"oneOf": [_object({name: next_}) for name in names]},
        "not": {"type": "object", "not": {"properties": {name: {"not": next_} for name in names}}},
        "unevaluated": {"type": "object", "properties": {"k0": next_}, "unevaluatedProperties": next_,
                        "minProperties": n},
        "if": {"type": "object", "if": {"required": ["k0"]}, "then": _object(dict.fromkeys(names, next_)),
               "else": {"required": ["k1"], "properties": {"k1": next_}}},
    }  # fmt: skip
    return ways[way]


WAYS = ("prefixItems", "items", "contains", "properties", "patternProperties", "additionalProperties",
        "propertyNames", "dependentSchemas", "allOf", "anyOf", "oneOf", "not", "unevaluated", "if")  # fmt: skip
LEAVES = st.sampled_from(
    [{"type": "integer"}, {"type": "null"}, {"type": "string", "minLength": 20}, {"const": "x" * 30}, {"enum": [1, 2]}]
)


@st.composite
def levels(draw: st.DrawFn) -> Any:
    """Levels of references, each of which holds the next one several times."""
    ways = draw(st.lists(st.sampled_from(WAYS), min_size=1, max_size=3))
    depth, n = draw(st.sampled_from([2, 5, 12, 40, 120])), draw(st.sampled_from([2, 2, 3, 10, 100]))
    levels_ = {f"d{i}": _twice({"$ref": f"#/$defs/d{i + 1}"}, ways[i % len(ways)], n) for i in range(depth)}
    return {"$defs": levels_ | {f"d{depth}": draw(LEAVES)}, "$ref": "#/$defs/d0"}


@st.composite
def inlined(draw: st.DrawFn) -> Any:
    """The same, written out."""
    schema: Any = draw(LEAVES)
    way, n = draw(st.sampled_from(WAYS)), draw(st.integers(2, 4))
    for _ in range(draw(st.integers(1, 6))):
        schema = _twice(schema, way, n)
    return schema if len(json.dumps(schema)) < 200_000 else {"const": 0}


@st.composite
def minimums(draw: st.DrawFn) -> Any:
    schema: Any = draw(LEAVES)
    for _ in range(draw(SMALL)):
        schema = draw(
            st.sampled_from(
                [
                    {"type": "array", "minItems": draw(COUNTS), "items": schema},
                    {"type": "array", "minItems": draw(COUNTS), "items": schema, "uniqueItems": True},
                    {"type": "object", "minProperties": draw(COUNTS) // 2, "additionalProperties": schema},
                    {"type": "array", "contains": schema, "minContains": draw(COUNTS)},
                    {"type": "array", "contains": schema, "maxContains": draw(COUNTS), "minItems": draw(COUNTS)},
                ]
            )
        )
    return schema


@st.composite
def pigeons(draw: st.DrawFn) -> Any:
    """More demands than places."""
    n, k = draw(st.integers(2, 12)), draw(st.integers(2, 13))
    names = [f"a{i}" for i in range(n)]
    way = draw(st.sampled_from(["properties", "required", "contains", "items", "names", "pattern"]))
    parts: dict[str, list[Any]] = {
        "properties": [{"not": {"properties": {a: {"not": {"const": j}} for a in names}}} for j in range(k)],
        "required": [{"anyOf": [{"required": [a], "maxProperties": n - 1} for a in names]} for _ in range(k)],
        "contains": [{"contains": {"multipleOf": j + 2}} for j in range(k)],
        "items": [{"not": {"items": {"not": {"const": j}}}} for j in range(k)],
        "names": [{"not": {"propertyNames": {"not": {"const": f"b{j}"}}}} for j in range(k)],
        "pattern": [{"not": {"patternProperties": {f"{a}.": {"not": {"const": j}}}}} for j, a in enumerate(names)],
    }
    bound = {"maxItems": draw(COUNTS)} if way in ("contains", "items") else {"maxProperties": draw(st.integers(0, n))}
    return {"type": "array" if "maxItems" in bound else "object", "allOf": parts[way]} | bound


@st.composite
def clauses(draw: st.DrawFn) -> Any:
    """Alternatives that exclude each other, too many to try."""
    n = draw(st.integers(3, 30))

    def literal() -> Any:
        name = f"x{draw(st.integers(0, n - 1))}"
        return {"properties": {name: {"const": draw(st.booleans())}}, "required": [name]}

    of = draw(st.sampled_from(["anyOf", "oneOf"]))
    rows = [{of: [literal() for _ in range(3)]} for _ in range(draw(st.integers(2, 4 * n)))]
    return {"type": "object", "additionalProperties": {"type": "boolean"}, "allOf": rows}


@st.composite
def unions(draw: st.DrawFn) -> Any:
    """Branches that overlap, and conditions that hang on each other."""
    n = draw(st.integers(2, 30))
    of = draw(st.sampled_from(["oneOf", "anyOf"]))
    way = draw(st.sampled_from(["ranges", "patterns", "lengths", "objects", "conditions", "arrays", "steps"]))
    parts: dict[str, list[Any]] = {
        "ranges": [{"type": "number", "minimum": i, "maximum": 3 * i} for i in range(n)],
        "patterns": [
            {"type": "string", "pattern": f"{LETTERS[i % 26]}.{{{i % 9}}}{LETTERS[i // 2]}"} for i in range(n)
        ],
        "lengths": [{"type": "string", "minLength": i, "maxLength": 5 * i} for i in range(n)],
        "objects": [{"properties": {f"p{i % 7}": {"minimum": i}, f"q{i % 5}": {"maxLength": i}}} for i in range(n)],
        "conditions": [
            {"if": {"properties": {f"k{i}": {"const": i}}}, "then": {"required": [f"k{(i + 1) % n}"]}} for i in range(n)
        ],
        "arrays": [
            {"type": "array", "prefixItems": [{"const": i % 3}, {"minimum": i}], "minItems": 2} for i in range(n)
        ],
        "steps": [{"type": "integer", "multipleOf": i + 2} for i in range(n)],
    }
    return {of if way != "conditions" else "allOf": parts[way]}


@st.composite
def long_lists(draw: st.DrawFn) -> Any:
    n = draw(st.sampled_from([10, 1000, 20_000]))
    size = draw(st.sampled_from([1, 20, 200]))
    way = draw(st.sampled_from(["enum", "const", "properties", "required", "anyOf", "numbers", "nested"]))
    if way == "enum":
        return {"enum": [f"{i}" * size for i in range(min(n, 400_000 // size))]}
    if way == "const":
        return {"const": {f"k{i}": [i] * size for i in range(n // size)}}
    if way == "properties":
        return {"type": "object", "properties": {f"p{i}": {"maxLength": i} for i in range(n // 10)}}
    if way == "required":
        return _object({f"p{i}": {"type": "integer"} for i in range(n // 10)}, closed=draw(st.booleans()))
    if way == "anyOf":
        return {"anyOf": [{"const": [i, f"{i}"]} for i in range(n // 10)]}
    if way == "numbers":
        return {"enum": [i * 10**size for i in range(n // 10)], "multipleOf": 10 ** (size // 2)}
    schema: Any = {"const": 1}
    for _ in range(min(n, 150)):
        schema = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    return schema


@st.composite
def numbers(draw: st.DrawFn) -> Any:
    digits = draw(st.sampled_from([1, 20, 300, 4000]))
    return {
        "type": draw(st.sampled_from(["number", "integer"])),
        "multipleOf": draw(st.sampled_from([1, 7, 10**digits + 1, 1e-300, 3e-9])),
        "minimum": draw(st.sampled_from([0, 10**digits, -(10**digits), 1e300])),
        "exclusiveMaximum": draw(st.sampled_from([1, 10 ** (digits + 1), 1e308])),
    }


# --- regexes ------------------------------------------------------------------------------------


@st.composite
def repetitions(draw: st.DrawFn) -> str:
    """Counts inside counts."""
    text = draw(st.sampled_from(["a", "ab?", "(a|ab|b)", "[a-y]", "\\w", "\\p{L}", ".", "(x{2,9}y?)"]))
    for _ in range(draw(st.integers(1, 5))):
        low, high = sorted((draw(COUNTS), draw(COUNTS)))
        count = draw(st.sampled_from([f"{{{low},{high}}}", f"{{{high}}}", f"{{{low},}}", "*", "?"]))
        text = f"({text}){count}{draw(st.sampled_from(['', 'a', 'b?', 'ab']))}"
    return text


@st.composite
def looks(draw: st.DrawFn) -> str:
    """Lookarounds beside and inside each other."""
    kind = draw(st.sampled_from(["(?=.*{a}.*[{a}x]{{{n}}})", "(?!.*{a}.{{{n}}}{b})", "(?=.*{a}{b})", "(?<={a}.{{{n}}})",
                                 "(?:(?=.*{a}.{{{n}}}{b}){a}?.)*", "\\b{a}\\B"]))  # fmt: skip
    pairs = draw(st.lists(st.tuples(st.sampled_from(LETTERS), st.sampled_from(LETTERS)), min_size=1, max_size=14))
    n = draw(st.integers(1, 14))
    inside = "".join(kind.format(a=a, b=b, n=n) for a, b in pairs)
    return draw(st.sampled_from(["{}.*", "^{}.{{8,64}}$", "(?:{})*z", "x(?:{}|y)+"])).format(inside)


@st.composite
def ambiguous(draw: st.DrawFn) -> str:
    """Texts that can be read in many ways at once."""
    n = draw(st.sampled_from([3, 30, 300, 3000]))
    return draw(
        st.sampled_from(
            [
                f"(a?){{{n}}}a{{{n}}}", f"(.*a){{{n % 40}}}", f".*a.{{{n}}}", f"(a|aa|aaa){{{n}}}b",
                f"(.*[ab].{{{n}}}c)+",
                "|".join(f"x{i}.*y{i}" for i in range(min(n, 300))), f"^(?:a{{0,{n}}}b{{0,{n}}}){{0,{n}}}$",
                "".join(f"(.*{LETTERS[i % 26]})?" for i in range(min(n, 200))),
            ]
        )
    )  # fmt: skip


def regexes() -> st.SearchStrategy[str]:
    return st.one_of(repetitions(), looks(), ambiguous())


@st.composite
def patterned(draw: st.DrawFn) -> Any:
    """Regexes in the places of a schema."""
    some = draw(st.lists(regexes(), min_size=1, max_size=6))
    way = draw(st.sampled_from(["pattern", "allOf", "oneOf", "patternProperties", "propertyNames", "not", "length"]))
    parts: dict[str, Any] = {
        "pattern": {"type": "string", "pattern": some[0]},
        "allOf": {"type": "string", "allOf": [{"pattern": p} for p in some]},
        "oneOf": {"oneOf": [{"type": "string", "pattern": p} for p in some]},
        "patternProperties": {"type": "object", "patternProperties": {p: {"type": "integer"} for p in some},
                              "additionalProperties": False, "minProperties": draw(st.integers(0, 3))},
        "propertyNames": {"type": "object", "propertyNames": {"allOf": [{"pattern": p} for p in some]},
                          "minProperties": draw(st.integers(0, 3))},
        "not": {"type": "string", "allOf": [{"not": {"pattern": p}} for p in some]},
        "length": {"type": "string", "pattern": some[0], "minLength": draw(COUNTS), "maxLength": draw(COUNTS)},
    }  # fmt: skip
    return parts[way]


def schemas() -> st.SearchStrategy[Any]:
    """JSON Schemas."""
    one = st.one_of(
        levels(), inlined(), minimums(), pigeons(), clauses(), unions(), long_lists(), numbers(), patterned()
    )
    both = st.lists(one, min_size=2, max_size=3).map(lambda parts: {"allOf": parts})
    either = st.lists(one, min_size=2, max_size=3).map(lambda parts: {"anyOf": parts})
    return st.one_of(one, one, one, both, either)


# --- grammars -----------------------------------------------------------------------------------


@st.composite
def gbnf(draw: st.DrawFn) -> str:
    n = draw(st.sampled_from([2, 10, 60, 400]))
    low, high = sorted((draw(COUNTS), draw(COUNTS)))
    count = draw(st.sampled_from([f"{{{low},{high}}}", f"{{{high}}}", "*", "+", "?", f"{{{low},}}"]))
    return draw(
        st.sampled_from(
            [
                "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(n)) + f'r{n} ::= "a"\nroot ::= r0\n',
                "".join(f"r{i} ::= r{i + 1}{count}\n" for i in range(n)) + f'r{n} ::= "a"\nroot ::= r0\n',
                "".join(f'r{i} ::= "a" r{i + 1} | "b" r{i + 1} | "c"?\n' for i in range(n))
                + f'r{n} ::= "a"\nroot ::= r0\n',
                "root ::= " + "(" * min(n, 60) + '"a" | "b"?' + f"){count}" * min(n, 60) + "\n",
                "root ::= " + " ".join('"a"?' for _ in range(n)) + f' ("a" | "ab"){count}\n',
                "root ::= " + " | ".join(f'[a-z]{count} "{i}"' for i in range(n)) + "\n",
                f'root ::= "(" root ")" | root2{count}\nroot2 ::= "a" root | "b"\n',
                'root ::= "' + "x" * (100 * n) + f'"{count}\n',
            ]
        )
    )


@st.composite
def lark(draw: st.DrawFn) -> str:
    n = draw(st.sampled_from([2, 10, 60, 400]))
    low, high = sorted((draw(COUNTS), draw(COUNTS)))
    count = draw(st.sampled_from([f"~{low}..{high}", f"~{high}", "*", "+", "?"]))
    return draw(
        st.sampled_from(
            [
                "start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(n)) + f'r{n}: "a"\n',
                "start: r0\n" + "".join(f"r{i}: (r{i + 1}){count}\n" for i in range(n)) + f'r{n}: "a"\n',
                "start: T0\n" + "".join(f"T{i}: (T{i + 1}){count}\n" for i in range(n)) + f'T{n}: "a"\n',
                "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(n)) + f'T{n}: "a"\n',
                "start: r0\n"
                + "".join(f'r{i}: r{i + 1} "x" | r{(i * 7) % n} "y" | "z"\n' for i in range(n))
                + f'r{n}: "a"\n',
                "start: " + "(" * min(n, 60) + '"a" | "b"?' + f"){count}" * min(n, 60) + "\n",
                "start: " + " ".join('["a"]' for _ in range(n)) + "\n",
                "start: "
                + " | ".join(f"/[a-z]{{{low % 50},{high % 60 + 50}}}{i}/" for i in range(n))
                + "\n%ignore /x*y?/\n",
            ]
        )
    )


def grammars() -> st.SearchStrategy[Hostile]:
    """All of them."""
    return st.one_of(
        schemas().map(lambda what: Hostile("schema", what)),
        schemas().map(lambda what: Hostile("schema", with_closing(what, True))),
        regexes().map(lambda what: Hostile("regex", what)),
        gbnf().map(lambda what: Hostile("gbnf", what)),
        lark().map(lambda what: Hostile("lark", what)),
    )


# --- the harness --------------------------------------------------------------------------------


class Cost(NamedTuple):
    """What happened to one input. Times: CPU seconds, of which a question is the dearest one after the start."""

    outcome: str
    """served | refused | blown (accepted, and then more than a question may cost) | the name of an exception."""
    check_s: float = 0.0
    start_s: float = 0.0
    question_s: float = 0.0
    n_mb: float = 0.0
    """Growth of the process until the start is done."""
    message: str = ""


CHECKS: dict[Kind, Callable[[Any], Any]] = {
    "schema": check_schema,
    "regex": check_regex,
    "gbnf": check_gbnf,
    "lark": lambda text: check_schema({"type": "string", "x-imp-grammar": {"syntax": "lark", "definition": text}}),
}
PIECES = ['{"', '":', '"k', '"a', "null", "aaaa", "abab", "12", "-1.", '",', "[[", "]]", "}}", ' "', "xy", "e5"]
VOCABULARY = Vocabulary([bytes([i]) for i in range(256)] + [p.encode() for p in PIECES], {})
N_STATES = 12
MOST_S, MOST_MB = 20, 1024
"""What the harness itself allows a child before it is killed."""


def cost(hostile: Hostile) -> Cost:
    """What a check, a start and some questions cost, here and now."""
    began, before_mb = time.process_time(), _peak_mb()
    try:
        plan = CHECKS[hostile.kind](hostile.what)
    except ImpError as refused:
        return Cost("refused", time.process_time() - began, n_mb=_peak_mb() - before_mb, message=refused.message)
    checked = time.process_time()
    try:
        matcher = GrammarSpace(VOCABULARY).matcher(plan)
    except GrammarTooCostly as refused:
        return Cost("blown", checked - began, time.process_time() - checked, message=refused.message)
    started = time.process_time()
    n_mb = _peak_mb() - before_mb
    outcome, dearest, message = "served", 0.0, ""
    try:
        for question in _questions(matcher):
            before = time.process_time()
            try:
                with bounded(QUESTION.budget(), "grammar"):
                    question()
            finally:
                dearest = max(dearest, time.process_time() - before)
    except GrammarTooCostly as refused:
        outcome, message = "blown", refused.message
    return Cost(outcome, checked - began, started - checked, dearest, n_mb, message)


def _questions(matcher: Matcher) -> Any:
    """Masks, steps and ways along two answers: what is allowed first, and what is allowed last."""
    for last in (False, True):
        state = matcher.start
        for _ in range(N_STATES):
            yield lambda: matcher.mask(state)  # noqa: B023
            yield lambda: matcher.n_tokens_out(state)  # noqa: B023
            row = matcher.mask(state)
            ids = [i for i in range(VOCABULARY.size) if row[i >> 5] >> (i & 31) & 1]
            if not ids:
                break
            token = ids[-1 if last else 0]
            yield lambda: matcher.advance(state, token)  # noqa: B023
            after = matcher.advance(state, token)
            assert after is not None
            state = after


def cost_apart(hostile: Hostile) -> Cost:
    """The same in a child of its own, killed beyond MOST_S seconds of CPU or MOST_MB."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        gc.freeze()  # as in a zygote: what was there before isn't walked
        try:
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S))
            resource.setrlimit(resource.RLIMIT_DATA, ((_data_kb() + (MOST_MB << 10)) << 10,) * 2)
            try:
                found = cost(hostile)
            except BaseException as error:
                found = Cost(f"{type(error).__name__}: {error}")
            os.write(writer, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        data = answer.read()
    os.waitpid(child, 0)
    return Cost(*json.loads(data)) if data else Cost("killed")


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _data_kb() -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
