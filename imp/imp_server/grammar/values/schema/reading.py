"""How keywords are read: their registry, and the checks of their values' form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from imp_server.core import GrammarRefused
from imp_server.core.json_pointer import escaped
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.formula import Formula
from imp_server.grammar.values.json_values import number_of
from imp_server.grammar.values.schema.document import At, Document
from imp_server.grammar.values.subschema import Sub

LONGEST_POINTER = 500
MOST_CHARACTERS, MOST_ITEMS, MOST_PROPERTIES = 100_000, 4096, 2048
"""Sizes that a schema may demand; what it merely allows has no limit."""


def refuse(message: str, at: At) -> GrammarRefused:
    keyword = at.pointer.rpartition("/")[2]
    where = f"{keyword}: " if keyword and not message.startswith(keyword) else ""
    return GrammarRefused(f"{where}{message} (at #{at.pointer})", pointer=at.pointer)


def deepest_place(schema: Any) -> str:
    """JSON pointer of the most deeply nested part, as far as a pointer is worth reading."""
    todo: list[tuple[Any, str, int]] = [(schema, "", 0)]
    deepest, depth = "", -1
    while todo:
        part, pointer, level = todo.pop()
        if level > depth:
            deepest, depth = pointer, level
        if len(pointer) < LONGEST_POINTER and isinstance(part, dict | list):
            for key, below in part.items() if isinstance(part, dict) else enumerate(part):
                todo.append((below, f"{pointer}/{escaped(str(key))}", level + 1))
    return deepest


def try_machine(at: At, make: Callable[..., object], *what: Any) -> None:
    """Make a machine now, so that a refusal names the keyword that asked for it."""
    try:
        make(*what)
    except GrammarRefused as refusal:
        raise refuse(refusal.message, at) from None


class Expanding(ABC):
    """A document whose subschemas are turned into formulas, as the keywords see it."""

    def __init__(self, document: Document, algebra: Algebra, integers: str, key_order: str) -> None:
        """`integers`: digits (1) | any (also 1.0, which JSON Schema counts as an integer and many clients don't).

        `key_order`: any | schema (declared properties as they are listed, all others behind them).
        """
        self.document = document
        self.algebra = algebra
        self.integers = integers
        self.key_order = key_order

    @abstractmethod
    def sub(self, schema: Any, at: At) -> Sub:
        """A child value's schema, unexpanded."""

    @abstractmethod
    def formula(self, schema: Any, at: At) -> Formula:
        """What the schema asks of the value itself. Raises GrammarRefused."""

    @abstractmethod
    def target(self, keyword: str, reference: Any, at: At) -> tuple[Any, At]:
        """The schema that a reference keyword names, dynamic scope included."""

    @abstractmethod
    def reference(self, keyword: str, reference: Any, at: At) -> Formula:
        """What that schema asks."""


Reader = Callable[[Expanding, dict[str, Any], At], Formula]
KEYWORDS: dict[str, Reader] = {}


def keyword(*names: str) -> Callable[[Reader], Reader]:
    def register(read: Reader) -> Reader:
        for name in names:
            KEYWORDS[name] = read
        return read

    return register


def name_of(at: At) -> str:
    return at.pointer.rpartition("/")[2]


def count_of(value: Any, at: At) -> int:
    """A non-negative integer, possibly spelled 2.0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise refuse("must be a non-negative integer", at)
    return int(value)


def least_of(schema: dict[str, Any], keyword: str, most: int, at: At) -> int:
    """A minimum that a completion can reach."""
    low = count_of(schema.get(keyword, 0), at)
    if low > most:
        raise refuse(f"{keyword} above {most} isn't supported", at)
    return low


def decimal_of(value: Any, at: At) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse("must be a number", at)
    return number_of(value)


def schemas_of(value: Any, at: At) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise refuse("must be a non-empty list of schemas", at)
    return value


def map_of(value: Any, at: At) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse("must be an object", at)
    return value


def names_of(value: Any, at: At) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(n, str) for n in value):
        raise refuse("must be a list of property names", at)
    return value
