"""Closed by default: what an object's keys are among, where its schema says nothing of others.

A schema without `additionalProperties` allows any key, and a small model that may write any key writes many. Closed, a
value satisfies the schema *and* a second one that is made here, which names the declared keys of each object: at the
place of the object as a whole, never inside of an applicator. So whatever is written satisfies the schema itself.

The keys of a place are those that any schema applied there mentions, in whatever combination: in `properties`,
`required`, `dependent*`, `const`, `enum` and `patternProperties`. A place stays open without any, and where one of them
says anything of additional or unevaluated properties.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from imp_server.core import GrammarRefused
from imp_server.core.turns import spend
from imp_server.grammar.values.schema.document import At
from imp_server.grammar.values.schema.expand import Expander
from imp_server.grammar.values.text_machines import pattern_machine

KEYWORD = "x-imp-extra-properties"
"""At the root of a schema: closed | allow."""
MAX_PLACES = 4_000
"""Places deeper inside stay open."""
UNITS_PER_SCHEMA = 3
"""What it costs to find what applies in the place of one."""
INLINE = 400
"""Characters of a place that is spelled out wherever it occurs again."""
RISKY = ("minProperties", "maxProperties", "propertyNames", "uniqueItems")
"""What the keys that a schema doesn't declare can be needed for."""
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_NAMED = ("dependentSchemas", "dependencies")
_HIDDEN: dict[str, Any] = {}
"""What a reference leaves of the schema around it in drafts 4 to 7."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class Part(NamedTuple):
    """A subschema that applies somewhere, or a constant that may stand there."""

    at: At
    schema: Any = True
    constant: Any = None
    is_constant: bool = False


Key = frozenset[tuple[int, str]]


class ValuePlace(NamedTuple):
    """Where a value stands. `parts`: what is said of it; `nodes`: the same with everything applied in place."""

    key: Key
    parts: tuple[Part, ...]
    nodes: tuple[Part, ...]
    schema: Any
    """What its keys are among, as a schema."""
    below: tuple[Key, ...]

    @property
    def is_risky(self) -> bool:
        return any(not n.is_constant and any(k in n.schema for k in RISKY) for n in self.nodes)


class Closing:
    """The second schema of a document, and the places that it was made of."""

    def __init__(self, expander: Expander, opened: frozenset[Key] = frozenset()) -> None:
        """`opened`: places that stay open."""
        self._expander = expander
        self._opened = opened
        self.places: dict[Key, ValuePlace] = {}
        """Inner ones first."""
        self._numbers: dict[Key, int] = {}
        self._referred: set[Key] = set()
        document = expander.document
        root = self._of([Part(document.start, document.root)])
        self.schema = self.standing(root)

    def standing(self, schema: Any) -> Any:
        """A part of the second schema with the definitions that it refers to."""
        if not isinstance(schema, dict) or not self._referred:
            return schema
        return {**schema, "$defs": {str(self._numbers[key]): self.places[key].schema for key in self._referred}}

    def _of(self, parts: Iterable[Part]) -> Any:
        nodes = tuple(self._in_place(parts))
        key: Key = frozenset((id(n.constant if n.is_constant else n.schema), n.at.base) for n in nodes)
        known = self.places.get(key)
        if known is not None and (known.schema is True or len(json.dumps(known.schema)) <= INLINE):
            return known.schema
        if key in self._numbers:
            self._referred.add(key)
            return {"$ref": f"#/$defs/{self._numbers[key]}"}
        if not nodes or len(self._numbers) >= MAX_PLACES:
            return True
        spend(10)
        self._numbers[key] = len(self._numbers)
        below: list[Key] = []
        schema = {**self._object(nodes, key), **self._array(nodes, below)} or True
        self.places[key] = ValuePlace(key, tuple(parts), nodes, schema, tuple(below))
        return schema

    def _in_place(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Schemas and constants that apply to one value, each once."""
        todo, seen = list(reversed(list(parts))), set()
        while todo:
            part = todo.pop()
            if part.is_constant:
                yield part
                continue
            if not isinstance(part.schema, dict):
                continue
            at = self._expander.document.place(part.schema, part.at)
            if (id(part.schema), at.base) in seen:
                continue
            seen.add((id(part.schema), at.base))
            spend(UNITS_PER_SCHEMA)
            hidden = at.hides and "$ref" in part.schema
            yield Part(at, _HIDDEN if hidden else part.schema)
            todo += reversed(list(self._applied(part.schema, at, hidden)))

    def _applied(self, schema: dict[str, Any], at: At, hidden: bool) -> Iterator[Part]:
        for name in ("$ref",) if hidden else _REFERENCES:
            if name in schema:
                target, place = self._expander.target(name, schema[name], at.down(name))
                yield Part(place, target)
        if hidden:
            return
        for name in _LISTS:
            yield from (Part(at.down(name, i), s) for i, s in enumerate(_list(schema, name)))
        yield from (Part(at.down(name), schema[name]) for name in _SINGLE if name in schema)
        for name in _NAMED:
            yield from (Part(at.down(name, key), s) for key, s in _map(schema, name).items())
        constants = [schema["const"]] if "const" in schema else _list(schema, "enum")
        yield from (Part(at, constant=value, is_constant=True) for value in constants)

    # --- objects ----------------------------------------------------------------------------

    def _object(self, nodes: tuple[Part, ...], key: Key) -> dict[str, Any]:
        schemas = [n for n in nodes if not n.is_constant]
        constants = [n for n in nodes if n.is_constant and isinstance(n.constant, dict)]
        names = dict.fromkeys(name for n in nodes for name in _names(n))
        patterns = dict.fromkeys(p for n in schemas for p in _map(n.schema, "patternProperties"))
        open_ = any(k in n.schema for n in schemas for k in ("additionalProperties", "unevaluatedProperties"))
        is_closed = bool(names or patterns) and not open_ and key not in self._opened
        spend(len(names) * len(schemas))
        among = {name: [part for n in schemas for part in self._members(n, name)] for name in names}
        for n in constants:
            for name, value in n.constant.items():
                among[name].append(Part(n.at, constant=value, is_constant=True))
        matched = [part for p in patterns for n in schemas for part in _listed(n, "patternProperties", p)]
        matched += [part for name in names if any(_matches(p, name) for p in patterns) for part in among[name]]
        every = self._of(matched)
        properties = {name: self._of(parts) for name, parts in among.items()}
        rest: Any = False if is_closed else self._of(part for n in schemas for part in _others(n))
        if rest is True and every is True:
            properties = {name: s for name, s in properties.items() if s is not True}
        found: dict[str, Any] = {}
        if properties:
            found["properties"] = properties
        if patterns and not (rest is True and every is True):
            found["patternProperties"] = dict.fromkeys(patterns, every)
        if rest is not True:
            found["additionalProperties"] = rest
        return found

    def _members(self, node: Part, name: str) -> Iterator[Part]:
        """What a schema says of a property."""
        own = list(_listed(node, "properties", name))
        for pattern in _map(node.schema, "patternProperties"):
            if _matches(pattern, name):
                own += _listed(node, "patternProperties", pattern)
        yield from own or _others(node)

    # --- arrays -----------------------------------------------------------------------------

    def _array(self, nodes: tuple[Part, ...], below: list[Key]) -> dict[str, Any]:
        schemas = [n for n in nodes if not n.is_constant]
        constants = [n for n in nodes if n.is_constant and isinstance(n.constant, list)]
        n_first = max((len(_first(n)[1]) for n in schemas), default=0)
        n_first = max(n_first, *(len(n.constant) for n in constants)) if constants else n_first

        def item(index: int) -> Any:
            parts = [part for n in schemas for part in _item(n, index)]
            parts += [
                Part(n.at, constant=n.constant[index], is_constant=True) for n in constants if index < len(n.constant)
            ]
            below.append(
                frozenset((id(n.constant if n.is_constant else n.schema), n.at.base) for n in self._in_place(parts))
            )
            return self._of(parts)

        first, rest = [item(i) for i in range(n_first)], item(n_first)
        found: dict[str, Any] = {}
        if any(s is not True for s in first):
            found["prefixItems"] = first
        if rest is not True:
            found = {"prefixItems": first} if first else {}
            found["items"] = rest
        return found


