"""Keywords that combine schemas, and those about types, constants, strings and numbers."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from imp_server.grammar.languages.definitions import GRAMMAR_KEYWORD
from imp_server.grammar.values.formula import Formula
from imp_server.grammar.values.json_values import canonical
from imp_server.grammar.values.leaves import (
    ANY_TYPE,
    ARRAY,
    BOOLEAN,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
)
from imp_server.grammar.values.schema.document import At
from imp_server.grammar.values.schema.reading import (
    MOST_CHARACTERS,
    Expanding,
    count_of,
    decimal_of,
    keyword,
    least_of,
    name_of,
    refuse,
    schemas_of,
    try_machine,
)
from imp_server.grammar.values.text_machines import (
    definition_machine,
    format_machine,
    is_enforced_format,
    number_leaf_machine,
    pattern_machine,
)

TYPE_BITS = {
    "null": NULL,
    "boolean": BOOLEAN,
    "number": NUMBER,
    "string": STRING,
    "object": OBJECT,
    "array": ARRAY,
}


@keyword("$ref", "$dynamicRef", "$recursiveRef")
def _ref(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    name = {"$ref": "$ref", "$dynamicRef": "$dynamicRef"}.get(name_of(at), "$recursiveRef")
    return e.reference(name, schema[name], at)


@keyword("type")
def _type(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    mask, parts = 0, []
    for name in types:
        if name == "integer":
            parts.append(e.algebra.is_integer(e.integers))
        elif isinstance(name, str) and name in TYPE_BITS:
            mask |= TYPE_BITS[name]
        else:
            raise refuse(f"unknown type {name!r}", at)
    if mask == ANY_TYPE:
        return e.algebra.formulas.true
    return e.algebra.formulas.disj([*parts, e.algebra.type_is(mask)] if mask else parts)


@keyword("enum")
def _enum(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    if not isinstance(schema["enum"], list):
        raise refuse("must be a list", at)
    return e.algebra.one_of_values(canonical(v) for v in schema["enum"])


@keyword("const")
def _const(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    return e.algebra.equals(canonical(schema["const"]))


@keyword("allOf")
def _all_of(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    subs = schemas_of(schema["allOf"], at)
    return e.algebra.formulas.conj([e.formula(s, at.down(i)) for i, s in enumerate(subs)])


@keyword("anyOf")
def _any_of(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    subs = schemas_of(schema["anyOf"], at)
    return e.algebra.formulas.disj([e.formula(s, at.down(i)) for i, s in enumerate(subs)])


@keyword("oneOf")
def _one_of(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    subs = schemas_of(schema["oneOf"], at)
    return e.algebra.formulas.one([e.formula(s, at.down(i)) for i, s in enumerate(subs)])


@keyword("not")
def _not(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    return e.algebra.formulas.neg(e.formula(schema["not"], at))


@keyword("if")
def _if(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    fs = e.algebra.formulas
    if "then" not in schema and "else" not in schema:
        return fs.true
    above = at._replace(pointer=at.pointer.rpartition("/")[0])
    condition = e.formula(schema["if"], at)
    then = e.formula(schema.get("then", True), above.down("then"))
    other = e.formula(schema.get("else", True), above.down("else"))
    return fs.conj([fs.disj([fs.neg(condition), then]), fs.disj([condition, other])])


@keyword("minLength", "maxLength")
def _length(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    low = least_of(schema, "minLength", MOST_CHARACTERS, at)
    high = count_of(schema["maxLength"], at) if "maxLength" in schema else None
    return e.algebra.text("length", (low, high)) if low or high is not None else e.algebra.formulas.true


@keyword("pattern")
def _pattern(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    if not isinstance(schema["pattern"], str):
        raise refuse("must be a string", at)
    try_machine(at, pattern_machine, schema["pattern"])
    return e.algebra.text("pattern", schema["pattern"])


@keyword("format")
def _format(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    name = schema["format"]
    if isinstance(name, str) and is_enforced_format(name):
        try_machine(at, format_machine, name)
        return e.algebra.text("format", name)
    return e.algebra.formulas.true


@keyword(GRAMMAR_KEYWORD)
def _definition(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    found = schema[GRAMMAR_KEYWORD]
    what = (found.get("syntax"), found.get("definition")) if isinstance(found, dict) else ()
    if not what or not all(isinstance(part, str) for part in what):
        raise refuse('must be an object with "syntax" and "definition"', at)
    try_machine(at, definition_machine, *what)
    return e.algebra.text("definition", what)


@keyword("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
def _range(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    low = _bound(schema, "minimum", "exclusiveMinimum", at, max)
    high = _bound(schema, "maximum", "exclusiveMaximum", at, min)
    if low is None and high is None:
        return e.algebra.formulas.true
    try_machine(at, number_leaf_machine, "range", (low, high))
    return e.algebra.number("range", (low, high))


def _bound(
    schema: dict[str, Any], plain: str, exclusive: str, at: At, tighter: Callable[..., Any]
) -> tuple[Decimal, bool] | None:
    """(bound, exclusive?); draft 4 spells exclusiveness as a boolean beside the bound."""
    bounds = []
    strict = schema.get(exclusive)
    if plain in schema:
        bounds.append((decimal_of(schema[plain], at), strict is True))
    if exclusive in schema and not isinstance(strict, bool):
        bounds.append((decimal_of(strict, at), True))
    if not bounds:
        return None
    edge = tighter(b[0] for b in bounds)
    return edge, any(b[1] for b in bounds if b[0] == edge)


@keyword("multipleOf")
def _multiple(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    step = decimal_of(schema["multipleOf"], at)
    if step <= 0:
        raise refuse("must be greater than 0", at)
    try_machine(at, number_leaf_machine, "multiple", step)
    return e.algebra.number("multiple", step)
