"""Grammars that need no proof: each of their words is known to leave values and to cost little, so they are counted.

Most tools of most clients are plain: objects, lists, texts, numbers and constants with bounds, optional by a null, in
definitions that don't lead back to themselves. Nothing is made for it, so it may be asked where a proof may not run.
What isn't plain is left to check.py, which says the same of what is. Where a member or an item of something plain isn't
and refers to nothing, its own verdict is enough: whoever holds it says what that is, and equal parts are proved once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, NamedTuple

from imp_server.core.limits import Limit
from imp_server.grammar.languages.envelope import Alt, End, Free, Lit, Node, Parts, Raw, Ref, Repeat, Seq, Value
from imp_server.grammar.plan import nodes_of
from imp_server.grammar.values.leaves import ANY_TYPE, ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING
from imp_server.grammar.values.schema.closing import KEYWORD as CLOSING
from imp_server.grammar.values.schema.document import DIALECTS

MAX_TEXT = 64 << 10
"""Bytes of a schema."""
MAX_SUBS = 400
"""Subschemas, those behind references once for each."""
MAX_DEPTH = 16
MAX_NAMES = 100
MAX_NAME = 128
MAX_SHORTEST = 4_000
"""Bytes of a shortest value, about."""
_IN_NO_FORMAT = (b"<", b"\n", b"\xff")
"""Bytes with which closers begin."""
MAX_SHORTEST_TEXT = 400
"""The same of a text as it is, whose way to the end is looked for."""
MOST_LENGTH = 100_000
MOST_ITEMS, MIN_ITEMS = 1_000, 16
MOST_DIGITS = 15
MAX_NODES = 8_000
"""Of an envelope."""

_DOCUMENT, _SCALAR, _COMPOUND, _FORMAT = (
    Limit(500, 100_000),
    Limit(150, 15_000),
    Limit(500, 80_000),
    Limit(6_000, 800_000),
)
_NODE = Limit(30, 4_000)
_BYTES_PER_BYTE = 200

_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment")
)
_AT_ROOT = frozenset(("$schema", CLOSING, "$defs", "definitions"))
_DEFINITIONS = ("$defs", "definitions")
_TYPES = {
    "null": NULL,
    "boolean": BOOLEAN,
    "integer": NUMBER,
    "number": NUMBER,
    "string": STRING,
    "array": ARRAY,
    "object": OBJECT,
}
_OF_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_OF_TYPE = {
    "string": ("minLength", "maxLength", "format"),
    "integer": _OF_NUMBERS,
    "number": _OF_NUMBERS,
    "array": ("items", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}
FORMATS = frozenset(("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "uri", "uuid"))
"""Whose machines are small."""
ANNOTATED = frozenset(("int32", "int64", "float", "double", "password", "byte", "binary", "path", "file-path"))
"""Names of formats that nobody enforces."""


_REFERS = frozenset(
    ("$ref", "$dynamicRef", "$recursiveRef", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema",
     "$defs", "definitions", CLOSING)
)  # fmt: skip
"""Whatever has none of these means the same wherever it stands."""
MAX_PARTS = 64
"""Subschemas that aren't plain."""


class Told(NamedTuple):
    """Of a schema that is served: what its start takes at most, and bytes of a shortest value, about."""

    n_units: int
    n_bytes: int
    shortest: int


Ask = Callable[[Any], Told | None]
"""What is known of a schema; None: nobody knows, or it is refused."""


class Plain(NamedTuple):
    """A subschema. `types`: bits of those that its values may have; `shortest`: bytes of one of them, about."""

    types: int
    shortest: int


class NotPlain(Exception):
    """A proof has to tell."""


class _TooLarge(NotPlain):
    """Whatever it is."""


def nobody(schema: Any) -> None:
    """Knows of no schema."""


def plain_schema(schema: Any, ask: Ask = nobody) -> Told | None:
    """What is to be said of a plain schema; None if it isn't plain.

    `ask`: asked of each part that isn't, when all the rest is known to be.
    """
    try:
        return _Reading(schema, ask).told()
    except NotPlain:
        return None


def plain_text(schema: str, ask: Ask) -> Told | None:
    """The same of the text of a schema."""
    if len(schema) > MAX_TEXT:
        return None
    try:
        return plain_schema(json.loads(schema), ask)
    except RecursionError:
        return None


