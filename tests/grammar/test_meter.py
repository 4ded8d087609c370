"""What is charged for: between two payments no checked grammar does much, and none does much for what it pays.

Work is told in lines of Python that were run, so a verdict is the same on every machine.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import imp_server.grammar
import pytest
from imp_server.core import ImpError
from imp_server.core.limits import CHECK, Limit
from imp_server.core.turns import GaveUp, OverBudget
from imp_server.grammar import check
from imp_server.grammar.engine import GrammarSpace
from imp_server.grammar.languages.envelope import Lit, Node, Raw, Seq
from imp_server.grammar.plan import PlanPayload, make_plan
from imp_server.grammar.proving import warm_up

from tests.grammar.hostile import CHECKS, VOCABULARY, Hostile

GRAMMAR = Path(imp_server.grammar.__path__[0])
FEW = Limit(2_500, CHECK.n_bytes)
"""What each input may spend here: enough to see what a unit buys."""
MOST_PER_UNIT, MOST_AT_ONCE = 70, 12_000
"""Lines: 2.5 microseconds of CPU time are 40 to 60 of them, so no step in between takes a millisecond."""

MOST_LUMP = 1_000
"""Units that are paid at once."""


class Lines:
    """Counts lines of grammar/ that are run, in all and beyond what was last paid for."""

    def __init__(self) -> None:
        self.n_lines, self.longest, self.where = 0, 0, ""
        self.n_units = 0
        self._paid_until = 0
        self._last = ""

    def paid(self, n_units: int) -> None:
        if self.n_lines - self._paid_until > self.longest:
            self.longest, self.where = self.n_lines - self._paid_until, self._last
        self._paid_until = max(self._paid_until, self.n_lines) + MOST_PER_UNIT * n_units
        self.n_units += n_units

    def entered(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        return self._line if "imp_server/grammar" in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "line":
            self.n_lines += 1
            if self.n_lines - self._paid_until == MOST_AT_ONCE:
                self._last = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return self._line


def measured(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> Lines:
    """Of some work, which may be refused."""
    lines = Lines()

    def spying(pay: Callable[..., None], at: int) -> Callable[..., None]:
        def paid(*amounts: int) -> None:
            lines.paid(amounts[at] if len(amounts) > at else 1)
            pay(*amounts)

        return paid

    with monkeypatch.context() as patch:
        for name, at in (("spend", 0), ("charge", 1)):
            for module in [m for n, m in sys.modules.items() if n.startswith("imp_server.grammar")]:
                if hasattr(module, name):
                    patch.setattr(module, name, spying(getattr(module, name), at))
        patch.setattr(check, "CHECK", FEW)
        patch.setattr(check, "plain_text", lambda text, ask: None)  # prove what counting would tell, too
        sys.settrace(lines.entered)
        try:
            work()
        except (ImpError, OverBudget):
            pass
        finally:
            sys.settrace(None)
    lines.paid(0)
    return lines


def checked(asked: Hostile | Node) -> object:
    return check.check_envelope(asked) if isinstance(asked, Node) else CHECKS[asked.kind](asked.what)


def assert_paid(name: object, lines: Lines) -> None:
    assert lines.longest <= MOST_AT_ONCE, (name, lines.longest, lines.where)
    assert lines.n_lines <= MOST_PER_UNIT * lines.n_units + MOST_AT_ONCE, (name, lines.n_lines, lines.n_units)


def doubled(depth: int, level: Callable[[Any, int], Any], last: Any, **around: Any) -> Hostile:
    """Levels of which each says two things of the next one in place: as a tree it has 2^depth parts."""
    levels = {f"d{i}": level({"$ref": f"#/$defs/d{i + 1}"}, i) for i in range(depth)}
    return Hostile("schema", {"$defs": {**levels, f"d{depth}": last}, "$ref": "#/$defs/d0", **around})


def either(first: Callable[[int], Any], second: Callable[[int], Any]) -> Callable[[Any, int], Any]:
    return lambda below, i: {"anyOf": [{"allOf": [below, first(i)]}, {"allOf": [{"not": below}, second(i)]}]}


def neither(below: Any, i: int) -> Any:
    inner = {"not": below}
    return {"allOf": [{"not": {"anyOf": [inner, {"required": [name]}]}} for name in (f"a{i}", f"b{i}")]}


SHARED = {
    "members": doubled(
        40,
        either(lambda i: {"required": [f"a{i}"]}, lambda i: {"required": [f"b{i}"]}),
        {"required": ["z"]},
        type="object",
    ),
    "exactly one": doubled(
        40,
        either(lambda i: {"oneOf": [{"required": [f"a{i}"]}, {"required": ["q"]}]}, lambda i: {"required": [f"b{i}"]}),
        {"required": ["z"]},
        type="object",
    ),
    "neither": doubled(40, neither, {"required": ["z"]}, type="object"),
    "listed strings": doubled(
        40,
        either(lambda i: {"enum": ["abc", "defg", f"x{i}"]}, lambda i: {"enum": ["abc", f"y{i}"]}),
        {"enum": ["abc", "defg"]},
        type="string",
    ),
    "ranges": doubled(
        40, either(lambda i: {"minimum": i}, lambda i: {"maximum": 50 + i}), {"multipleOf": 3}, type="number"
    ),
    "tags": doubled(
        40,
        either(lambda i: {"properties": {"t": {"const": i}}}, lambda i: {"properties": {"t": {"const": -i}}}),
        {"required": ["z"]},
        type="object",
    ),
    "items": doubled(
        40, either(lambda i: {"contains": {"const": i}}, lambda i: {"items": {"minimum": i}}), {"minItems": 2}
    ),
}
NAMES = [f"a{i}" for i in range(12)]
CLOSER = b"\n</parameter>\n"
INPUTS: dict[str, Hostile | Node] = {
    **SHARED,
    "raw text": Seq((Lit(b"("), Raw(CLOSER, {"type": "string", "minLength": 300}), Lit(b")"))),
    "raw words": Seq((Lit(b"("), Raw(CLOSER, {"enum": ["a", *(f"w{i}\n</parameter" for i in range(30))]}), Lit(b")"))),
    "pigeons": Hostile(
        "schema",
        {
            "type": "object",
            "allOf": [{"not": {"properties": {a: {"not": {"const": j}} for a in NAMES}}} for j in range(13)],
        },
    ),
    "long text": Hostile("schema", {"type": "string", "minLength": 2000}),
    "all but one text": Hostile(
        "schema", {"type": "string", "minLength": 900, "maxLength": 900, "not": {"const": "a" * 900}}
    ),
    "names told by patterns": Hostile(
        "schema",
        {
            "type": "object",
            "allOf": [{"not": {"patternProperties": {f"{a}.": {"not": {"const": 1}}}}} for a in "abcdef"],
        },
    ),
    "unlike items": Hostile(
        "schema", {"type": "array", "uniqueItems": True, "minItems": 3, "items": {"const": [[["x"] * 9] * 9] * 9}}
    ),
    "sums of steps": Hostile("schema", {"type": "number", "allOf": [{"multipleOf": p} for p in (0.07, 0.11, 0.13)]}),
    "classes": Hostile("regex", r"\p{L}[a-zà-ÿ]" * 60),
    "lookaheads": Hostile("regex", "".join(f"(?=.*{c}.*[{c}x]{{9}})" for c in "abcdefghij") + ".*"),
    "alternatives": Hostile("regex", "|".join(f"abc{i}" for i in range(600))),
    "rules": Hostile("gbnf", "root ::= r0\n" + "".join(f'r{i} ::= r{(i * 7 + 3) % 200}? "a{i}"\n' for i in range(200))),
    "left rules": Hostile(
        "lark", "start: e0\n" + "".join(f'e{i}: e{i + 1} "x" | "y"\n' for i in range(20)) + 'e20: e0 | "z"\n'
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """As the processes that check: tables that are the same for all grammars are there."""
    warm_up()


@pytest.mark.parametrize("name", INPUTS)
def test_work_is_paid_for_as_it_is_done(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    lines = measured(monkeypatch, lambda: checked(INPUTS[name]))
    assert lines.n_units > 50
    assert_paid(name, lines)


PATTERNS: list[dict[str, Any]] = [{"pattern": p} for p in (".*a.{6}b", "c.{5}d", ".*e.*f")]
NODE = {
    "type": "object",
    "properties": {f"k{i}": {"$ref": "#/$defs/node"} for i in range(20)},
    "minProperties": 1,
    "additionalProperties": {"type": "integer"},
}
UNTRIED: dict[str, Any] = {
    "keys": {"type": "object", "patternProperties": {".*a.{300}": {}, "^b.*c.{9}$": {}}, "additionalProperties": False},
    "names": {"type": "object", "propertyNames": {"allOf": [{"pattern": p} for p in (".*a.{9}", "b.*c")]}},
    "watched texts": {"oneOf": [{"type": "string"} | part for part in (*PATTERNS, {"maxLength": 9})]},
    "products": {
        "type": "string",
        "allOf": [*PATTERNS, {"pattern": "^([a-z]{3,9} ){2,40}$"}, {"not": {"pattern": "g"}}],
    },
    "recursion": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    "conditions": {
        "type": "object",
        "allOf": [{"if": {"required": [f"k{i}"]}, "then": {"required": [f"k{i * 7 % 12}"]}} for i in range(12)],
    },
    "items": {"type": "array", "contains": {"multipleOf": 7}, "minContains": 3, "uniqueItems": True},
    "rules": 'root ::= e\ne ::= t ("+" t)*\nt ::= [a-z]+ ("(" e ("," e)* ")")? | [0-9]{1,40} | "(" e ")"\n',
}


@pytest.mark.parametrize("name", UNTRIED)
def test_no_question_does_more_than_it_may_whatever_its_check_would_have_said(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without any check: each mask and each way ends as soon as it has done what was paid for."""
    asked = UNTRIED[name]
    plan = make_plan("gbnf", PlanPayload(text=asked)) if isinstance(asked, str) else check.schema_plan(asked)
    m = GrammarSpace(VOCABULARY).matcher(plan)
    state, rng, n_units = m.start, Random(3), 0

    def limited(question: Callable[[], object]) -> object:
        with FEW.budget().spent():
            return question()

    for _ in range(3):
        for question in (lambda: m.mask(state), lambda: m.n_tokens_out(state)):  # noqa: B023
            lines = measured(monkeypatch, lambda: limited(question))  # noqa: B023
            assert_paid(name, lines)
            assert lines.n_units <= FEW.n_units + MOST_LUMP
            n_units += lines.n_units
        with suppress(GaveUp):  # as its check would have said
            ids = rng.sample(range(VOCABULARY.size), VOCABULARY.size)
            state = next((after for i in ids if (after := m.advance(state, i)) is not None), state)
    assert n_units > 20


