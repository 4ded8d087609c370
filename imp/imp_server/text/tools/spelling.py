"""How a format spells calls, as envelope nodes for the grammar: the inverse of its reader.

Each format file offers `sections(tools, tag, template, many)`: an opener and what follows it up to the end of the
section, for every opener of its segments. `tag` gives a tag's marked bytes in the vocabulary at hand (special token or
text); an opener stands for both of its spellings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from imp_server.core import GrammarRefused
from imp_server.grammar.languages.envelope import Alt, Lit, Node, Repeat, Seq, Value
from imp_server.grammar.values.schema.closing import KEYWORD as CLOSING
from imp_server.text.tools.written_as import written_as

TagBytes = Callable[[str], bytes]


class BoundTool(NamedTuple):
    """A tool whose arguments must satisfy `schema` (an object schema)."""

    name: str
    schema: dict[str, Any]
    strict: bool = False
    """What the notation can't enforce is then a refusal, not a looser grammar."""


class Section(NamedTuple):
    opener: bytes
    rest: Node
    repeats: bool = True
    """Several calls are several sections (else they share one)."""
    marker: bytes = b""
    """Stands before the opener where the reply may also be JSON that begins alike."""
    also: tuple[bytes, ...] = ()
    """Further openers that the same follows."""
    forced: bool = True
    """False: only models write it so, it isn't asked of them."""


def lit(*parts: bytes | str) -> Lit:
    return Lit(b"".join(p.encode() if isinstance(p, str) else p for p in parts))


def one_of(options: Sequence[Node]) -> Node:
    return options[0] if len(options) == 1 else Alt(tuple(options))


def json_call(tool: BoundTool, name_key: str = "name", arguments_key: str = "arguments", lead: str = "{") -> Node:
    """{"name": "NAME", "arguments": VALUE}"""
    head = f"{lead}{json.dumps(name_key)}: {json.dumps(tool.name, ensure_ascii=False)}, {json.dumps(arguments_key)}: "
    return Seq((lit(head), Value(tool.schema), lit("}")))


def json_list(calls: Node, many: bool, between: str = ", ") -> Node:
    """[call, call ...]"""
    return Seq((lit("["), Repeat(calls, 1, None if many else 1, between.encode()), lit("]")))


_PAIRS_KNOW = frozenset(
    {"type", "properties", "required", "additionalProperties", "title", "description", "$schema", "$defs",
     "definitions", "$id", "examples", "default", "$comment", CLOSING}
)  # fmt: skip


_SHARED = ("$defs", "definitions", CLOSING)
_MOST_SPREAD = 4 << 20
"""Characters of definitions, once for each parameter."""


class ToolParameter(NamedTuple):
    key: str
    value: Node
    required: bool


SpellText = Callable[[Any, bool], Node]
"""(schema, whether null is a value, too) -> a string value and what closes it."""


def key_value_pairs(tool: BoundTool, pair: Callable[[str, Node], Node], text: SpellText, end: bytes) -> Node:
    """The declared parameters in the schema's order, optional ones at will. `pair(key, value)` spells one."""
    parts: list[Node] = []
    for parameter in parameters(tool, text, end):
        node = pair(parameter.key, parameter.value)
        parts.append(node if parameter.required else Alt((node, Seq(()))))
    return Seq(tuple(parts))


def parameters(tool: BoundTool, text: SpellText, end: bytes) -> list[ToolParameter]:
    """The declared parameters in the schema's order: `text` spells a string value, `end` closes any other value.

    Raises GrammarRefused if a strict tool's schema says more than single parameters can obey.
    """
    schema = tool.schema
    if tool.strict and (beyond := sorted(set(schema) - _PAIRS_KNOW)):
        raise GrammarRefused(
            f"'{beyond[0]}' at the root of {tool.name}'s parameters can't be enforced in this model's call notation",
            pointer=f"/{beyond[0]}",
        )
    shared = {k: schema[k] for k in _SHARED if k in schema}
    _check_spread(tool.name, shared, len(schema.get("properties") or {}))
    required = set(schema.get("required") or ())
    undeclared = sorted(required - set(schema.get("properties") or {}))
    found = []
    for key, declared in [*(schema.get("properties") or {}).items(), *((k, {}) for k in undeclared)]:
        value_schema = {**shared, **declared} if isinstance(declared, dict) else declared
        written = written_as(declared, schema)
        if written == "json":
            value: Node = Seq((Value(value_schema), lit(end)))
        else:
            value = text(value_schema, written == "text_or_null")
        found.append(ToolParameter(key, value, key in required))
    return found


def _check_spread(name: str, shared: dict[str, Any], n_parameters: int) -> None:
    """Each parameter brings the definitions along: the square of what was sent, at worst."""
    if shared and n_parameters * len(json.dumps(shared)) > _MOST_SPREAD:
        raise GrammarRefused(
            f"{name} has too many parameters beside definitions so large, in this model's call notation: inline them",
            pointer=f"/{next(iter(shared))}",
        )


def or_null(schema: Any) -> Any:
    """The schema of a raw text that may also spell null."""
    shared = {k: schema[k] for k in _SHARED if isinstance(schema, dict) and k in schema}
    return {**shared, "anyOf": [schema, {"const": "null"}]}
