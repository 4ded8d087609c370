"""Typed access to a header's hyperparameters; a missing or absurd one is an InvalidModel that names it."""

from __future__ import annotations

from typing import Any

from imp_server.core import InvalidModel
from imp_server.weights.header import ModelHeader


class Keys:
    """Hyperparameters of one header."""

    def __init__(self, header: ModelHeader) -> None:
        self._values = header.hyperparameters
        self._where = f"{header.path.name}: '{header.architecture}."

    def integer(self, name: str, default: int | None = None, *, low: int = 1, high: int = 1 << 20) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, value, f"a whole number between {low} and {high}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            raise self._wrong(name, value, "a number")
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def _value(self, name: str, default: Any) -> Any:
        value = self._values.get(name, default)
        if value is None:
            raise InvalidModel(f"{self._where}{name}' is missing")
        return value

    def _wrong(self, name: str, value: Any, wanted: str) -> InvalidModel:
        return InvalidModel(f"{self._where}{name}' is {value!r}, not {wanted}")
