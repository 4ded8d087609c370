"""Closed by default: what an object's keys are among, where its schema says nothing of others.

A schema without `additionalProperties` allows any key, and a small model that may write any key writes many. Closed, a
value satisfies the schema *and* a second one that is made here, which names the declared keys of each object: at the
place of the object as a whole, never inside of an applicator. So whatever is written satisfies the schema itself.

The keys of a place are those that any schema applied there mentions, in whatever combination: in `properties`,
`required`, `dependent*`, `const`, `enum` and `patternProperties`. A place stays open without any, and where one of them
says anything of additional or unevaluated properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from imp_server.core import GrammarRefused
from imp_server.core.turns import GaveUp, spend
from imp_server.grammar.values.schema.expand import Expander
from imp_server.grammar.values.schema.in_place import (
    NAMED,
    RISKY,
    InPlace,
    Key,
    Part,
    keyword_list,
    keyword_map,
    listed,
    others,
)

KEYWORD = "x-imp-extra-properties"
"""At the root of a schema: closed | allow."""
MAX_PLACES = 4_000
MAX_DEPTH = 180
"""Places inside each other; with more of either, closing is given up."""
INLINE = 400
"""Characters of a place that is spelled out wherever it occurs again."""


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
        return any(not n.is_constant and not RISKY.isdisjoint(n.schema) for n in self.nodes)


class Closing:
    """The second schema of a document, and the places that it was made of."""

    def __init__(
        self, expander: Expander, opened: frozenset[Key] = frozenset(), in_place: InPlace | None = None
    ) -> None:
        """`opened`: places that stay open."""
        self._in_place = in_place or InPlace(expander)
        self._opened = opened
        self.places: dict[Key, ValuePlace] = {}
        """Inner ones first."""
        self._numbers: dict[Key, int] = {}
        self._referred: set[Key] = set()
        self._depth = 0
        self._lengths: dict[int, int] = {}
        """Of what is known of places, about, by id."""
        document = expander.document
        root = self._of([Part(document.start, document.root)])
        self.schema = self.standing(root)

    def standing(self, schema: Any) -> Any:
        """A part of the second schema with the definitions that it refers to."""
        if not isinstance(schema, dict) or not self._referred:
            return schema
        spend(len(self._referred))
        return {**schema, "$defs": {str(self._numbers[key]): self.places[key].schema for key in self._referred}}

    def _of(self, parts: Sequence[Part]) -> Any:
        applied = self._in_place.nodes(parts)
        spend(1 + len(applied) // 4)
        key: Key = frozenset(applied)
        known = self.places.get(key)
        if known is not None and (known.schema is True or self._lengths[id(known.schema)] <= INLINE):
            return known.schema
        if key in self._numbers:
            self._referred.add(key)
            return {"$ref": f"#/$defs/{self._numbers[key]}"}
        if not applied:
            return True
        if len(self._numbers) >= MAX_PLACES or self._depth >= MAX_DEPTH:
            raise GaveUp(parts[0].at.pointer)
        nodes = tuple(applied.values())
        spend(10 + len(nodes))
        self._numbers[key] = len(self._numbers)
        below: list[Key] = []
        self._depth += 1
        schema = {**self._object(nodes, key), **self._array(nodes, below)} or True
        self._depth -= 1
        if isinstance(schema, dict):
            self._lengths[id(schema)] = sum(len(word) + self._length(held) for word, held in schema.items())
        self.places[key] = ValuePlace(key, tuple(parts), nodes, schema, tuple(below))
        return schema

    def _length(self, held: Any) -> int:
        """Of what a keyword holds: a schema, or several, by name or in a list."""
        if isinstance(held, dict) and id(held) not in self._lengths:
            return sum(4 + len(name) + self._lengths.get(id(s), 20) for name, s in held.items())
        if isinstance(held, list):
            return sum(2 + self._lengths.get(id(s), 20) for s in held)
        return self._lengths.get(id(held), 20)

    # --- objects ----------------------------------------------------------------------------

    def _object(self, nodes: tuple[Part, ...], key: Key) -> dict[str, Any]:
        schemas = [n for n in nodes if not n.is_constant]
        names = _all_names(nodes)
        patterns = dict.fromkeys(p for n in schemas for p in keyword_map(n.schema, "patternProperties"))
        open_ = any(k in n.schema for n in schemas for k in ("additionalProperties", "unevaluatedProperties"))
        is_closed = bool(names or patterns) and not open_ and key not in self._opened
        among = self._members(nodes, names)
        matched = [part for p in patterns for n in schemas for part in listed(n, "patternProperties", p)]
        if patterns:
            spend(len(names) * len(patterns) // 4)
            matches = self._in_place.matches
            matched += [part for name in names if any(matches(p, name) for p in patterns) for part in among[name]]
        every = self._of(matched)
        properties = {name: self._of(parts) for name, parts in among.items()}
        rest: Any = False if is_closed else self._of([part for n in schemas for part in others(n)])
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

    def _members(self, nodes: tuple[Part, ...], names: dict[str, None]) -> dict[str, list[Part]]:
        """What schemas and constants say of each property."""
        among: dict[str, list[Part]] = {name: [] for name in names}
        for node in nodes:
            if node.is_constant:
                held = node.constant.items() if isinstance(node.constant, dict) else ()
                spend(len(held))
                for name, value in held:
                    among[name].append(Part(node.at, constant=value, is_constant=True))
                continue
            declared, patterns = keyword_map(node.schema, "properties"), keyword_map(node.schema, "patternProperties")
            rest = list(others(node))
            if not (declared or patterns or rest):
                continue
            spend(len(names) * (1 + 2 * len(rest) + len(patterns)) // 4 + 2 * len(declared))
            for name, parts in among.items():
                own = [Part(node.at.down("properties", name), declared[name])] if name in declared else []
                for pattern in patterns:
                    if self._in_place.matches(pattern, name):
                        own += listed(node, "patternProperties", pattern)
                parts += own or rest
        return among

    # --- arrays -----------------------------------------------------------------------------

    def _array(self, nodes: tuple[Part, ...], below: list[Key]) -> dict[str, Any]:
        schemas = [n for n in nodes if not n.is_constant]
        constants = [n for n in nodes if n.is_constant and isinstance(n.constant, list)]
        n_first = max((len(_first(n)[1]) for n in schemas), default=0)
        n_first = max(n_first, *(len(n.constant) for n in constants)) if constants else n_first

        def item(index: int) -> Any:
            spend(len(nodes) // 4)
            parts = [part for n in schemas for part in _item(n, index)]
            parts += [
                Part(n.at, constant=n.constant[index], is_constant=True) for n in constants if index < len(n.constant)
            ]
            below.append(frozenset(self._in_place.nodes(parts)))
            return self._of(parts)

        first, rest = [item(i) for i in range(n_first)], item(n_first)
        found: dict[str, Any] = {}
        if any(s is not True for s in first):
            found["prefixItems"] = first
        if rest is not True:
            found = {"prefixItems": first} if first else {}
            found["items"] = rest
        return found


def _all_names(nodes: tuple[Part, ...]) -> dict[str, None]:
    found: dict[str, None] = {}
    for node in nodes:
        names = list(_names(node))
        spend(1 + len(names) // 2)
        found.update(dict.fromkeys(names))
    return found


def _names(part: Part) -> Iterator[str]:
    if part.is_constant:
        yield from part.constant if isinstance(part.constant, dict) else ()
        return
    schema = part.schema
    for keyword in ("properties", "dependentRequired", *NAMED):
        yield from keyword_map(schema, keyword)
    yield from (name for name in keyword_list(schema, "required") if isinstance(name, str))
    for keyword in ("dependentRequired", "dependencies"):
        for held in keyword_map(schema, keyword).values():
            names = [held] if isinstance(held, str) else held if isinstance(held, list) else []
            yield from (name for name in names if isinstance(name, str))


def _first(node: Part) -> tuple[str, list[Any], str]:
    """(keyword of the first items, their schemas, keyword of the rest)."""
    items = node.schema.get("items")
    if isinstance(items, list) and "prefixItems" not in node.schema:
        return "items", items, "additionalItems"
    return "prefixItems", keyword_list(node.schema, "prefixItems"), "items"


def _item(node: Part, index: int) -> Iterator[Part]:
    where, first, rest = _first(node)
    if index < len(first):
        yield Part(node.at.down(where, index), first[index])
    elif rest in node.schema:
        yield Part(node.at.down(rest), node.schema[rest])
    for keyword in ("contains", "unevaluatedItems"):
        if keyword in node.schema:
            yield Part(node.at.down(keyword), node.schema[keyword])


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
    in_place = InPlace(expander)
    while True:
        made = Closing(expander, opened, in_place)
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
