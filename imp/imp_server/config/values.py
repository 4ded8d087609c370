"""From the text of a flag, a variable or --set, or a TOML value, to the typed value of a knob."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from imp_server.config.compat import VALUE_ALIASES
from imp_server.config.knobs import Knob
from imp_server.core import ConfigError, readable

TRUE_WORDS = frozenset({"1", "true", "on", "yes", "enabled"})
FALSE_WORDS = frozenset({"0", "false", "off", "no", "disabled"})
_INTEGER = re.compile(r"[+-]?\d+")


def from_text(knob: Knob, text: str, origin: str) -> Any:
    """The value that `text` spells. Raises ConfigError naming `origin` and what is expected."""
    text = VALUE_ALIASES.get((knob.key, text.strip()), text.strip())
    if knob.key != "model.path" and readable(text) != text:  # a path travels as bytes, the rest as text
        raise ConfigError(f"{origin}: {readable(text)} isn't UTF-8")
    value: Any = text
    if knob.kind is bool:
        word = text.lower()
        value = True if word in TRUE_WORDS else False if word in FALSE_WORDS else text
    elif knob.kind is int and _INTEGER.fullmatch(text):
        value = int(text)
    elif knob.kind is float:
        try:
            value = float(text)
        except ValueError:
            value = text
    elif knob.kind is tuple:
        value = [word.strip() for word in text.split(",") if word.strip()]
    return checked(knob, value, origin)


def from_toml(knob: Knob, value: Any, origin: str) -> Any:
    """A TOML value; on/off words may be TOML booleans, one word may stand for a list."""
    if isinstance(value, str):
        return from_text(knob, value, origin)
    if isinstance(value, bool) and knob.choices:
        value = "on" if value else "off"
    if isinstance(value, int) and not isinstance(value, bool):
        value = int(VALUE_ALIASES.get((knob.key, str(value)), str(value)))
    return checked(knob, value, origin)


def checked(knob: Knob, value: Any, origin: str) -> Any:
    """`value` converted to the knob's type and within its bounds."""
    wrong_nan = isinstance(value, float) and value != value
    try:
        if wrong_nan:
            raise msgspec.ValidationError
        return msgspec.convert(value, knob.annotation)
    except msgspec.ValidationError:
        shown = "the value" if knob.secret else repr(value)
        raise ConfigError(f"{origin}: {shown} isn't valid for {knob.key} (expected: {knob.expected})") from None
