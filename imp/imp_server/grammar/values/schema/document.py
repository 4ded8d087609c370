"""One schema document: where its resources and anchors are, which draft it speaks, what a reference points to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from imp_server.core import GrammarRefused
from imp_server.core.json_pointer import keys_of, pointer_to
from imp_server.core.turns import charge
from imp_server.grammar.values.schema.published import ADDRESSES, published

ONE_SCHEMA = (
    "additionalProperties", "items", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties", "contentSchema",
)  # fmt: skip
LIST_OF_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
MAP_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
DIALECTS = (
    ("draft-04/", 4), ("draft-06/", 6), ("draft-07/", 7), ("draft/2019-09/", 2019), ("draft/2020-12/", 2020),
)  # fmt: skip
"""What names a draft, wherever its meta-schema is kept."""
OWN_ADDRESS = re.compile(r"http://json-schema\.org/draft-0[467]/schema#?")
"""Of the drafts in which a $ref hides what stands beside it."""
OPENAPI = "https://spec.openapis.org/oas/3.1/dialect/"
"""Adds nothing but annotations to 2020-12."""
RECURSIVE = "#"
"""What $recursiveAnchor counts as: no anchor can be called so."""
MAX_DEPTH = 256
MAX_SUBSCHEMAS = 50_000
SHARED_SIZE = 12
N_BYTES = 900
"""Memory of what is known of a subschema's place."""


class At(NamedTuple):
    """Where a subschema stands."""

    base: str
    """URI of the resource it belongs to."""
    pointer: str
    draft: int
    """4, 6, 7, 2019 or 2020."""
    hides: bool = False
    """Whether a $ref hides its siblings."""
    scope: tuple[str, ...] = ()
    """Resources entered so far that a dynamic reference may end in, outermost first."""

    def down(self, *keys: str | int) -> At:
        return self._replace(pointer=self.pointer + pointer_to(keys))


