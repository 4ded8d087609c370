"""Turns what a validator found into one clear error: the JSON path in double quotes, and what belongs there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from imp_server.core import InvalidRequest, UnsupportedParameter

_NAMES = {
    "object": "an object",
    "array": "an array",
    "string": "a string",
    "number": "a number",
    "integer": "an integer",
    "boolean": "a boolean",
    "null": "null",
}
UNSUPPORTED = "x-unsupported"
"""Keyword of a schema whose other values are valid elsewhere but not offered here: what to do instead."""
NOTHING: Mapping[int, int] = {}
_TAGS = frozenset({"type", "role", "kind"})
"""Properties whose value says which branch of a union is meant."""


def json_path(body: Any, parts: Sequence[str | int], starts: Mapping[int, int] = NOTHING) -> str:
    """`messages[0].content`. The validator gives decimal object keys as ints, so the body is walked along.

    `starts`: of lists that were cut out of longer ones, by their id: the index that their first element had.
    """
    path = ""
    for part in parts:
        if isinstance(body, dict):
            path += f".{part}" if path else str(part)
            body = body.get(str(part))
        else:
            path += f"[{int(part) + starts.get(id(body), 0)}]"
            body = body[part] if isinstance(body, list) and isinstance(part, int) and part < len(body) else None
    return path


def too_long(name: str, limit: int) -> InvalidRequest:
    return InvalidRequest(f"{_shown(name)} must be an array of at most {limit} element(s)", param=name or None)


def unsupported(name: str, advice: str) -> InvalidRequest:
    return UnsupportedParameter(f'"{name}" isn\'t supported here: {advice}', param=name)


def type_name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list | tuple) else "an object"


SchemaAt = Callable[[str], Mapping[str, Any]]
"""Absolute location of a keyword -> the schema it stands in."""


def explain(
    body: Any, errors: Sequence[Any], schema_at: SchemaAt, starts: Mapping[int, int] = NOTHING
) -> InvalidRequest:
    """The error to answer with. `errors`: jsonschema_rs.ValidationError, at least one. `starts`: see json_path."""
    wants_array = all(map(_is_of_an_array, errors))
    if not isinstance(body, dict) and not (isinstance(body, list) and wants_array):
        wanted = "an array" if wants_array else "a JSON object"
        return InvalidRequest(f"the request body must be {wanted}, not {type_name(body)}", code="invalid_type")
    return _Explainer(body, schema_at, starts).best(errors)


class _Explainer:
    def __init__(self, body: Any, schema_at: SchemaAt, starts: Mapping[int, int]) -> None:
        self.body = body
        self.starts = starts
        self.schema_at = schema_at

    def best(self, errors: Sequence[Any]) -> InvalidRequest:
        """A missing field first, then the first in the validator's order."""
        found = [self.descend(e) for e in errors]
        missing = [e for e in found if e.code == "missing_required_parameter"]
        return (missing or found)[0]

    def descend(self, error: Any) -> InvalidRequest:
        """Follows anyOf and oneOf into the branch that the data means."""
        advice = self.schema_at(error.absolute_keyword_location or "").get(UNSUPPORTED)
        if advice:
            return unsupported(json_path(self.body, list(error.instance_path), self.starts), advice)
        context = getattr(error.kind, "context", None) if error.kind.name in ("anyOf", "oneOf") else None
        if not context:
            return self.single(error)
        base = len(error.instance_path)
        branches = [list(branch) for branch in context]
        if all(_is_type_only(branch, base) for branch in branches):
            kinds = [str(kind) for branch in branches for e in branch for kind in e.kind.types]
            return self.wrong_type(error.instance_path, kinds, error.instance)
        tag = _unknown_tag(branches, base)
        if tag is not None:
            return self.not_one_of(*tag)
        closest = min(_distance(branch, base) for branch in branches)
        nearest = max(
            (branch for branch in branches if _distance(branch, base) == closest),
            key=lambda branch: _reach(branch, base),
        )
        return self.best(nearest) if nearest else self.single(error)

    def single(self, error: Any) -> InvalidRequest:
        kind = error.kind
        path = list(error.instance_path)
        if kind.name == "required":
            name = json_path(self.body, path, self.starts)
            name = f"{name}.{kind.property}" if name else kind.property
            return InvalidRequest(f'"{name}" is missing', param=name, code="missing_required_parameter")
        if kind.name == "type":
            return self.wrong_type(path, [str(k) for k in kind.types], error.instance)
        if kind.name in ("const", "enum"):
            return self.not_one_of(path, _allowed(error))
        name = json_path(self.body, path, self.starts)
        if kind.name in ("minimum", "maximum"):
            schema = self.schema_at(error.absolute_keyword_location or "")
            if "minimum" in schema and "maximum" in schema:
                bounds = f"{schema['minimum']}..{schema['maximum']}"
                return InvalidRequest(f'"{name}" must be within {bounds}', param=name)
        if kind.name == "contains":
            wanted = self.schema_at(error.absolute_keyword_location or "").get("contains", {}).get("type")
            if wanted in _NAMES:
                return InvalidRequest(f"{_shown(name)} must hold at least {_NAMES[wanted]}", param=name or None)
        return InvalidRequest(f"{_shown(name)} {_rule(kind)}", param=name or None)

    def wrong_type(self, path: Sequence[str | int], kinds: Sequence[str], value: Any) -> InvalidRequest:
        wanted = [_NAMES[k] for k in dict.fromkeys(kinds) if k != "null"] or ["null"]
        name = json_path(self.body, path, self.starts)
        message = f"{_shown(name)} must be {' or '.join(wanted)}, not {type_name(value)}"
        return InvalidRequest(message, param=name or None, code="invalid_type")

    def not_one_of(self, path: Sequence[str | int], values: Sequence[Any]) -> InvalidRequest:
        name = json_path(self.body, path, self.starts)
        known = ", ".join(json.dumps(v, ensure_ascii=False) for v in dict.fromkeys(values) if v is not None)
        return InvalidRequest(f'"{name}" must be one of {known}', param=name)


