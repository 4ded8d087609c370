"""Calls hold the parameters that a tool declares: objects whose schema leaves other keys open are closed.

A schema without `additionalProperties` allows any key, and a small model that may write any key writes many. No
function wants them, and the notations that spell one parameter after the other can't have them. Only objects are
closed for which that takes keys away and nothing else: what the closed schema allows, the tool's own allows, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "nullable", "$schema",
     "$id", "$comment", "$defs", "definitions"}
)  # fmt: skip
_CLOSABLE = _ANNOTATIONS | {"type", "properties", "required", "maxProperties"}
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("enum", "const", "default", "examples")
_DEFINED = ("#/$defs/", "#/definitions/")
_TURNED = frozenset(
    {"not", "if", "then", "else", "oneOf", "allOf", "contains", "propertyNames", "dependentSchemas", "dependencies",
     "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"}
)  # fmt: skip
"""Below these less may mean more, or several schemas share an object's keys."""


def declared_only(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` itself, or a copy in which objects with declared properties allow no others."""
    nodes = list(_nodes(schema))
    if any("$ref" in node and not str(node["$ref"]).startswith(_DEFINED) for node in nodes):
        return schema  # an inline object that is referred to has two places
    closed: dict[str, Any] = _closed(schema, shared=not any(map(_shares_keys, nodes)))
    return closed


def _shares_keys(node: Mapping[str, Any]) -> bool:
    """Definitions that are used here may be one of several schemas of an object."""
    if not _TURNED.isdisjoint(node):
        return True
    return any(key in node and not _is_alone(node, key) for key in ("$ref", "anyOf"))


def _is_alone(node: Mapping[str, Any], key: str) -> bool:
    return set(node) <= _ANNOTATIONS | {key}


def _nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    """Every schema in `node`, itself first."""
    if isinstance(node, list):
        for item in node:
            yield from _nodes(item)
    if not isinstance(node, dict):
        return
    yield node
    for key, child in node.items():
        if key in _MAPS and isinstance(child, dict):
            yield from _nodes(list(child.values()))
        elif key not in _VALUES:
            yield from _nodes(child)


def _closed(node: Any, shared: bool) -> Any:
    """`shared`: close definitions, too."""
    if not isinstance(node, dict):
        return node
    closed = dict(node)
    for key in ("$defs", "definitions"):
        if shared and isinstance(node.get(key), dict):
            closed[key] = {name: _closed(child, shared) for name, child in node[key].items()}
    if "anyOf" in node and isinstance(node["anyOf"], list) and _is_alone(node, "anyOf"):
        closed["anyOf"] = [_closed(child, shared) for child in node["anyOf"]]
    if not _TURNED.isdisjoint(node) or "anyOf" in node or "$ref" in node:
        return closed
    if isinstance(node.get("properties"), dict):
        closed["properties"] = {name: _closed(child, shared) for name, child in node["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in node:
            closed[key] = _closed(node[key], shared)
    if _may_close(node):
        closed["additionalProperties"] = False
    return closed


def _may_close(node: Mapping[str, Any]) -> bool:
    declared, required = node.get("properties"), node.get("required") or []
    if not isinstance(declared, dict) or not declared or not set(node) <= _CLOSABLE:
        return False
    return isinstance(required, list) and all(name in declared for name in required if isinstance(name, str))