def plain_envelope(node: Node, ask: Ask) -> Limit | None:
    """What the start of an envelope takes at most, its values included; None if it isn't plain.

    `ask`: asked of the schema of each value.
    """
    (n_units, n_bytes), is_plain = _DOCUMENT, True
    for n_before, part in enumerate(nodes_of(node)):
        cost = _cost_of_node(part, ask) if n_before < MAX_NODES else None
        if cost is None:
            is_plain = False
        else:
            n_units, n_bytes = n_units + cost.n_units, n_bytes + cost.n_bytes
    return Limit(n_units, n_bytes) if is_plain else None


def _cost_of_node(node: Node, ask: Ask) -> Limit | None:
    match node:
        case Value():
            return _limit(ask(node.schema))
        case Raw():
            return _cost_of_text(node.schema) if _ends_plainly(node) else None
        case Free():
            return _NODE if all(branch.tag for branch in node.branches) else None
        case Lit():
            return Limit(_NODE.n_units, _NODE.n_bytes + _BYTES_PER_BYTE * len(node.data))
        case Seq() | Alt() | Repeat() | Ref() | Parts() | End():
            return _NODE
    return None


def _limit(told: Told | None) -> Limit | None:
    return told and Limit(told.n_units, told.n_bytes)


def _ends_plainly(node: Raw) -> bool:
    """Whether the closer is short, and no text that the schema lists can hold it or what else may not be there."""
    texts = _texts(node.schema)
    if texts is None:
        return False
    listed = "".join(texts).encode(errors="replace")
    barred = [text[:1] for text in (node.closer, *node.never) if text]
    is_formatted = "format" in texts
    return 0 < len(node.closer) <= MAX_NAME and not any(
        first in listed or (is_formatted and first not in _IN_NO_FORMAT) for first in barred
    )


def _texts(schema: Any) -> list[str] | None:
    """All strings in a schema; None if it has more parts than one may look at."""
    found, todo, n_left = [], [schema], MAX_TEXT
    while todo and n_left:
        n_left -= 1
        part = todo.pop()
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, dict):
            todo += [*part, *part.values()]
        elif isinstance(part, list):
            todo += part
    return None if todo else found


def _cost_of_text(schema: Any) -> Limit | None:
    """Of a text as it is, which may be one word besides; None if no text would do, too."""
    cost = Limit(0, 0)
    if isinstance(schema, dict) and schema.get("anyOf", ()) and schema["anyOf"][-1] == {"const": "null"}:
        cost, schema = _SCALAR, {**schema, "anyOf": schema["anyOf"][:-1]}
    try:
        reading = _Reading(schema, nobody)
        told = reading.told() if reading.types() & STRING else None
    except NotPlain:
        return None  # what ends the text may be what it has to be
    if told is None or told.shortest > MAX_SHORTEST_TEXT:
        return None
    return Limit(cost.n_units + told.n_units, cost.n_bytes + told.n_bytes)


