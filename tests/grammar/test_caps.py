"""Every limit of the grammar, made tiny: what falls short of an answer is refused with its place, never narrowed."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import imp_server.grammar
import pytest
from imp_server.core import GrammarRefused
from imp_server.core.limits import QUESTION, bounded
from imp_server.grammar.check import check_envelope, check_schema
from imp_server.grammar.engine import GrammarSpace, Matcher
from imp_server.grammar.languages.envelope import Lit, Raw, Seq
from imp_server.vocab.table import Vocabulary

BYTES = Vocabulary([bytes([i]) for i in range(256)] + [None], {256: "<eos>"}, end_ids=(256,))
NAMED = ("MAX_", "MOST", "SEARCH", "BUDGET", "ENOUGH", "FEW", "N_FRESH", "GUESSED", "PARTS", "LONGEST", "PLENTY")
"""How the name of a limit begins."""

PROOFS = {
    "machines.explored": ["BUDGET"],
    "machines.product": ["SEARCH"],
    "values.sat.arrays": ["MAX_SEARCH", "MAX_KINDS", "MAX_DISTINCT"],
    "values.sat.found": ["LONGEST"],
    "values.sat.objects": ["MAX_CHOICES", "MAX_BEGUN", "MAX_REGIONS"],
    "values.sat.solver": ["MAX_FAILURES", "MAX_CUBES"],
    "frames.goals": ["MAX_ROWS"],
    "frames.raw_texts": ["SEARCH"],
}
"""Behind these an answer could be missing."""
REFUSE = {
    "check": ["MAX_SUBS"],
    "languages.choices": ["MAX_BYTES"],
    "languages.gbnf": ["MAX_DEPTH", "MAX_LENGTH", "MAX_SHORTEST"],
    "languages.lark.compile": ["MAX_CHAIN", "MAX_SHORTEST", "MAX_WRITTEN_OUT"],
    "languages.lark.reader": ["MAX_DEPTH", "MAX_LENGTH"],
    "languages.left_recursion": ["MAX_GROUP"],
    "languages.regex.compile": ["MAX_SHORTEST"],
    "languages.regex.lookarounds": ["MAX_MARKS", "MAX_WORK"],
    "languages.regex.parser": ["MAX_DEPTH", "MAX_LENGTH"],
    "languages.rules": ["MAX_CHAIN", "MAX_FRAMES", "MAX_RULES", "MAX_WORK"],
    "machines.ambiguity": ["MAX_COPIES", "MAX_ITEMS"],
    "rehearsal": ["MOST", "MOST_OF_ENDING"],
    "relaxed": ["MAX_BYTES", "MAX_LEFT_OUT"],
    "values.schema.closing": ["MAX_DEPTH", "MAX_PLACES"],
    "values.schema.document": ["MAX_DEPTH", "MAX_SUBSCHEMAS"],
    "values.schema.expand": ["MAX_INPLACE_DEPTH"],
    "values.schema.reading": ["MOST_CHARACTERS", "MOST_ITEMS", "MOST_PROPERTIES"],
    "values.schema.unevaluated": ["MAX_CONDITIONS"],
}
"""These refuse while a grammar is read."""
HARMLESS = {
    "check": ["MAX_DEPTH", "PARTS"],
    "engine": ["MAX_FORCED"],
    "frames.arrays": ["PLENTY"],
    "frames.goals": ["MAX_FREE"],
    "frames.keys": ["MAX_COMPARED"],
    "frames.simple_objects": ["MAX_NAMES"],
    "frames.warm_up": ["MAX_FRAMES"],
    "machines.containing": ["FEW_STATES", "MOST_KINDS"],
    "machines.counted": ["MOST_COUNTED"],
    "machines.glushkov": ["LONGEST_SHIFT", "MAX_CLASSES", "MAX_COST", "MAX_POSITIONS", "MAX_READ", "MAX_SHIFTS"],
    "machines.joint": ["MAX_STEPS"],
    "machines.lengths": ["SEARCHED", "SEARCH", "MOST_SETS"],
    "machines.position_machine": ["FEW_STATES", "MAX_LOOKED_AT"],
    "machines.nodes": ["FEW_RANGES"],
    "machines.product": ["GUESSED"],
    "machines.tracked": ["MAX_OWED", "MAX_WAYS", "MAX_WORDS"],
    "masks.distance": ["MAX_LEGS", "MAX_WAYS"],
    "masks.fitting": ["FEW", "MAX_KEPT"],
    "masks.masks": ["MOST_UNDER_WAY"],
    "masks.native_walk": ["MAX_ASKS"],
    "masks.plain_tokens": ["MAX_PLAIN"],
    "masks.walk": ["MAX_LISTS"],
    "places": ["MAX_PLACES"],
    "plain": [
        "MAX_DEPTH",
        "MAX_NAME",
        "MAX_NAMES",
        "MAX_NODES",
        "MAX_PARTS",
        "MAX_SHORTEST",
        "MAX_SHORTEST_TEXT",
        "MAX_SUBS",
        "MAX_TEXT",
        "MOST_DIGITS",
        "MOST_ITEMS",
        "MOST_LENGTH",
    ],
    "rehearsal": ["ENOUGH", "FEW_UNITS", "MAX_ENDINGS", "MAX_FRAMES", "MAX_NAMES"],
    "values.algebra": ["MAX_LOOKED_AT"],
    "values.exclusive": ["MAX_PAIRS"],
    "values.formula": ["FEW"],
    "values.extents": ["MAX_COMPARED", "MAX_DEPTH", "MAX_WAYS"],
    "values.number_sets": ["MAX_RANGES", "MAX_STEPS"],
    "values.sat.found": ["MAX_LEAD", "MOST"],
    "values.sat.objects": ["FEW", "MAX_FRESH", "N_FRESH"],
    "values.sat.solver": ["MAX_BRANCHES", "MAX_CASES"],
    "values.schema.plain_closing": ["MAX_DEPTH", "MAX_PLACES"],
    "values.schema.reading": ["LONGEST_POINTER"],
}
"""Beyond these the same is found in another way, kept for a shorter time, or told less exactly to people."""


def limits() -> dict[str, list[str]]:
    """The limits of each module of the grammar, as its source has them."""
    found: dict[str, list[str]] = {}
    folder = Path(imp_server.grammar.__path__[0])
    for source in sorted(folder.rglob("*.py")):
        module = ".".join(source.relative_to(folder).with_suffix("").parts)
        for statement in ast.parse(source.read_text()).body:
            for target in statement.targets if isinstance(statement, ast.Assign) else []:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                told = [n.id for n in names if isinstance(n, ast.Name) and n.id.startswith(NAMED)]
                found.setdefault(module, []).extend(told)
    return {module: sorted(names) for module, names in found.items() if names}


def test_each_limit_is_known_here() -> None:
    told: dict[str, list[str]] = {}
    for kind in (PROOFS, REFUSE, HARMLESS):
        for module, names in kind.items():
            told.setdefault(module, []).extend(names)
    assert limits() == {module: sorted(names) for module, names in told.items()}


CASES: list[tuple[Any, list[str]]] = [
    ({"type": "object", "propertyNames": {"pattern": "^[a-d]x?$"}, "patternProperties": {"^a": {"type": "null"}},
      "minProperties": 5},
     ['{"a":null,"b":1,"c":2,"d":{},"dx":[]}', '{"ax":null,"b":1,"c":2,"d":{},"dx":[],"a":null}']),
    ({"type": "object", "not": {"patternProperties": {"^x": {"type": "null"}, "y$": {"type": "string"}}}},
     ['{"xy":""}', '{"b":1,"xb":1}', '{"ay":2}']),
    ({"type": "object", "propertyNames": {"allOf": [{"pattern": "^a"}, {"pattern": "b$"}, {"not": {"const": "ab"}}]},
      "minProperties": 2}, ['{"acb":1,"aab":2}']),
    ({"type": "object", "allOf": [{"not": {"propertyNames": {"not": {"const": c}}}} for c in "abc"]},
     ['{"c":1,"b":2,"a":3}']),
    ({"type": "object", "allOf": [{"not": {"properties": {"p": {"const": i}, "q": {"const": i}}}} for i in range(5)]},
     ['{"p":9}', '{"p":0,"q":1}', '{"q":7,"z":0}']),
    ({"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, 3, 4]}, "minItems": 4}, ["[4,3,2,1]"]),
    ({"type": "array", "allOf": [{"not": {"items": {"not": {"const": j}}}} for j in range(4)], "maxItems": 6},
     ["[3,2,1,0]", "[9,3,2,9,1,0]"]),
    ({"type": "array", "contains": {"type": "null"}, "minContains": 2, "prefixItems": [{"type": "string"}]},
     ['["",null,null]']),
    ({"oneOf": [{"type": "object", "properties": {f"p{i}": {"minimum": i}, "n": {"maximum": i}}} for i in range(4)]},
     ['{"p1":0,"p2":0,"p3":0}', '{"n":2.5}']),
    ({"type": "object", "required": ["k"],
      "allOf": [{"if": {"properties": {"k": {"const": c}}}, "then": {"required": [c]}} for c in "abcd"]},
     ['{"k":"a","a":1}', '{"k":"z"}', '{"d":1,"k":"d"}']),
    ({"type": "object", "additionalProperties": {"type": "boolean"}, "allOf": [
        {"anyOf": [{"properties": {a: {"const": v}}, "required": [a]} for a, v in zip(abc, (True, False, True))]}
        for abc in ("xyz", "yzw", "wxv", "vzy")]}, ['{"x":true,"z":true,"w":true,"y":false,"v":true}']),
    ({"anyOf": [{"type": "string", "pattern": "a..b", "not": {"pattern": "b..a"}}, {"type": "null"}]},
     ['"axxb"', '"xayyb"', "null"]),
    ({"oneOf": [{"type": "string", "pattern": f"{c}.{{3}}{c}"} for c in "abcd"]}, ['"axxxa"', '"bxxxbxxd"']),
    ({"type": "number", "allOf": [{"not": {"minimum": i, "maximum": i + 1}} for i in range(0, 20, 2)]},
     ["1.5", "-3", "21", "19.5"]),
    ({"type": "integer", "multipleOf": 3, "not": {"multipleOf": 5}, "minimum": 7}, ["9", "12", "33"]),
    ({"type": "string", "minLength": 40, "pattern": "^[ab]+$"}, ['"' + "ab" * 20 + '"']),
    ({"type": "object", "properties": {"s": {"enum": [f"v{i}" for i in range(40)]}, "t": {"enum": [1, 2]}},
      "oneOf": [{"properties": {"s": {"enum": [f"v{i}" for i in range(j, j + 20)]}}} for j in (0, 20)]},
     ['{"s":"v0","t":1}', '{"t":2,"s":"v39"}']),
]  # fmt: skip
"""Schemas, and values that each of them allows."""


def outcomes(schema: Any, texts: list[str]) -> set[str]:
    """Of the texts: accepted | rejected | refused, in the check or later."""
    try:
        plan = check_schema(schema)
    except GrammarRefused as refused:
        return {"refused" if f"#{refused.pointer}" in refused.message else "refused without a place"}
    matcher = GrammarSpace(BYTES).matcher(plan)
    return {_outcome(matcher, text) for text in texts}


def _outcome(m: Matcher, text: str) -> str:
    try:
        with bounded(QUESTION.budget(), "grammar"):
            state = m.advance_bytes(m.start, text.encode())
        return "accepted" if state is not None and m.is_done(state) else "rejected"
    except GrammarRefused:
        return "refused"


def make_tiny(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    """In its module, and wherever it was imported to."""
    value = getattr(import_module(f"imp_server.grammar.{module}"), name)
    others = {f"imp_server.grammar.{m}" for m, names in limits().items() if m != module and name in names}
    for known in [m for n, m in sys.modules.items() if n.startswith("imp_server.grammar") and n not in others]:
        if getattr(known, name, None) is value:
            monkeypatch.setattr(known, name, 1 if (module, name) in NOT_LESS else 0)


def test_the_values_are_allowed() -> None:
    assert [outcomes(*case) for case in CASES] == [{"accepted"}] * len(CASES)


NOT_LESS = {("frames.goals", "MAX_ROWS"), ("frames.simple_objects", "MAX_NAMES"), ("masks.native_walk", "MAX_ASKS"),
            ("machines.nodes", "FEW_RANGES")}  # fmt: skip
"""What nothing works without."""


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in PROOFS.items() for n in names])
def test_a_proof_that_falls_short_is_a_refusal(module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny(monkeypatch, module, name)
    if name == "MAX_REGIONS":  # else something simpler is found before
        make_tiny(monkeypatch, module, "N_FRESH")
    found = [outcomes(*case) for case in CASES]
    narrowed = [case for case, told in zip(CASES, found, strict=True) if not told <= {"accepted", "refused"}]
    assert not narrowed
    if (module, name) not in (("frames.goals", "MAX_ROWS"), ("frames.raw_texts", "SEARCH")):
        assert any("refused" in told for told in found), "nothing stood behind this limit"


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in HARMLESS.items() for n in names])
def test_without_shortcuts_the_same_is_found(module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny(monkeypatch, module, name)
    for case in CASES:
        assert outcomes(*case) == {"accepted"}, case


def test_a_raw_text_whose_end_is_not_found_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest text can't be written, since its first byte may begin nothing but the closer."""
    node = Seq((Lit(b"<p>"), Raw(b"</p>", {"type": "string", "pattern": "^(<b|cdef)$"}, guard=1)))
    m = GrammarSpace(BYTES).matcher(check_envelope(node))
    assert _outcome(m, "<p>cdef</p>") == "accepted" and _outcome(m, "<p><b</p>") == "rejected"
    make_tiny(monkeypatch, "frames.raw_texts", "SEARCH")
    with pytest.raises(GrammarRefused):
        check_envelope(node)