def children(schema: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """(path, subschema) of every place where a keyword holds a schema."""
    for key in ONE_SCHEMA:
        if isinstance(schema.get(key), dict | bool):
            yield (key,), schema[key]
    for key in LIST_OF_SCHEMAS:
        if isinstance(schema.get(key), list):
            yield from (((key, i), s) for i, s in enumerate(schema[key]))
    for key in MAP_OF_SCHEMAS:
        if isinstance(schema.get(key), dict):
            yield from (((key, name), s) for name, s in schema[key].items() if isinstance(s, dict | bool))


def hides_siblings(schema: dict[str, Any], outer: bool) -> bool:
    """Whether a $ref hides its siblings in a resource, or in the one around it.

    Drafts 4 to 7 say so. Under an address that is not exactly theirs (https, a mirror) most validators don't
    recognise them and take the newest draft, where siblings count: the stricter reading is valid in both.
    """
    uri = schema.get("$schema")
    return outer if not isinstance(uri, str) or "://" not in uri else OWN_ADDRESS.fullmatch(uri) is not None


def draft_of(schema: dict[str, Any], outer: int, pointer: str) -> int:
    """The draft that a resource declares, or the one around it.

    A dialect is known by its name. Another one may leave out vocabularies or add some (core 8.1.2), its meta-schema
    is a document elsewhere, and so what the keywords mean is unknown: it is refused. What isn't a URI names nothing.
    """
    uri = schema.get("$schema")
    if not isinstance(uri, str) or "://" not in uri:
        return outer
    for mark, draft in DIALECTS:
        if mark in uri:
            return draft
    if any(old in uri for old in ("draft-03", "draft-02", "draft-01", "draft-00")):
        raise GrammarRefused("$schema: drafts before 4 aren't supported; use 2020-12", pointer=pointer + "/$schema")
    if uri.startswith(OPENAPI):
        return 2020
    if re.match(r"https?://(www\.)?json-schema\.org/", uri):
        return outer
    raise GrammarRefused(
        f"$schema: the dialect {uri!r} and its vocabularies are unknown; name a published draft or leave it out",
        pointer=pointer + "/$schema",
    )


class Document:
    """Immutable after construction, except that referenced places outside the known keywords are indexed lazily."""

    def __init__(self, schema: Any) -> None:
        self.root = schema
        self._places: dict[int, At] = {}
        self._resources: dict[str, Any] = {"": schema}
        self._anchors: dict[tuple[str, str], Any] = {}
        self.dynamic_anchors: dict[str, dict[str, Any]] = {}
        """Resource -> what its dynamic anchors name; RECURSIVE for the resource itself."""
        self.dynamic = False
        self._open: set[int] = set()
        """Subschemas that contain a reference or an identifier: their meaning depends on their place."""
        self._sizes: dict[int, int] = {}
        """Subschemas below each subschema."""
        self._mentioned: set[str] = set()
        """Published documents that references lead to."""
        self.start = At("", "", 2020)
        if isinstance(schema, dict):
            self._index(schema, self.start, 0, is_root=True)
            self.start = self._places[id(schema)]
            self._add_published()
            self.start = self.start._replace(scope=self._scope((), self.start.base))

    def place(self, schema: dict[str, Any], at: At) -> At:
        """`at` with the base that the schema's own identifier gives it."""
        found = self._places.get(id(schema))
        if found is None:
            self._index(schema, at, 0)
            found = self._places[id(schema)]
        if (found.base, found.draft, found.hides) == (at.base, at.draft, at.hides):
            return at
        scope = self._scope(at.scope, found.base)
        return at._replace(base=found.base, draft=found.draft, hides=found.hides, scope=scope)

    def _scope(self, scope: tuple[str, ...], base: str) -> tuple[str, ...]:
        """The scope inside one more resource: it counts only with an anchor that none around it has."""
        if not self.dynamic or all(self.outermost(scope, name) for name in self.dynamic_anchors.get(base, ())):
            return scope
        return (*scope, base)

    def outermost(self, scope: tuple[str, ...], name: str) -> str | None:
        """The first resource with that dynamic anchor."""
        return next((base for base in scope if name in self.dynamic_anchors.get(base, ())), None)

    def is_shared(self, schema: Any) -> bool:
        """Whether the schema is known by its content: it depends on no place, and spelling it out is cheap."""
        return id(schema) not in self._open and self._sizes.get(id(schema), 0) <= SHARED_SIZE

    def _index(self, schema: dict[str, Any], at: At, depth: int, is_root: bool = False) -> bool:
        """Index a subschema and those below; whether its meaning depends on its place.

        An identifier is spelled as the draft around it has it: what merely names another one stays in its resource.
        """
        if depth > MAX_DEPTH:
            raise GrammarRefused(f"schema is nested deeper than {MAX_DEPTH}", pointer=at.pointer)
        if len(self._places) > MAX_SUBSCHEMAS:
            raise GrammarRefused(f"schema has more than {MAX_SUBSCHEMAS} subschemas", pointer=at.pointer)
        around = at.draft
        charge(N_BYTES, 8 + len(schema) // 2)
        at = at._replace(draft=draft_of(schema, at.draft, at.pointer), hides=hides_siblings(schema, at.hides))
        opened = at.draft != 2020
        name = schema.get("id" if (at.draft if is_root else around) == 4 else "$id")
        if isinstance(name, str) and not (at.hides and "$ref" in schema):
            opened = True
            at = self._identify(schema, name, at)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                opened = True
                self._anchors[at.base, schema[key]] = schema
                if key == "$dynamicAnchor":
                    self.dynamic_anchors.setdefault(at.base, {})[schema[key]] = schema
        if schema.get("$recursiveAnchor") is True and self._resources.get(at.base) is schema:
            self.dynamic_anchors.setdefault(at.base, {})[RECURSIVE] = schema
        for key in REFERENCES:
            if isinstance(reference := schema.get(key), str):
                opened = True
                self.dynamic = self.dynamic or key != "$ref"
                if not reference.startswith("#"):
                    self._mentioned |= ADDRESSES & {urldefrag(join(at.base, reference))[0]}
        self._places[id(schema)] = at
        size = 0
        for path, sub in children(schema):
            if isinstance(sub, dict) and id(sub) not in self._places:
                opened |= self._index(sub, at.down(*path), depth + 1)
                size += 1 + self._sizes[id(sub)]
            elif isinstance(sub, dict):
                opened |= id(sub) in self._open
        self._sizes[id(schema)] = size
        if opened:
            self._open.add(id(schema))
        return opened

    def _add_published(self) -> None:
        """Index what is mentioned, before anything is resolved: it may make the document a dynamic one."""
        while missing := sorted(self._mentioned - self._resources.keys()):
            for uri in missing:
                document = published(uri)
                self._resources[uri] = document
                self._index(document, At(uri, "", 2020), 0, is_root=True)

    def _identify(self, schema: dict[str, Any], name: str, at: At) -> At:
        uri, fragment = urldefrag(name)
        if not uri and fragment:
            self._anchors[at.base, fragment] = schema
            return at
        base = join(at.base, uri).rstrip("#")
        self._resources[base] = schema
        if fragment:
            self._anchors[base, fragment] = schema
        return at._replace(base=base)

    def resolve(self, reference: str, at: At) -> tuple[Any, At]:
        """The schema that `reference` names, and its place. Raises GrammarRefused."""
        uri, fragment = urldefrag(join(at.base, reference))
        where = at.pointer
        if uri not in self._resources:
            raise GrammarRefused(
                f"$ref {reference!r} leads outside this schema; inline the document under $defs", pointer=where
            )
        root = self._resources[uri]
        if not fragment:
            return root, self._target(root, uri, "", at)
        if fragment.startswith("/"):
            return self._follow(root, uri, unquote(fragment), reference, at)
        target = self._anchors.get((uri, unquote(fragment)))
        if target is None:
            raise GrammarRefused(f"$ref {reference!r}: no such anchor", pointer=where)
        return target, self._target(target, uri, fragment, at)

    def _follow(self, root: Any, uri: str, pointer: str, reference: str, at: At) -> tuple[Any, At]:
        here, place = root, self._target(root, uri, "", at)
        for key in keys_of(pointer):
            if isinstance(here, dict) and key in here:
                here = here[key]
            elif isinstance(here, list) and key.isdecimal() and int(key) < len(here):
                here = here[int(key)]
            else:
                raise GrammarRefused(f"$ref {reference!r} doesn't resolve: there is no {key!r}", pointer=at.pointer)
            place = place.down(key)
            if isinstance(here, dict) and id(here) in self._places:
                place = self._entered(self._places[id(here)], at)
        if not isinstance(here, dict | bool):
            raise GrammarRefused(f"$ref {reference!r} doesn't point to a schema", pointer=at.pointer)
        return here, place

    def _target(self, schema: Any, uri: str, pointer: str, at: At) -> At:
        if isinstance(schema, dict) and id(schema) in self._places:
            return self._entered(self._places[id(schema)], at)
        return self._entered(At(uri, pointer, at.draft, at.hides), at)

    def _entered(self, place: At, came_from: At) -> At:
        return place._replace(scope=self._scope(came_from.scope, place.base))


def join(base: str, reference: str) -> str:
    if not reference or reference.startswith("#"):
        return urldefrag(base)[0] + reference
    joined = urljoin(base, reference)
    return reference if ":" in reference.split("/")[0] else joined