class _Reading:
    """Owner of what reading one schema has come to so far."""

    def __init__(self, root: Any, ask: Ask) -> None:
        self._root, self._ask = root, ask
        self._n_subs = 0
        self._n_text = 0
        self._n_units, self._n_bytes = _DOCUMENT
        self._formats: set[str] = set()
        self._open: list[str] = []
        self._n_parts = 0
        self._is_told = True

    def types(self) -> int:
        return self._sub(self._root).types

    def told(self) -> Told:
        found = self._sub(self._root)
        if isinstance(self._root, dict):
            for keyword in _DEFINITIONS:
                for name in self._definitions(keyword):
                    self._referred(f"#/{keyword}/{name}")
        if found.shortest > MAX_SHORTEST or not self._is_told:
            raise NotPlain
        return Told(self._n_units, self._n_bytes + _BYTES_PER_BYTE * self._n_text, found.shortest)

    def _definitions(self, keyword: str) -> dict[str, Any]:
        found = self._root.get(keyword, {})
        if not isinstance(found, dict):
            raise NotPlain
        return found

    def _pay(self, cost: Limit) -> None:
        self._n_units += cost.n_units
        self._n_bytes += cost.n_bytes

    def _text(self, text: str) -> str:
        """A text that the schema spells."""
        self._n_text += len(text)
        if self._n_text > MAX_TEXT:
            raise _TooLarge
        if not text.isprintable():
            raise NotPlain
        return text

    # --- subschemas -----------------------------------------------------------------------------

    def _sub(self, schema: Any) -> Plain:
        self._n_subs += 1
        if self._n_subs > MAX_SUBS or len(self._open) > MAX_DEPTH:
            raise _TooLarge
        if schema is True:
            self._pay(_COMPOUND)
            return Plain(ANY_TYPE, 1)
        if not isinstance(schema, dict):
            raise NotPlain
        said = schema.keys() - _ANNOTATIONS
        if schema is self._root:
            self._check_root(schema)
            said -= _AT_ROOT
        n_open = len(self._open)
        self._open.append("")
        try:
            found = self._said(schema, said)
        except _TooLarge:
            raise
        except NotPlain:
            found = self._part(schema)
        del self._open[n_open:]
        return found

    def _part(self, schema: dict[str, Any]) -> Plain:
        """A subschema that isn't plain, if it means the same by itself. Raises NotPlain."""
        if schema is self._root or self._ask is nobody or refers(schema):
            raise NotPlain
        self._n_parts += 1
        if self._n_parts > MAX_PARTS:
            raise _TooLarge
        asked = schema.get("type")
        types = _bits(self._types(asked)) if asked is not None else ANY_TYPE
        root = {key: self._root[key] for key in ("$schema", CLOSING) if key in self._root}
        told = self._ask({**root, **schema})
        if told is None:
            self._is_told = False
            return Plain(types, 0)
        self._pay(Limit(told.n_units, told.n_bytes))
        return Plain(types, told.shortest)

    def _check_root(self, schema: dict[str, Any]) -> None:
        draft = schema.get("$schema")
        is_known = draft is None or (isinstance(draft, str) and any(mark in draft for mark, _ in DIALECTS[1:]))
        if not is_known or schema.get(CLOSING, "allow") not in ("allow", "closed"):
            raise NotPlain

    def _said(self, schema: dict[str, Any], said: set[str]) -> Plain:
        if not said:
            return self._sub(True)
        if said == {"$ref"}:
            return self._referred(schema["$ref"])
        if said in ({"anyOf"}, {"oneOf"}):
            return self._either(schema[next(iter(said))])
        if said == {"allOf"} and isinstance(schema["allOf"], list) and len(schema["allOf"]) == 1:
            return self._sub(schema["allOf"][0])
        if said & {"const", "enum"}:
            return self._listed(schema, said)
        return self._typed(schema, said)

    def _referred(self, reference: Any) -> Plain:
        if not isinstance(reference, str) or reference in self._open:
            raise NotPlain
        for keyword in _DEFINITIONS:
            lead = f"#/{keyword}/"
            if reference.startswith(lead):
                name = reference[len(lead) :]
                found = self._definitions(keyword).get(name)
                if found is None or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
                    raise NotPlain
                self._open.append(reference)
                plain = self._sub(found)
                self._open.pop()
                return plain
        raise NotPlain

    def _either(self, options: Any) -> Plain:
        """Options that the type tells apart."""
        if not isinstance(options, list) or not options:
            raise NotPlain
        self._pay(_COMPOUND)
        types, shortest = 0, 0
        for option in options:
            found = self._sub(option)
            if types & found.types:
                raise NotPlain
            types, shortest = types | found.types, max(shortest, found.shortest)
        return Plain(types, shortest)

    def _listed(self, schema: dict[str, Any], said: set[str]) -> Plain:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if len(said - {"type"}) != 1 or not isinstance(values, list) or not values:
            raise NotPlain
        self._pay(_SCALAR)
        allowed = self._types(schema["type"]) if "type" in said else _TYPES.keys()
        kinds = [_kind_of(value) for value in values]
        if not all(kind in allowed or (kind == "integer" and "number" in allowed) for kind in kinds):
            raise NotPlain
        for value in values:
            self._text(value if isinstance(value, str) else str(value))
        return Plain(_bits(kinds), max(len(str(value)) for value in values) + 2)

    def _types(self, asked: Any) -> set[str]:
        names = asked if isinstance(asked, list) else [asked]
        if not names or not all(isinstance(name, str) and name in _TYPES for name in names):
            raise NotPlain
        return set(names)

    def _typed(self, schema: dict[str, Any], said: set[str]) -> Plain:
        types = self._types(schema.get("type"))
        if not said <= {"type"}.union(*(_OF_TYPE.get(name, ()) for name in types)):
            raise NotPlain
        self._pay(_SCALAR)
        shortest = 6
        if "string" in types:
            shortest = max(shortest, self._string(schema))
        if types & {"integer", "number"}:
            self._number(schema, is_integer="number" not in types)
            shortest = max(shortest, 2 * MOST_DIGITS)
        if "array" in types:
            shortest = max(shortest, self._array(schema))
        if "object" in types:
            shortest = max(shortest, self._object(schema))
        return Plain(_bits(types), shortest)

    # --- what is said of one type ---------------------------------------------------------------

    def _string(self, schema: dict[str, Any]) -> int:
        low, _ = _counts(schema, "minLength", "maxLength", MOST_LENGTH)
        self._pay(Limit(0, low))  # of a shortest one, which is kept
        name = schema.get("format")
        if name is not None and name not in ANNOTATED:
            if name not in FORMATS or "minLength" in schema or "maxLength" in schema:
                raise NotPlain
            if name not in self._formats:
                self._formats.add(name)
                self._pay(_FORMAT)
        return low + 40

    def _number(self, schema: dict[str, Any], *, is_integer: bool) -> None:
        lows = _bounds(schema, ("minimum", "exclusiveMinimum"))
        highs = _bounds(schema, ("maximum", "exclusiveMaximum"))
        if not lows or not highs:
            return
        low, high = max(lows.values()), min(highs.values())
        if is_integer:
            first = low.to_integral_value(ROUND_CEILING) + (low == lows.get("exclusiveMinimum"))
            last = high.to_integral_value(ROUND_FLOOR) - (high == highs.get("exclusiveMaximum"))
            if first > last:
                raise NotPlain
        elif low >= high:
            raise NotPlain

    def _array(self, schema: dict[str, Any]) -> int:
        self._pay(_COMPOUND)
        low, _ = _counts(schema, "minItems", "maxItems", MOST_ITEMS)
        if low > MIN_ITEMS:
            raise NotPlain
        item = self._sub(schema.get("items", True))
        return 2 + low * (item.shortest + 2)

    def _object(self, schema: dict[str, Any]) -> int:
        self._pay(_COMPOUND)
        declared, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(declared, dict) or not isinstance(required, list) or len(declared) > MAX_NAMES:
            raise NotPlain
        if not all(isinstance(name, str) and name in declared for name in required):
            raise NotPlain
        members = {self._name(name): self._sub(sub) for name, sub in declared.items()}
        others = schema.get("additionalProperties", True)
        if others is not False and others is not True:
            self._sub(others)
        return 2 + sum(len(name) + 8 + members[name].shortest for name in required)

    def _name(self, name: str) -> str:
        if len(name) > MAX_NAME or not name.isascii() or '"' in name or "\\" in name:
            raise NotPlain
        return self._text(name)


