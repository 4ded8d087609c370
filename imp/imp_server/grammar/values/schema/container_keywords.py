"""Keywords about the members of objects and the items of arrays."""

from __future__ import annotations

from typing import Any

from imp_server.grammar.values.formula import Formula
from imp_server.grammar.values.leaves import (
    ANY_TYPE,
    OBJECT,
    Contains,
    Count,
    Items,
    Length,
    Names,
    Unique,
)
from imp_server.grammar.values.schema.document import At
from imp_server.grammar.values.schema.reading import (
    MOST_ITEMS,
    MOST_PROPERTIES,
    Expanding,
    count_of,
    keyword,
    least_of,
    map_of,
    names_of,
    refuse,
    schemas_of,
    try_machine,
)
from imp_server.grammar.values.text_machines import pattern_machine


@keyword("properties", "patternProperties", "additionalProperties")
def _properties(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
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
    return e.algebra.props(names, matched, rest, e.key_order == "schema")


@keyword("required")
def _required(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    names = names_of(schema["required"], at)
    if len(names) > MOST_PROPERTIES:
        raise refuse(f"more than {MOST_PROPERTIES} required properties aren't supported", at)
    return e.algebra.required(names)


@keyword("minProperties", "maxProperties")
def _count(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    low = least_of(schema, "minProperties", MOST_PROPERTIES, at)
    high = count_of(schema["maxProperties"], at) if "maxProperties" in schema else None
    if not low and high is None:
        return e.algebra.formulas.true
    return e.algebra.formulas.leaf(e.algebra.leaves.get(Count, low, high))


@keyword("propertyNames")
def _names(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    sub = e.sub(schema["propertyNames"], at)
    if sub is e.algebra.any:
        return e.algebra.formulas.true
    return e.algebra.formulas.leaf(e.algebra.leaves.get(Names, sub))


@keyword("dependentRequired")
def _dependent_required(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    found = map_of(schema["dependentRequired"], at)
    return e.algebra.formulas.conj(_if_present(e, k, e.algebra.required(names_of(v, at))) for k, v in found.items())


@keyword("dependentSchemas")
def _dependent_schemas(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    found = map_of(schema["dependentSchemas"], at)
    return e.algebra.formulas.conj(_if_present(e, k, e.formula(s, at.down(k))) for k, s in found.items())


@keyword("dependencies")
def _dependencies(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    parts = []
    for name, what in map_of(schema["dependencies"], at).items():
        if isinstance(what, str):
            what = [what]
        then = e.algebra.required(names_of(what, at)) if isinstance(what, list) else e.formula(what, at.down(name))
        parts.append(_if_present(e, name, then))
    return e.algebra.formulas.conj(parts)


def _if_present(e: Expanding, name: str, then: Formula) -> Formula:
    fs = e.algebra.formulas
    absent = fs.neg(e.algebra.required([name]))
    return fs.disj([e.algebra.type_is(ANY_TYPE & ~OBJECT), absent, then])


@keyword("prefixItems", "items", "additionalItems")
def _items(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
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
def _item_count(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    low = least_of(schema, "minItems", MOST_ITEMS, at)
    high = count_of(schema["maxItems"], at) if "maxItems" in schema else None
    if not low and high is None:
        return e.algebra.formulas.true
    return e.algebra.formulas.leaf(e.algebra.leaves.get(Length, low, high))


@keyword("contains")
def _contains(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    low, high = 1, None
    if at.draft >= 2019:
        low = count_of(schema.get("minContains", 1), at)
        high = count_of(schema["maxContains"], at) if "maxContains" in schema else None
    sub = e.sub(schema["contains"], at)
    if not low and high is None:
        return e.algebra.formulas.true
    return e.algebra.formulas.leaf(e.algebra.leaves.get(Contains, sub, low, high))


@keyword("uniqueItems")
def _unique(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    if not isinstance(schema["uniqueItems"], bool):
        raise refuse("must be a boolean", at)
    if not schema["uniqueItems"]:
        return e.algebra.formulas.true
    return e.algebra.formulas.leaf(e.algebra.leaves.get(Unique, frozenset()))
