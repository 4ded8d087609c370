"""Schemas as people write them: configuration files, resources of clusters, events, tools. Seeded; the mix of keywords
is that of public collections (properties, required and enum everywhere, `not` and `if` now and then)."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

NAMES = [
    "name",
    "id",
    "type",
    "status",
    "items",
    "config",
    "spec",
    "labels",
    "url",
    "email",
    "count",
    "tags",
    "city",
    "kind",
    "version",
    "enabled",
    "key",
    "lang",
]
PATTERNS = [
    "^[a-z][a-z0-9-]*$", "^[A-Z]{2,3}$", r"^\d{4}-\d{2}-\d{2}$", "^https?://", r"\S", r"^v\d+(\.\d+)*$", "[0-9]+$",
    r"^[^\s/]+/[^\s/]+$", "^(foo|bar|baz)$", "^.{1,20}$", "^$|^[a-z]+$", "^(?!-)[a-z-]{2,10}$", "^x-",
    "^(?=.*[a-z])(?=.*[0-9]).{3,12}$",
]  # fmt: skip
FORMATS = ["date-time", "uri", "date", "email", "uuid", "ipv4", "int32", "int64", "path", "regex", "hostname"]
TEXTS = [
    "alpha", "a", "", "2024-02-29", "https://example.org/x", "x y", "é", "ABC", "a@b.org", "v1.2", "foo", "10.0.0.1",
    "2024-01-01T00:00:00Z", "x-1", "a/b", "550e8400-e29b-41d4-a716-446655440000",
]  # fmt: skip


class Writer:
    """Owner of the definitions of one schema."""

    def __init__(self, seed: int, drafts: tuple[str, ...] = ("", "http://json-schema.org/draft-07/schema#")) -> None:
        self._rng = random.Random(seed)
        self._draft = self._rng.choice(drafts)
        self._parts: Schema = {}

    def schema(self) -> Schema:
        found = self._object(0) if self._often(0.85) else self._any(0)
        head = {"$schema": self._draft} if self._draft else {}
        return head | found | ({"definitions": self._parts} if self._parts else {})

    def _often(self, share: float) -> bool:
        return self._rng.random() < share

    def _maybe(self, **keywords: tuple[float, list[Any]]) -> Schema:
        """Each keyword with its share of cases and the values it may have."""
        return {name: self._rng.choice(values) for name, (share, values) in keywords.items() if self._often(share)}

    def _any(self, depth: int) -> Schema:
        makers = [self._string] * 8 + [self._enum] * 3 + [self._number] * 4 + [self._simple] * 3
        if depth < 5:
            makers += (
                [self._array] * 3 + [self._object] * 4 + [self._union] * 3 + [self._reference] * 3 + [self._negated]
            )
        found = self._rng.choice(makers)(depth)
        return found | self._maybe(description=(0.2, ["text", ""]), title=(0.1, ["T"]), default=(0.1, [None, 1, {}]))

    def _string(self, depth: int) -> Schema:
        more = self._maybe(
            pattern=(0.2, PATTERNS),
            format=(0.15, FORMATS),
            minLength=(0.15, [0, 1, 3]),
            maxLength=(0.15, [5, 50, 255, 32_767]),
        )
        return {"type": "string"} | more

    def _enum(self, depth: int) -> Schema:
        words = self._rng.sample(TEXTS, self._rng.randint(1, 6))
        mixed = [*words, None, 1, 2.5, {"a": 1}, [True]]
        return self._rng.choice(
            [{"enum": words, "type": "string"}, {"enum": words}, {"enum": mixed}, {"const": words[0]}]
        )

    def _number(self, depth: int) -> Schema:
        more = self._maybe(
            minimum=(0.3, [0, 1, -10, 0.5]),
            maximum=(0.2, [10, 99.5, 65_535]),
            exclusiveMinimum=(0.1, [0, -5]),
            multipleOf=(0.08, [1, 5, 0.5, 0.01]),
        )
        return {"type": self._rng.choice(["integer", "number"])} | more

    def _simple(self, depth: int) -> Schema:
        several = self._rng.sample(["string", "null", "integer", "object", "array", "boolean"], 2)
        return self._rng.choice([{"type": "boolean"}, {}, {"type": several, "minLength": 2}, {"type": several}])

    def _array(self, depth: int) -> Schema:
        found: Schema = {"type": "array", "items": self._any(depth + 1)}
        if self._draft and self._often(0.15):
            found["items"] = [self._any(depth + 1), self._any(depth + 1)]
            found |= self._maybe(additionalItems=(0.5, [False, {"type": "integer"}]))
        elif self._often(0.08):
            found["contains"] = self._rng.choice(
                [{"const": "a"}, {"type": "integer", "minimum": 3}, {"required": ["id"]}]
            )
        return found | self._maybe(minItems=(0.25, [0, 1, 2]), maxItems=(0.12, [3, 100]), uniqueItems=(0.15, [True]))

    def _object(self, depth: int) -> Schema:
        names = self._rng.sample(NAMES, self._rng.choice([1, 2, 3, 4, 8] if depth < 2 else [1, 2, 3]))
        one, other = self._rng.choice(names), self._rng.choice(names)
        properties = {name: self._any(depth + 1) for name in names}
        found: Schema = {"type": "object", "properties": properties}
        some = self._rng.sample(names, self._rng.randint(1, len(names)))
        found |= self._maybe(
            required=(0.7, [some, [*some, "undeclared"], names]),
            additionalProperties=(0.6, [False, False, True, {"type": "string"}]),
            patternProperties=(0.1, [{"^x-": self._any(depth + 1)}, {"_at$": {}, "^t": {"type": "string"}}]),
            propertyNames=(0.04, [{"pattern": "^[a-z_]+$"}, {"maxLength": 6}, {"enum": [*names, "zz"]}]),
            minProperties=(0.05, [1, 3]),
            maxProperties=(0.05, [3, 8]),
            dependencies=(0.06 if self._draft else 0, [{one: [other]}, {one: {"required": [other]}}]),
            anyOf=(0.06, [[{"required": [one]}, {"required": [other]}]]),
            oneOf=(0.04, [[{"required": [one]}, {"required": [other]}]]),
        )
        found |= self._maybe(
            **{
                "not": (
                    0.08,
                    [{"required": sorted({one, other})}, {"properties": {one: {"const": "a"}}, "required": [one]}],
                )
            },
        )
        if self._often(0.1):
            found["if"] = {"properties": {one: {"enum": ["a", "alpha"]}}, "required": [one]}
            found["then"] = self._rng.choice([{"required": [other]}, {"properties": {other: self._any(depth + 2)}}])
            found |= self._maybe(**{"else": (0.4, [{"properties": {one: {"type": ["string", "null"]}}}])})
        if self._often(0.05) and not depth:
            found["allOf"] = [{"properties": {other: self._any(depth + 2)}}, self._reference(depth)]
        return found

    def _union(self, depth: int) -> Schema:
        kinds = [
            self._string(depth),
            self._number(depth),
            {"type": "null"},
            {"type": "boolean"},
            self._array(depth + 1),
        ]
        shapes = [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, self._rng.choice(NAMES[:8]): self._any(depth + 2)},
                "required": ["kind"],
            }
            for kind in "abc"
        ]
        any_two = [self._any(depth + 1), self._any(depth + 1)]
        options = self._rng.choice([self._rng.sample(kinds, 3), shapes, any_two])
        return {self._rng.choice(["oneOf", "anyOf"]): options}

    def _reference(self, depth: int) -> Schema:
        name = f"D{self._rng.randrange(3)}"
        if name not in self._parts:
            self._parts[name] = {"type": "object"}
            self._parts[name] = self._object(depth + 1)
        return {"$ref": f"#/definitions/{name}"}

    def _negated(self, depth: int) -> Schema:
        unwanted: list[Any] = [
            {"type": "null"},
            {"enum": ["a", 1]},
            {"type": "string", "pattern": "^a"},
            {"const": "a"},
        ]
        return {"not": self._rng.choice(unwanted)} | self._string(depth)