def refers(schema: Any) -> bool:
    """Whether a schema may mean something else elsewhere."""
    todo, n_left = [schema], MAX_TEXT
    while todo and n_left:
        n_left -= 1
        part = todo.pop()
        if isinstance(part, dict):
            if not part.keys().isdisjoint(_REFERS):
                return True
            todo += part.values()
        elif isinstance(part, list):
            todo += part
    return bool(todo)


def _kind_of(value: Any) -> str:
    """The type of a constant. Raises NotPlain."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) and abs(value) < 10**MOST_DIGITS:
        return "integer"
    if isinstance(value, str):
        return "string"
    raise NotPlain


def _bits(kinds: Iterable[str]) -> int:
    found = 0
    for kind in kinds:
        found |= _TYPES[kind]
    return found


def _counts(schema: dict[str, Any], least: str, most: str, limit: int) -> tuple[int, int]:
    """Whole numbers, in order."""
    low, high = schema.get(least, 0), schema.get(most, limit)
    if type(low) is not int or type(high) is not int or not 0 <= low <= high <= limit:
        raise NotPlain
    return low, high


def _bounds(schema: dict[str, Any], names: Iterable[str]) -> dict[str, Decimal]:
    return {name: _decimal(schema[name]) for name in names if name in schema}


def _decimal(value: Any) -> Decimal:
    if type(value) not in (int, float) or not abs(value) < 10**MOST_DIGITS:
        raise NotPlain
    found = Decimal(repr(value))
    _, digits, exponent = found.as_tuple()
    if len(digits) > MOST_DIGITS or not isinstance(exponent, int) or exponent < -MOST_DIGITS:
        raise NotPlain
    return found
