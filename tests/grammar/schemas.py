"""Hypothesis strategies: schemas of every keyword over a small world, and JSON values of the same world."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

KEYS = ["a", "b", "c", "ab"]
STRINGS = ["", "a", "b", "ab", "ba", "aab", "é", 'q"', "\\", "😀"]
PATTERNS = ["^a", "b$", "^[ab]+$", "a.", "^.{2}$", "é|q", "^(a|ab)*$", "^$"]
NAME_PATTERNS = ["^a", "b$", "c", "^.$"]

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 6), st.sampled_from([0.5, 1.5, -0.5, 2.25]), st.sampled_from(STRINGS)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from([*KEYS, "zz", "é"]), inner, max_size=4)
    ),
    max_leaves=8,
)


def _keywords(schema: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    small = st.integers(0, 3)
    names = st.lists(st.sampled_from(KEYS), max_size=2, unique=True)
    several = st.lists(schema, min_size=1, max_size=3)
    return {
        "type": st.one_of(
            st.sampled_from(["string", "integer", "number", "object", "array", "boolean", "null"]),
            st.lists(
                st.sampled_from(["string", "integer", "object", "array", "null"]), min_size=1, max_size=3, unique=True
            ),
        ),
        "enum": st.lists(values, min_size=1, max_size=4, unique_by=repr),
        "const": values,
        "minLength": small,
        "maxLength": small,
        "pattern": st.sampled_from(PATTERNS),
        "properties": st.dictionaries(st.sampled_from(KEYS), schema, max_size=3),
        "patternProperties": st.dictionaries(st.sampled_from(NAME_PATTERNS), schema, max_size=2),
        "additionalProperties": schema,
        "required": names,
        "minProperties": small,
        "maxProperties": small,
        "propertyNames": schema,
        "dependentRequired": st.dictionaries(st.sampled_from(KEYS), names, max_size=2),
        "dependentSchemas": st.dictionaries(st.sampled_from(KEYS), schema, max_size=2),
        "prefixItems": several,
        "items": schema,
        "contains": schema,
        "minContains": small,
        "maxContains": small,
        "minItems": small,
        "maxItems": small,
        "uniqueItems": st.booleans(),
        "allOf": several,
        "anyOf": several,
        "oneOf": several,
        "not": schema,
        "if": schema,
        "then": schema,
        "else": schema,
        "unevaluatedProperties": schema,
        "unevaluatedItems": schema,
        "minimum": st.sampled_from([-2, 0, 1, 1.5]),
        "maximum": st.sampled_from([0, 2, 3.5, 5]),
        "exclusiveMinimum": st.sampled_from([-1, 0, 0.5]),
        "exclusiveMaximum": st.sampled_from([1, 4, 2.5]),
        "multipleOf": st.sampled_from([1, 2, 0.5, 1.5, 3]),
    }


def _schema(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    table = _keywords(inner)

    @st.composite
    def build(draw: st.DrawFn) -> dict[str, Any]:
        chosen = draw(st.lists(st.sampled_from(sorted(table)), min_size=1, max_size=4, unique=True))
        return {name: draw(table[name]) for name in chosen}

    return build()


schemas: st.SearchStrategy[Any] = st.recursive(st.booleans() | st.just({}), _schema, max_leaves=6)
