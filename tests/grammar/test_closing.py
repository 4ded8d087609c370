"""Objects hold declared keys only: what is written under closing satisfies the schema itself, and nothing gets lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.schema.closing import Closing, with_closing
from imp_server.grammar.values.schema.document import Document
from imp_server.grammar.values.schema.expand import Expander
from jsonschema import Draft202012Validator

from tests.grammar.judging import BYTES, byte_space, reads
from tests.grammar.schemas import schemas, values

RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


def accepted(schema: Any, text: str) -> bool:
    return reads(byte_space().matcher(check_schema(with_closing(schema, True))), text)


def second(schema: Any) -> Any:
    """What the keys are among, as a schema of its own."""
    return Closing(Expander(Document(schema), Algebra(), "x")).schema


A = {"type": "object", "properties": {"a": {"type": "integer"}}}
X = {"properties": {"x": {}}, "required": ["x"]}
Y = {"properties": {"y": {}}, "required": ["y"]}

CASES: list[tuple[Any, list[str], list[str]]] = [
    # declared names alone, as deep as objects stand
    (A, ['{"a":1}', "{}"], ['{"b":1}', '{"a":1,"b":1}']),
    ({"properties": {"o": A, "l": {"items": A}, "p": {"prefixItems": [A]}}},
     ['{"o":{"a":1},"l":[{}],"p":[{"a":2},{"z":1}]}'], ['{"o":{"z":1}}', '{"l":[{"z":1}]}', '{"p":[{"z":1}]}']),
    # every in-place applicator tells names
    ({"type": "object", "required": ["r"]}, ['{"r":1}'], ['{"r":1,"s":1}']),
    ({"allOf": [X, Y]}, ['{"x":1,"y":2}'], ['{"x":1,"y":2,"z":3}']),
    ({"anyOf": [X, Y]}, ['{"x":1}', '{"x":1,"y":2}'], ['{"x":1,"z":3}']),
    ({"oneOf": [X, Y]}, ['{"x":1}', '{"y":2}'], ['{"x":1,"z":3}', '{"x":1,"y":2}']),
    ({"properties": {"a": {}}, "not": {"required": ["n"]}}, ['{"a":1}'], ['{"n":1}', '{"z":1}']),
    ({"properties": {"a": {}}, "if": {"required": ["i"]}, "then": {"required": ["t"]}, "else": {"required": ["e"]}},
     ['{"i":1,"t":1}', '{"a":1,"e":1}'], ['{"e":1,"z":1}']),
    ({"dependentRequired": {"a": ["b"]}}, ['{"a":1,"b":1}', '{"b":1}'], ['{"c":1}']),
    ({"dependentSchemas": {"a": {"properties": {"b": {}}}}}, ['{"a":1,"b":1}'], ['{"c":1}']),
    ({"$ref": "#/$defs/a", "required": ["q"], "$defs": {"a": A}}, ['{"a":1,"q":1}'], ['{"q":1,"z":1}']),
    ({"enum": [{"a": 1}, {"b": {"c": 1}}]}, ['{"a":1}', '{"b":{"c":1}}'], ['{"c":1}']),
    ({"properties": {"a": {}}, "anyOf": [{"const": {"k": {"l": 1}}}, {"required": ["a"]}]},
     ['{"k":{"l":1}}', '{"a":1}', '{"a":1,"k":2}'], ['{"a":1,"z":1}']),
    ({"patternProperties": {"^p": {"type": "integer"}}}, ['{"p1":1,"p2":2}'], ['{"q":1}', '{"p":"x"}']),
    ({"properties": {"a": A}, "patternProperties": {"^p": {"properties": {"x": {}}}, "1$": {"properties": {"y": {}}}}},
     ['{"a":{"a":1},"p":{"x":1}}', '{"p1":{"x":1,"y":2}}'], ['{"a":{"x":1}}', '{"p":{"z":1}}', '{"q":1}']),
    # two schemas of one object's member
    ({"allOf": [{"properties": {"o": X}, "required": ["o"]}, {"properties": {"o": Y}}]},
     ['{"o":{"x":1,"y":2}}'], ['{"o":{"x":1,"y":2,"z":3}}', '{"o":{"x":1}}']),
    # maps, and whatever is said of other properties
    ({"type": "object"}, ['{"z":1}'], []),
    ({"type": "object", "properties": {}}, ['{"z":1}'], []),
    (A | {"additionalProperties": True}, ['{"z":1}'], []),
    (A | {"additionalProperties": {"type": "string"}}, ['{"z":"1"}'], ['{"z":1}']),
    (A | {"additionalProperties": A}, ['{"z":{"a":1}}'], ['{"z":{"b":1}}']),
    (A | {"unevaluatedProperties": {}}, ['{"z":1}'], []),
    ({"allOf": [A, {"additionalProperties": {}}]}, ['{"z":1}'], []),
    # where closing would leave no value
    (A | {"minProperties": 2}, ['{"a":1,"z":1}'], ['{"a":1}']),
    (A | {"minProperties": 1}, ['{"a":1}'], ['{"z":1}', "{}"]),
    (A | {"propertyNames": {"pattern": "^b"}, "minProperties": 1}, ['{"b":1}'], ['{"a":1}']),
    ({"items": {"properties": {"x": {"const": 1}}, "type": "object"}, "uniqueItems": True, "minItems": 3},
     ['[{"x":1},{},{"z":1}]'], ['[{},{}]']),
    ({"type": "array", "items": {"properties": {"x": {"const": 1}}, "type": "object"}, "uniqueItems": True,
      "anyOf": [{"minItems": 3}, {"maxItems": 1}]}, ['[{"x":1},{},{"z":1}]', "[]"], ["[{},{}]"]),
    ({"anyOf": [{"type": "string"}, A | {"minProperties": 3}]}, ['"s"', '{"a":1,"b":2,"c":3}'], ['{"a":1}']),
    # recursion, and negation of what refers to the whole
    ({"$defs": {"n": {"type": "object", "properties": {"v": {}, "n": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
     ['{"v":1,"n":{"n":{"v":{"free":1}}}}'], ['{"n":{"n":{"z":1}}}', '{"z":1}']),
    ({"properties": {"a": {"not": {"$ref": "#"}}, "b": {"type": "string"}}, "type": "object"},
     ['{"a":1,"b":"x"}', '{"a":{"b":1}}'], ['{"a":{"b":"x"}}', '{"a":{"z":1}}', '{"z":1}']),
    ({"type": ["object", "null"], "properties": {"a": {"contains": {"required": ["k"]}, "items": {"type": "object"}}}},
     ['{"a":[{"k":1},{}]}', "null"], ['{"a":[{}]}', '{"a":[{"k":1,"z":1}]}']),
    (True, ['{"z":1}'], []),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "yes", "no"), CASES)
def test_keys_are_among_the_declared_ones(schema: Any, yes: list[str], no: list[str]) -> None:
    assert [t for t in yes if not accepted(schema, t)] == []
    assert [t for t in no if accepted(schema, t)] == []
    letter = byte_space().matcher(check_schema(schema))
    validator = Draft202012Validator(schema)
    for text in (*yes, *no):
        assert reads(letter, text) == validator.is_valid(json.loads(text)), text


several = st.lists(values, min_size=6, max_size=10)


def compare(schema: Any, instances: list[Any]) -> None:
    """And refuses nothing that the letter serves; where nothing had to stay open it is exactly both schemas."""
    validator = Draft202012Validator(schema)
    try:
        check_schema(schema)
    except GrammarUnsatisfiable:
        with pytest.raises(GrammarRefused):
            check_schema(with_closing(schema, True))
        return
    except GrammarRefused:
        return
    m = GrammarSpace(BYTES).matcher(check_schema(with_closing(schema, True)))
    among = Draft202012Validator(second(schema))
    is_exact = not any(word in json.dumps(schema) for word in ("minP", "maxP", "propertyN", "uniqueI"))
    for value in instances:
        read = reads(m, json.dumps(value))
        assert not read or validator.is_valid(value)
        if is_exact:
            assert read == (validator.is_valid(value) and among.is_valid(value))
    written = json.loads(m.way_out(m.start))
    assert validator.is_valid(written)


@settings(RELAXED, max_examples=60)
@given(schemas, several)
def test_what_is_closed_satisfies_the_schema_itself(schema: Any, instances: list[Any]) -> None:
    compare(schema, instances)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(RELAXED, max_examples=2000)
@given(schemas, several)
def test_what_is_closed_satisfies_the_schema_itself_at_length(schema: Any, instances: list[Any]) -> None:
    compare(schema, instances)


def test_a_closed_schema_is_the_one_that_says_so_itself() -> None:
    """Frames are shared: nothing is made for it that wasn't made already."""
    shared = GrammarSpace(BYTES)
    open_ = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
    text = '{"a":1,"b":"x"}'
    assert reads(shared.matcher(check_schema(open_ | {"additionalProperties": False})), text)
    n_locals = shared.space.tables.n_locals
    m = shared.matcher(check_schema(with_closing(open_, True)))
    assert reads(m, text) and not reads(m, '{"a":1,"c":1}')
    assert shared.space.tables.n_locals == n_locals


@pytest.mark.parametrize("word", ["open", True, None])
def test_the_keyword_knows_two_words(word: Any) -> None:
    with pytest.raises(GrammarRefused, match="closed") as refusal:
        check_schema({"type": "object", "x-imp-extra-properties": word})
    assert refusal.value.pointer == "/x-imp-extra-properties"


def test_a_schema_may_say_so_itself() -> None:
    assert reads(
        byte_space().matcher(check_schema(with_closing(A | {"x-imp-extra-properties": "allow"}, True))), '{"z":1}'
    )
