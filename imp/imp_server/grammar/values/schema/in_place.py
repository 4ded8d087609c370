"""What applies to one value: the schemas that stand in its place, through references and applicators, and constants.

Only what matters for the names of an object's keys, or of those of objects further in, is kept (closing.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from imp_server.core import GrammarRefused
from imp_server.core.turns import charge, spend
from imp_server.grammar.values.schema.document import At
from imp_server.grammar.values.schema.expand import Expander
from imp_server.grammar.values.text_machines import pattern_machine

UNITS_PER_SCHEMA = 6
"""What it costs to find what a schema applies in its place, for the first time."""
N_BYTES = 100
"""Memory of a part that is kept."""
RISKY = frozenset(("minProperties", "maxProperties", "propertyNames", "uniqueItems"))
"""What the keys that a schema doesn't declare can be needed for."""
NAMED = ("dependentSchemas", "dependencies")
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SPEAKS = RISKY.union(
    _LISTS, _SINGLE, NAMED,
    ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "required",
     "dependentRequired", "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "minItems",
     "maxItems", "minContains", "maxContains"),
)  # fmt: skip
"""A schema without any of these, and without listed objects or arrays, doesn't matter here itself."""


class Part(NamedTuple):
    """A subschema that applies somewhere, or a constant that may stand there."""

    at: At
    schema: Any = True
    constant: Any = None
    is_constant: bool = False

    @property
    def name(self) -> Name:
        return id(self.constant if self.is_constant else self.schema), self.at.base, self.at.scope


Name = tuple[int, str, tuple[str, ...]]
"""What a part is known by: itself, and where it stands as far as that matters."""
Key = frozenset[Name]


class _Applied(NamedTuple):
    """What a schema says itself, if anything, and what it applies in its place, last ones first."""

    own: Part | None
    others: tuple[Part, ...]


class InPlace:
    """Owner of what is known of a document's schemas: what applies in the place of each."""

    def __init__(self, expander: Expander) -> None:
        self._expander = expander
        self._applied: dict[Name, _Applied] = {}
        self._all: dict[Name, dict[Name, Part]] = {}
        self._matching: dict[tuple[str, str], bool] = {}

    def nodes(self, parts: Iterable[Part]) -> dict[Name, Part]:
        """Schemas and constants that apply to one value."""
        found: dict[Name, Part] = {}
        for part in parts:
            if part.is_constant:
                spend()
                if isinstance(part.constant, dict | list):
                    found[part.name] = part
            elif isinstance(part.schema, dict):
                applied = self._all_of(part)
                spend(1 + len(applied) // 8)
                found.update(applied)
        return found

    def matches(self, pattern: str, name: str) -> bool:
        """Whether a pattern of names is found in one."""
        known = self._matching.get((pattern, name))
        if known is None:
            charge(N_BYTES, 2 + len(name) // 4)
            known = self._matching[pattern, name] = _matches(pattern, name)
        return known

    def _all_of(self, part: Part) -> dict[Name, Part]:
        name = part.name
        known = self._all.get(name)
        if known is None:
            found = {one.name: one for one in self._walked(part)}
            charge(N_BYTES * (1 + len(found)), 1 + len(found) // 2)
            known = self._all[name] = found
        return known

    def _walked(self, part: Part) -> Iterator[Part]:
        todo, seen = [part], set()
        while todo:
            part = todo.pop()
            if part.is_constant:
                yield part
                continue
            if not isinstance(part.schema, dict):
                continue
            name = part.name
            if name in seen:
                continue
            seen.add(name)
            applied = self._applied.get(name)
            if applied is None:
                applied = self._applied[name] = self._found(part)
            spend(1 + len(applied.others) // 4)
            if applied.own is not None:
                yield applied.own
            todo += applied.others

    def _found(self, part: Part) -> _Applied:
        charge(N_BYTES, UNITS_PER_SCHEMA)
        schema = part.schema
        at = self._expander.document.place(schema, part.at)
        hidden = at.hides and "$ref" in schema
        others = []
        for other in self._applies(schema, at, hidden):
            charge(N_BYTES, 2)
            others.append(other)
        others.reverse()
        speaks = not hidden and (not _SPEAKS.isdisjoint(schema) or any(other.is_constant for other in others))
        return _Applied(Part(at, schema) if speaks else None, tuple(others))

    def _applies(self, schema: dict[str, Any], at: At, hidden: bool) -> Iterator[Part]:
        for name in ("$ref",) if hidden else _REFERENCES:
            if name in schema:
                target, place = self._expander.target(name, schema[name], at.down(name))
                yield Part(place, target)
        if hidden:
            return
        for name in _LISTS:
            yield from (Part(at.down(name, i), s) for i, s in enumerate(keyword_list(schema, name)))
        yield from (Part(at.down(name), schema[name]) for name in _SINGLE if name in schema)
        for name in NAMED:
            yield from (Part(at.down(name, key), s) for key, s in keyword_map(schema, name).items())
        constants = [schema["const"]] if "const" in schema else keyword_list(schema, "enum")
        spend(len(constants) // 16)
        for value in constants:
            if isinstance(value, dict | list):
                yield Part(at, constant=value, is_constant=True)


def keyword_map(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    """Whoever reads the schema itself refuses what has another form."""
    found = schema.get(keyword)
    return found if isinstance(found, dict) else {}


def keyword_list(schema: dict[str, Any], keyword: str) -> list[Any]:
    """As `keyword_map`."""
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def listed(node: Part, keyword: str, name: str) -> Iterator[Part]:
    """What stands under a name."""
    held = keyword_map(node.schema, keyword)
    if name in held:
        yield Part(node.at.down(keyword, name), held[name])


def others(node: Part) -> Iterator[Part]:
    """What a schema says of the properties that it doesn't declare, but for true and false."""
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if isinstance(node.schema.get(keyword), dict):
            yield Part(node.at.down(keyword), node.schema[keyword])


def _matches(pattern: str, name: str) -> bool:
    try:
        machine = pattern_machine(pattern)
    except GrammarRefused:
        return False  # whoever reads the schema itself refuses it
    state = machine.start
    for byte in name.encode("utf-8", "surrogatepass"):
        if state < 0:
            return False
        state = machine.step(state, byte)
    return state >= 0 and machine.accepts(state)
