"""A JSON Schema as a formula: every keyword becomes leaves, or the schema is refused by name. Nothing is ignored.

Unknown keywords are annotations (JSON Schema core 6.5). Drafts 4 to 7 are read where they spell things otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from imp_server.core import GrammarRefused
from imp_server.grammar.algebra import Algebra
from imp_server.grammar.formula import Formula
from imp_server.grammar.leaves import (
    ANY_TYPE,
    ARRAY,
    BOOLEAN,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    Contains,
    Count,
    Items,
    Length,
    Names,
    Unique,
)
from imp_server.grammar.scalars import number_machine, string_machine
from imp_server.grammar.schema import unevaluated
from imp_server.grammar.schema.document import At, Document
from imp_server.grammar.subschema import Sub
from imp_server.grammar.text_machines import (
    format_machine,
    is_enforced_format,
    number_leaf_machine,
    pattern_machine,
)
from imp_server.grammar.values import canonical, number_of

TYPE_BITS = {
    "null": NULL,
    "boolean": BOOLEAN,
    "number": NUMBER,
    "string": STRING,
    "object": OBJECT,
    "array": ARRAY,
}
MAX_INPLACE_DEPTH = 200
MOST_CHARACTERS, MOST_ITEMS, MOST_PROPERTIES = 100_000, 4096, 2048
"""Sizes that a schema may demand; what it merely allows has no limit."""


class Expander:
    """Turns the subschemas of one document into formulas, each once."""

    def __init__(self, document: Document, algebra: Algebra, digest: str, integers: str = "digits") -> None:
        """`digest` names the document: subschemas that depend on their place are known by it.

        `integers`: digits (1) | any (also 1.0, which JSON Schema counts as an integer and many clients don't).
        """
        self.integers = integers
        self.document = document
        self.algebra = algebra
        self._digest = digest
        self._done: dict[tuple[Any, ...], Formula] = {}
        self._active: set[tuple[Any, ...]] = set()

    def root(self) -> Formula:
        return self.formula(self.document.root, self.document.start)

    def sub(self, schema: Any, at: At) -> Sub:
        """A child value's schema, unexpanded."""
        if schema is True or schema == {}:
            return self.algebra.any
        if schema is False:
            return self.algebra.never
        if not isinstance(schema, dict):
            raise refuse("a schema must be an object or a boolean", at)
        if at.draft == 2020 and self.document.is_shared(schema):
            key: tuple[Any, ...] = ("content", self.integers, json.dumps(schema, sort_keys=True))
        else:
            key = ("place", self._digest, id(schema), at.base, at.draft, at.scope)
        return self.algebra.sub(key, lambda: self.formula(schema, at))

    def formula(self, schema: Any, at: At) -> Formula:
        """What the schema asks of the value itself. Raises GrammarRefused."""
        fs = self.algebra.formulas
        if isinstance(schema, bool):
            return fs.constant(schema)
        if not isinstance(schema, dict):
            raise refuse("a schema must be an object or a boolean", at)
        at = self.document.place(schema, at)
        key = (id(schema), at.base, at.scope)
        done = self._done.get(key)
        if done is not None:
            return done
        if key in self._active:
            raise refuse("$ref leads back to itself without entering a value", at)
        if len(self._active) > MAX_INPLACE_DEPTH:
            raise refuse(f"more than {MAX_INPLACE_DEPTH} references and combinations deep", at)
        self._active.add(key)
        try:
            formula = self._expand(schema, at)
        finally:
            self._active.discard(key)
        self._done[key] = formula
        return formula

    def _expand(self, schema: dict[str, Any], at: At) -> Formula:
        if "$ref" in schema and at.draft <= 7:
            return self.reference("$ref", schema["$ref"], at)
        parts: list[Formula] = []
        for keyword in schema:
            read = KEYWORDS.get(keyword)
            if read is not None:
                parts.append(read(self, schema, at.down(keyword)))
        parts += [
            unevaluated.properties(self, schema, at),
            unevaluated.items(self, schema, at),
        ]
        formula = self.algebra.formulas.conj(parts)
        self._try_machines(formula, at)
        return formula

    def _try_machines(self, formula: Formula, at: At) -> None:
        """Combine what is asked of strings and numbers now, so that a product above its budget is refused here."""
        for kind, make in ((STRING, string_machine), (NUMBER, number_machine)):
            restricted = self.algebra.formulas.restrict(formula, kind)
            if restricted.args:
                try_machine(at, make, self.algebra, restricted)

    def target(self, keyword: str, reference: Any, at: At) -> tuple[Any, At]:
        """The schema that a reference keyword names, dynamic scope included."""
        if not isinstance(reference, str):
            raise refuse(f"{keyword} must be a string", at)
        schema, place = self.document.resolve(reference, at)
        fragment = reference.partition("#")[2]
        if keyword == "$recursiveRef" and isinstance(schema, dict) and schema.get("$recursiveAnchor") is True:
            raise refuse("$recursiveRef with $recursiveAnchor isn't supported; use $dynamicRef", at)
        if keyword == "$dynamicRef" and fragment and not fragment.startswith("/"):
            anchors = self.document.dynamic_anchors
            if (place.base, fragment) in anchors and anchors[place.base, fragment] is schema:
                for resource in at.scope:
                    if (resource, fragment) in anchors:
                        schema = anchors[resource, fragment]
                        return schema, self.document.place(schema, place._replace(base=resource))
        return schema, place

    def reference(self, keyword: str, reference: Any, at: At) -> Formula:
        schema, place = self.target(keyword, reference, at)
        return self.formula(schema, place)


def refuse(message: str, at: At) -> GrammarRefused:
    keyword = at.pointer.rpartition("/")[2]
    where = f"{keyword}: " if keyword and not message.startswith(keyword) else ""
    return GrammarRefused(f"{where}{message} (at #{at.pointer})", pointer=at.pointer)


def try_machine(at: At, make: Callable[..., object], *what: Any) -> None:
    """Make a machine now, so that a refusal names the keyword that asked for it."""
    try:
        make(*what)
    except GrammarRefused as refusal:
        raise refuse(refusal.message, at) from None


Reader = Callable[[Expander, dict[str, Any], At], Formula]
KEYWORDS: dict[str, Reader] = {}


def keyword(*names: str) -> Callable[[Reader], Reader]:
    def register(read: Reader) -> Reader:
        for name in names:
            KEYWORDS[name] = read
        return read

    return register


def _name(at: At) -> str:
    return at.pointer.rpartition("/")[2]


def count_of(value: Any, at: At) -> int:
    """A non-negative integer, possibly spelled 2.0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise refuse("must be a non-negative integer", at)
    return int(value)


def least_of(schema: dict[str, Any], keyword: str, most: int, at: At) -> int:
    """A minimum that a completion can reach."""
    low = count_of(schema.get(keyword, 0), at)
    if low > most:
        raise refuse(f"{keyword} above {most} isn't supported", at)
    return low


def decimal_of(value: Any, at: At) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse("must be a number", at)
    return number_of(value)


def schemas_of(value: Any, at: At) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise refuse("must be a non-empty list of schemas", at)
    return value


def map_of(value: Any, at: At) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse("must be an object", at)
    return value


def names_of(value: Any, at: At) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(n, str) for n in value):
        raise refuse("must be a list of property names", at)
    return value


@keyword("$ref", "$dynamicRef", "$recursiveRef")
def _ref(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    name = {"$ref": "$ref", "$dynamicRef": "$dynamicRef"}.get(_name(at), "$recursiveRef")
    return e.reference(name, schema[name], at)


@keyword("type")
def _type(e: Expander, schema: dict[str, Any], at: At) -> Formula:
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
def _enum(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    if not isinstance(schema["enum"], list):
        raise refuse("must be a list", at)
    return e.algebra.one_of_values(canonical(v) for v in schema["enum"])


@keyword("const")
def _const(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    return e.algebra.equals(canonical(schema["const"]))


@keyword("allOf")
def _all_of(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    subs = schemas_of(schema["allOf"], at)
    return e.algebra.formulas.conj([e.formula(s, at.down(i)) for i, s in enumerate(subs)])


@keyword("anyOf")
def _any_of(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    subs = schemas_of(schema["anyOf"], at)
    return e.algebra.formulas.disj([e.formula(s, at.down(i)) for i, s in enumerate(subs)])


@keyword("oneOf")
def _one_of(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    subs = schemas_of(schema["oneOf"], at)
    return e.algebra.formulas.one([e.formula(s, at.down(i)) for i, s in enumerate(subs)])


@keyword("not")
def _not(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    return e.algebra.formulas.neg(e.formula(schema["not"], at))


@keyword("if")
def _if(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    fs = e.algebra.formulas
    if "then" not in schema and "else" not in schema:
        return fs.true
    above = at._replace(pointer=at.pointer.rpartition("/")[0])
    condition = e.formula(schema["if"], at)
    then = e.formula(schema.get("then", True), above.down("then"))
    other = e.formula(schema.get("else", True), above.down("else"))
    return fs.conj([fs.disj([fs.neg(condition), then]), fs.disj([condition, other])])


@keyword("minLength", "maxLength")
def _length(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    low = least_of(schema, "minLength", MOST_CHARACTERS, at)
    high = count_of(schema["maxLength"], at) if "maxLength" in schema else None
    return e.algebra.text("length", (low, high)) if low or high is not None else e.algebra.formulas.true


@keyword("pattern")
def _pattern(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    if not isinstance(schema["pattern"], str):
        raise refuse("must be a string", at)
    try_machine(at, pattern_machine, schema["pattern"])
    return e.algebra.text("pattern", schema["pattern"])


@keyword("format")
def _format(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    name = schema["format"]
    if isinstance(name, str) and is_enforced_format(name):
        try_machine(at, format_machine, name)
        return e.algebra.text("format", name)
    return e.algebra.formulas.true


@keyword("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
def _range(e: Expander, schema: dict[str, Any], at: At) -> Formula:
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
def _multiple(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    step = decimal_of(schema["multipleOf"], at)
    if step <= 0:
        raise refuse("must be greater than 0", at)
    try_machine(at, number_leaf_machine, "multiple", step)
    return e.algebra.number("multiple", step)


@keyword("properties", "patternProperties", "additionalProperties")
def _properties(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    above = at._replace(pointer=at.pointer.rpartition("/")[0])
    declared = map_of(schema.get("properties", {}), at)
    patterns = map_of(schema.get("patternProperties", {}), at)
    if len(declared) > MOST_PROPERTIES:
        raise refuse(f"more than {MOST_PROPERTIES} properties aren't supported", at)
    names = {n: e.sub(s, above.down("properties", n)) for n, s in declared.items()}
    for pattern in patterns:
        try_machine(above.down("patternProperties", pattern), pattern_machine, pattern)
    matched = [(p, e.sub(s, above.down("patternProperties", p))) for p, s in patterns.items()]
    rest = e.sub(schema.get("additionalProperties", True), above.down("additionalProperties"))
    return e.algebra.props(names, matched, rest)


@keyword("required")
def _required(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    names = names_of(schema["required"], at)
    if len(names) > MOST_PROPERTIES:
        raise refuse(f"more than {MOST_PROPERTIES} required properties aren't supported", at)
    return e.algebra.required(names)


@keyword("minProperties", "maxProperties")
def _count(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    low = least_of(schema, "minProperties", MOST_PROPERTIES, at)
    high = count_of(schema["maxProperties"], at) if "maxProperties" in schema else None
    if not low and high is None:
        return e.algebra.formulas.true
    return e.algebra.formulas.leaf(e.algebra.leaves.get(Count, low, high))


@keyword("propertyNames")
def _names(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    sub = e.sub(schema["propertyNames"], at)
    if sub is e.algebra.any:
        return e.algebra.formulas.true
    return e.algebra.formulas.leaf(e.algebra.leaves.get(Names, sub))


@keyword("dependentRequired")
def _dependent_required(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    found = map_of(schema["dependentRequired"], at)
    return e.algebra.formulas.conj(_if_present(e, k, e.algebra.required(names_of(v, at))) for k, v in found.items())


@keyword("dependentSchemas")
def _dependent_schemas(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    found = map_of(schema["dependentSchemas"], at)
    return e.algebra.formulas.conj(_if_present(e, k, e.formula(s, at.down(k))) for k, s in found.items())


@keyword("dependencies")
def _dependencies(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    parts = []
    for name, what in map_of(schema["dependencies"], at).items():
        if isinstance(what, str):
            what = [what]
        then = e.algebra.required(names_of(what, at)) if isinstance(what, list) else e.formula(what, at.down(name))
        parts.append(_if_present(e, name, then))
    return e.algebra.formulas.conj(parts)


def _if_present(e: Expander, name: str, then: Formula) -> Formula:
    fs = e.algebra.formulas
    absent = fs.neg(e.algebra.required([name]))
    return fs.disj([e.algebra.type_is(ANY_TYPE & ~OBJECT), absent, then])


@keyword("prefixItems", "items", "additionalItems")
def _items(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    above = at._replace(pointer=at.pointer.rpartition("/")[0])
    prefix: list[Any] = []
    rest: Any = True
    where, rest_key = "prefixItems", "items"
    if isinstance(schema.get("items"), list) and "prefixItems" not in schema:
        prefix, where, rest_key = schema["items"], "items", "additionalItems"
        rest = schema.get("additionalItems", True)
    else:
        if "prefixItems" in schema:
            prefix = schemas_of(schema["prefixItems"], at)
        rest = schema.get("items", True)
    subs = tuple(e.sub(s, above.down(where, i)) for i, s in enumerate(prefix))
    last = e.sub(rest, above.down(rest_key))
    if last is e.algebra.any and all(s is e.algebra.any for s in subs):
        return e.algebra.formulas.true
    return e.algebra.formulas.leaf(e.algebra.leaves.get(Items, subs, last))


@keyword("minItems", "maxItems")
def _item_count(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    low = least_of(schema, "minItems", MOST_ITEMS, at)
    high = count_of(schema["maxItems"], at) if "maxItems" in schema else None
    if not low and high is None:
        return e.algebra.formulas.true
    return e.algebra.formulas.leaf(e.algebra.leaves.get(Length, low, high))


@keyword("contains")
def _contains(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    low, high = 1, None
    if at.draft >= 2019:
        low = count_of(schema.get("minContains", 1), at)
        high = count_of(schema["maxContains"], at) if "maxContains" in schema else None
    sub = e.sub(schema["contains"], at)
    if not low and high is None:
        return e.algebra.formulas.true
    return e.algebra.formulas.leaf(e.algebra.leaves.get(Contains, sub, low, high))


@keyword("uniqueItems")
def _unique(e: Expander, schema: dict[str, Any], at: At) -> Formula:
    if not isinstance(schema["uniqueItems"], bool):
        raise refuse("must be a boolean", at)
    if not schema["uniqueItems"]:
        return e.algebra.formulas.true
    return e.algebra.formulas.leaf(e.algebra.leaves.get(Unique, frozenset()))