REMEMBERED = {
    "values/formula.py::restrict": "kept on the formula",
    "values/formula.py::_but": "kept while the formula is gone through",
    "values/scalars.py::_build": "kept by the algebra",
    "values/schema/unevaluated.py::_parts": "goes down a schema, of few branches",
}
"""Functions that look at each part of a formula once without paying themselves: they make formulas, which pay."""


def _unpaid() -> Iterator[str]:
    """Functions that go down formulas by calling themselves and don't pay: parts are shared, so there is no end."""
    for path in sorted(GRAMMAR.rglob("*.py")):
        text = path.read_text()
        for part in ast.walk(ast.parse(text)) if ": Formula" in text else ():
            if isinstance(part, ast.FunctionDef) and _goes_down(part):
                names = {name.id for name in ast.walk(part) if isinstance(name, ast.Name)}
                if names.isdisjoint(("spend", "charge")):
                    yield f"{path.relative_to(GRAMMAR)}::{part.name}"


def _goes_down(part: ast.FunctionDef) -> bool:
    takes = any(arg.annotation is not None and ast.unparse(arg.annotation) == "Formula" for arg in part.args.args)
    calls = [call for call in ast.walk(part) if isinstance(call, ast.Call)]
    mapped = [call.args[0] for call in calls if ast.unparse(call.func) == "map"]
    named = {ast.unparse(at) for at in (*(call.func for call in calls), *mapped)}
    return takes and not named.isdisjoint((part.name, f"self.{part.name}"))


def test_whatever_goes_down_a_formula_pays_or_remembers() -> None:
    assert set(_unpaid()) == set(REMEMBERED)