def _shown(name: str) -> str:
    return f'"{name}"' if name else "the request body"


def _is_of_an_array(error: Any) -> bool:
    """So only where the body has to be one."""
    is_no_array = error.kind.name == "type" and [str(kind) for kind in error.kind.types] == ["array"]
    return len(error.instance_path) > 0 or is_no_array or error.kind.name in ("minItems", "maxItems")


def _is_type_only(branch: list[Any], base: int) -> bool:
    return len(branch) > 0 and all(e.kind.name == "type" and len(e.instance_path) == base for e in branch)


def _is_elsewhere(error: Any, base: int) -> bool:
    """The branch is for another kind of value."""
    return len(error.instance_path) == base and error.kind.name in ("type", "const", "enum")


def _is_tag(error: Any, base: int) -> bool:
    path = error.instance_path
    return len(path) == base + 1 and path[-1] in _TAGS and error.kind.name in ("const", "enum")


def _distance(branch: list[Any], base: int) -> tuple[int, int, int]:
    """How far the data is from a branch: wrong kind of value, wrong tag, number of errors."""
    return sum(_is_elsewhere(e, base) for e in branch), sum(_misses_tag(e, base) for e in branch), len(branch)


def _reach(branch: list[Any], base: int) -> tuple[int, ...]:
    """How far into a list the data agrees with a branch: mixed lists are wrong where their kind changes."""
    path = branch[0].instance_path[base:] if branch else ()
    return tuple(path) if all(isinstance(part, int) for part in path) else ()


def _misses_tag(error: Any, base: int) -> bool:
    """`not` on a tag: the branch for every value that the others don't name."""
    path = error.instance_path
    return _is_tag(error, base) or (len(path) == base + 1 and path[-1] in _TAGS and error.kind.name == "not")


def _unknown_tag(branches: list[list[Any]], base: int) -> tuple[list[str | int], list[Any]] | None:
    """Path and known values of the tag, if no branch for this kind of value has the one that was sent."""
    values: list[Any] = []
    path: list[str | int] | None = None
    for branch in branches:
        if any(_is_elsewhere(e, base) for e in branch):
            continue
        tags = [e for e in branch if _is_tag(e, base)]
        if not tags:
            return None
        path = list(tags[0].instance_path)
        values += _allowed(tags[0])
    return (path, values) if path is not None else None


def _allowed(error: Any) -> list[Any]:
    return [error.kind.expected_value] if error.kind.name == "const" else list(error.kind.options)


def _rule(kind: Any) -> str:
    limit = getattr(kind, "limit", None)
    rules = {
        "minimum": f"must be at least {limit}",
        "maximum": f"must be at most {limit}",
        "exclusiveMinimum": f"must be more than {limit}",
        "exclusiveMaximum": f"must be less than {limit}",
        "minItems": f"must be an array of at least {limit} element(s)",
        "maxItems": f"must be an array of at most {limit} element(s)",
        "minLength": "must not be empty" if limit == 1 else f"must have at least {limit} characters",
        "maxLength": f"must have at most {limit} characters",
        "maxProperties": f"must have at most {limit} entries",
        "minProperties": f"must have at least {limit} entries",
        "uniqueItems": "must not repeat an element",
    }
    if kind.name in rules:
        return rules[kind.name]
    if kind.name == "pattern":
        return f"must match {kind.pattern}"
    if kind.name == "propertyNames":
        return f"has a key that isn't allowed: {kind.error.message[:200]}"
    return f"isn't valid here ({kind.name})"
