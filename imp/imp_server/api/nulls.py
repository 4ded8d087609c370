"""Null for an optional field means absent: takes such nulls out of a request body, by its schema.

Only properties that the schema names are touched, so a null inside a client's own JSON Schema, tool
arguments or metadata stays.
"""

from __future__ import annotations

from typing import Any

from imp_server.api.contract import Contract

_BRANCHES = ("allOf", "anyOf", "oneOf")


class NullStripper:
    """What to do at one place of a body. Immutable after its first use (references are resolved lazily)."""

    def __init__(self, contract: Contract, *schemas: Any) -> None:
        self._contract = contract
        self._flat: list[dict[str, Any]] = []
        for schema in schemas:
            self._flatten(schema)
        self._children: dict[str, NullStripper] | None = None
        self._items: NullStripper | None = None

    def strip(self, value: Any) -> Any:
        """`value` itself if there was nothing to take out, else a copy."""
        if isinstance(value, dict):
            return self._strip_object(value)
        if isinstance(value, list):
            self._prepare()
            if self._items is not None and any(type(item) is dict or type(item) is list for item in value):
                return [self._items.strip(item) for item in value]
        return value

    def _strip_object(self, value: dict[str, Any]) -> dict[str, Any]:
        children = self._prepare()
        out = None
        for key, item in value.items():
            child = children.get(key)
            if child is None:
                continue
            if item is None:
                out = dict(value) if out is None else out
                del out[key]
            elif isinstance(item, dict | list):
                stripped = child.strip(item)
                if stripped is not item:
                    out = dict(value) if out is None else out
                    out[key] = stripped
        return value if out is None else out

    def _flatten(self, schema: Any) -> None:
        schema = self._contract.follow(schema)
        if not isinstance(schema, dict):
            return
        self._flat.append(schema)
        if "$ref" in schema:  # a reference with siblings
            self._flatten({"$ref": schema["$ref"]})
        for keyword in _BRANCHES:
            for branch in schema.get(keyword, ()):
                self._flatten(branch)

    def _prepare(self) -> dict[str, NullStripper]:
        if self._children is None:
            properties: dict[str, list[Any]] = {}
            items: list[Any] = []
            for schema in self._flat:
                for key, sub in schema.get("properties", {}).items():
                    properties.setdefault(key, []).append(sub)
                if isinstance(schema.get("items"), dict):
                    items.append(schema["items"])
            self._children = {key: NullStripper(self._contract, *subs) for key, subs in properties.items()}
            self._items = NullStripper(self._contract, *items) if items else None
        return self._children
