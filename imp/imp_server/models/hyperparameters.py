"""Typed access to a header's hyperparameters; a missing or absurd one is an InvalidModel that names it.

`Hyperparameters` remembers what was asked for: what a family never looks at must be known to change nothing
(key_rules.py).
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np

from imp_server.core import InvalidModel, UnsupportedModel
from imp_server.weights.header import ModelHeader
from imp_server.weights.key_rules import KeyRules


class Hyperparameters:
    """Hyperparameters of one header."""

    def __init__(self, header: ModelHeader) -> None:
        self._values = header.hyperparameters
        dot = f"{header.architecture}." if header.format == "gguf" else ""
        self._where = f"{header.path.name}: '{dot}"
        self._asked: set[str] = set()

    def inside(self, name: str) -> Hyperparameters:
        """Of an object within this one: empty where there is none."""
        inner = copy(self)
        inner._values = self.mapping(name)
        inner._where = f"{self._where}{name}."
        inner._asked = set()
        return inner

    def integer(self, name: str, default: int | None = None, *, low: int = 1, high: int = 1 << 20) -> int:
        """A list with one value for all layers is that value."""
        value = self._value(name, default)
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # as converters of before wrote some counts
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(name, value, f"a whole number between {low} and {high}")
        return value

    def list_or_integer(self, name: str, default: int) -> list[Any] | int:
        """A whole number, or the list of a value per layer."""
        value = self._value(name, default)
        if isinstance(value, np.ndarray):
            value = value.tolist()
        return value if isinstance(value, list) else self.integer(name, default, low=0)

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            raise self.wrong(name, value, "a number")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """A number that is divided by, or whose logarithm or root is taken."""
        value = self.number(name, default)
        if value <= 0:
            raise self.wrong(name, value, "a positive number")
        return value

    def only(self, name: str, *values: Any) -> None:
        """Raises UnsupportedModel for another value than those that the forward has; it may be absent."""
        self._asked.add(name)
        value = self._values.get(name)
        value = value.tolist() if isinstance(value, np.ndarray) else value
        if value is not None and value not in values:
            raise UnsupportedModel(f"{self.named(name)} is {value!r}, which isn't supported for this family")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "a string")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Empty where there is none."""
        value = self._value(name, {})
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        return value

    def __contains__(self, name: str) -> bool:
        """A key whose value is null isn't there."""
        return self._values.get(name) is not None

    def note(self, *names: str) -> None:
        """They are read, but not by these methods."""
        self._asked.update(names)

    def refuse_unread(self, rules: KeyRules) -> None:
        """Raises UnsupportedModel for the first key that would change the model and wasn't asked for."""
        unread = {name: value for name, value in self._values.items() if name not in self._asked}
        rules.check(unread, self._where)

    def wrong(self, name: str, value: Any, wanted: str) -> InvalidModel:
        told = textwrap.shorten(repr(value), 200, placeholder=" ...")
        return InvalidModel(f"{self.named(name)} is {told}, not {wanted}")

    def named(self, name: str) -> str:
        """What an error about this key begins with."""
        return f"{self._where}{name}'"

    def _value(self, name: str, default: Any) -> Any:
        self._asked.add(name)
        value = self._values.get(name)
        value = default if value is None else value
        if value is None:
            raise InvalidModel(f"{self.named(name)} is missing")
        return value