def _map(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    """Whoever reads the schema itself refuses what has another form."""
    found = schema.get(keyword)
    return found if isinstance(found, dict) else {}


def _list(schema: dict[str, Any], keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def _names(part: Part) -> Iterator[str]:
    if part.is_constant:
        yield from part.constant if isinstance(part.constant, dict) else ()
        return
    schema = part.schema
    for keyword in ("properties", "dependentRequired", *_NAMED):
        yield from _map(schema, keyword)
    yield from (name for name in _list(schema, "required") if isinstance(name, str))
    for keyword in ("dependentRequired", "dependencies"):
        for listed in _map(schema, keyword).values():
            names = [listed] if isinstance(listed, str) else listed if isinstance(listed, list) else []
            yield from (name for name in names if isinstance(name, str))


def _listed(node: Part, keyword: str, name: str) -> Iterator[Part]:
    held = _map(node.schema, keyword)
    if name in held:
        yield Part(node.at.down(keyword, name), held[name])


def _others(node: Part) -> Iterator[Part]:
    """What a schema says of the properties that it doesn't declare."""
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in node.schema:
            yield Part(node.at.down(keyword), node.schema[keyword])


def _first(node: Part) -> tuple[str, list[Any], str]:
    """(keyword of the first items, their schemas, keyword of the rest)."""
    items = node.schema.get("items")
    if isinstance(items, list) and "prefixItems" not in node.schema:
        return "items", items, "additionalItems"
    return "prefixItems", _list(node.schema, "prefixItems"), "items"


def _item(node: Part, index: int) -> Iterator[Part]:
    where, first, rest = _first(node)
    if index < len(first):
        yield Part(node.at.down(where, index), first[index])
    elif rest in node.schema:
        yield Part(node.at.down(rest), node.schema[rest])
    for keyword in ("contains", "unevaluatedItems"):
        if keyword in node.schema:
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


Holds = Callable[[ValuePlace, Any], bool]
"""Whether closing a place to what the second schema says leaves it the objects and arrays that it needs."""


def wants_closing(schema: Any) -> bool:
    """Raises GrammarRefused for a word that the keyword doesn't know."""
    asked = schema.get(KEYWORD, "allow") if isinstance(schema, dict) else "allow"
    if asked not in ("closed", "allow"):
        raise GrammarRefused(f'{KEYWORD} must be "closed" or "allow" (at #/{KEYWORD})', pointer=f"/{KEYWORD}")
    return bool(asked == "closed")


def with_closing(schema: Any, closed: bool) -> Any:
    """The schema with a word about its objects, unless it has one itself."""
    if not isinstance(schema, dict) or KEYWORD in schema or not closed:
        return schema
    return {**schema, KEYWORD: "closed"}


def closing(expander: Expander, leaves_values: Holds) -> Any:
    """The second schema; True where nothing is closed."""
    opened: frozenset[Key] = frozenset()
    while True:
        made = Closing(expander, opened)
        lacking = next(
            (
                place
                for place in made.places.values()
                if place.is_risky
                and not _all_open(place, opened)
                and not leaves_values(place, made.standing(place.schema))
            ),
            None,
        )
        if lacking is None:
            return made.schema
        opened |= {lacking.key, *lacking.below}


def _all_open(place: ValuePlace, opened: frozenset[Key]) -> bool:
    return place.key in opened and opened.issuperset(place.below)
