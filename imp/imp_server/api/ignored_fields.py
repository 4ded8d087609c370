"""Which parts of a request have no effect: fields that its contract doesn't name, and what isn't run here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from imp_server.api.contract import Contract
from imp_server.core.json_pointer import escaped

_BRANCHES = ("allOf", "anyOf", "oneOf")
_TAGS = ("type", "role")
"""Properties whose value says which branch of a union is meant."""
IGNORED = "x-ignored"
"""Keyword of a schema: what it describes is taken and has no effect."""
_MOST_SHAPES = 64
"""Remembered at one place; tags may be any text of a client's."""
_KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
Schema = dict[str, Any]


class _Shape(NamedTuple):
    """What the contract knows of an object with certain tags."""

    fields: dict[str, KnownFields]
    takes_any: bool
    """A map, or a thing of the client's own, such as a JSON Schema."""
    is_ignored: bool

    def holds(self, value: dict[str, Any]) -> bool:
        """All of it is known, and there is nothing to look into: so are nearly all parts of a long conversation."""
        if self.is_ignored:
            return False
        return self.takes_any or (
            value.keys() <= self.fields.keys()
            and not any(type(item) is dict or type(item) is list for item in value.values())
        )


class KnownFields:
    """The fields at one place of a request. Grows with the shapes it has seen, up to a bound."""

    def __init__(self, contract: Contract, *schemas: Any) -> None:
        self._contract = contract
        self._schemas = schemas
        self._shapes: dict[tuple[Any, ...], _Shape] = {}
        self._items: KnownFields | None = None

    def ignored(self, body: Any, limit: int) -> list[str]:
        """JSON pointers of the first `limit` parts of a valid body that have no effect; null is as good as absent."""
        found: list[str] = []
        self._walk(body, "", found, limit)
        return found[:limit]

    def _walk(self, value: Any, pointer: str, found: list[str], limit: int) -> None:
        if len(found) >= limit:
            return
        if type(value) is dict:
            self._walk_object(value, pointer, found, limit)
        elif any(type(item) is dict or type(item) is list for item in value):
            items = self._of_items()
            for i, item in enumerate(value):
                if type(item) is list or (type(item) is dict and not items._shape(item).holds(item)):
                    items._walk(item, f"{pointer}/{i}", found, limit)

    def _walk_object(self, value: dict[str, Any], pointer: str, found: list[str], limit: int) -> None:
        shape = self._shape(value)
        if shape.is_ignored:
            found.append(pointer)
        elif not shape.takes_any:
            for name, item in value.items():
                known = shape.fields.get(name)
                if known is None and item is not None:
                    found.append(f"{pointer}/{escaped(name)}")
                elif known is not None and (type(item) is dict or type(item) is list):
                    known._walk(item, f"{pointer}/{escaped(name)}", found, limit)

    def _of_items(self) -> KnownFields:
        if self._items is None:
            whole = [part for schema in self._schemas for part in self._parts(schema, [])]
            self._items = KnownFields(self._contract, *(part["items"] for part in whole if "items" in part))
        return self._items

    def _shape(self, value: dict[str, Any]) -> _Shape:
        kind, role = value.get("type"), value.get("role")
        key = (kind if type(kind) is str else None, role if type(role) is str else None)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._made(value)
            if len(self._shapes) < _MOST_SHAPES:
                self._shapes[key] = shape
        return shape

    def _made(self, value: dict[str, Any]) -> _Shape:
        parts = [part for schema in self._schemas for part in self._parts(schema, value)]
        fields: dict[str, list[Any]] = {}
        for part in parts:
            for name, schema in part.get("properties", {}).items():
                fields.setdefault(name, []).append(schema)
        return _Shape(
            {name: KnownFields(self._contract, *schemas) for name, schemas in fields.items()},
            not parts or any(_is_map(part) for part in parts),
            any(part.get(IGNORED) for part in parts),
        )

    def _parts(self, schema: Any, value: Any) -> Iterator[Schema]:
        """The schema and those within it that may speak of this value."""
        schema = self._contract.follow(schema)
        if not isinstance(schema, dict) or not self._may_be(schema, value):
            return
        yield schema
        if "$ref" in schema:  # a reference with siblings
            yield from self._parts({"$ref": schema["$ref"]}, value)
        for keyword in _BRANCHES:
            for branch in schema.get(keyword, ()):
                yield from self._parts(branch, value)

    def _may_be(self, schema: Schema, value: Any) -> bool:
        kinds = schema.get("type", _KINDS[type(value)])
        if _KINDS[type(value)] not in ([kinds] if isinstance(kinds, str) else kinds):
            return False
        if not isinstance(value, dict):
            return True
        properties, required = schema.get("properties", {}), schema.get("required", ())
        return all(
            _is_tagged(self._contract.follow(properties[tag]), value[tag]) if tag in value else tag not in required
            for tag in _TAGS
            if tag in properties
        )


def _is_tagged(schema: Schema, tag: Any) -> bool:
    if "const" in schema:
        return bool(schema["const"] == tag)
    excluded = schema.get("not", {})
    return tag in schema.get("enum", (tag,)) and tag not in excluded.get("enum", (excluded.get("const"),))


def _is_map(schema: Schema) -> bool:
    if isinstance(schema.get("additionalProperties"), dict):
        return True
    kinds: Sequence[str] | str = schema.get("type", ())
    return "object" in kinds and "properties" not in schema and not any(key in schema for key in _BRANCHES)
