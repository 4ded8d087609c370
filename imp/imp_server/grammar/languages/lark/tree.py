"""What the reader makes of a grammar: its rules and terminals, with the names in them not looked up yet."""

from __future__ import annotations

from typing import NamedTuple

from imp_server.grammar.machines.nodes import Node


class Ref(NamedTuple):
    """A rule or a terminal by name; `at` is its place in the grammar, for the error."""

    name: str
    at: int


class Literal(NamedTuple):
    """A string, a range or a regex; `size`: characters of the grammar that it takes."""

    node: Node
    size: int


class LarkRow(NamedTuple):
    parts: tuple[Expression, ...]


class Options(NamedTuple):
    options: tuple[Expression, ...]


class Times(NamedTuple):
    part: Expression
    low: int
    high: int


Expression = Ref | Literal | LarkRow | Options | Times


class Definition(NamedTuple):
    body: Expression
    at: int


class LarkGrammar(NamedTuple):
    """Names are unique; those of terminals are in capitals."""

    rules: dict[str, Definition]
    terminals: dict[str, Definition]
    imports: dict[str, str]
    """Terminal here -> its name in lark's `common`."""
    ignored: list[Expression]


def is_terminal(name: str) -> bool:
    """Lark tells terminals from rules by their capitals."""
    return name.isupper()
