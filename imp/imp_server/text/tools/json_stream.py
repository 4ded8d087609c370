"""Follows one JSON value character by character: arguments are streamed while the model writes them."""

from __future__ import annotations

MARK_OPEN, MARK_CLOSE = "\udcff", "\udcfe"
"""How 0xFF and 0xFE of marked bytes look in a reader's text (lone surrogates, so no text can spell them)."""
_WHITESPACE = " \t\n\r"
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_ESCAPES = set('"\\/bfnrt')
_HEX = set("0123456789abcdefABCDEF")

# Number states -> what may follow, and what makes the number complete.
_NUMBER = {
    "-": {"0": "zero", "1-9": "int"},
    "zero": {".": "dot", "e": "exp"},
    "int": {"0-9": "int", ".": "dot", "e": "exp"},
    "dot": {"0-9": "frac"},
    "frac": {"0-9": "frac", "e": "exp"},
    "exp": {"+-": "exp_sign", "0-9": "exp_int"},
    "exp_sign": {"0-9": "exp_int"},
    "exp_int": {"0-9": "exp_int"},
}
_NO_NUMBERS = frozenset({"-", "dot", "exp", "exp_sign"})
"""States in which a digit is missing."""


class JsonScanner:
    """Owner of the position inside one JSON value (RFC 8259, any type)."""

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._stack: list[str] = []
        self._mode = "value"
        self._key = False
        self._detail = ""

    def feed(self, text: str) -> int:
        """Characters of `text` that belong to the value: all, or up to its end or its first error."""
        for index, char in enumerate(text):
            if self.done or self.broken or not self._step(char):
                return index
        return len(text)

    def end(self) -> None:
        """No more text: a top-level number ends here."""
        if self._mode == "number" and not self._stack and self._detail not in _NO_NUMBERS:
            self.done = True

    def split(self, text: str) -> tuple[str, str]:
        """(what of `text` belongs to the value, the rest)."""
        size = self.feed(text)
        return text[:size], text[size:]

    def _step(self, char: str) -> bool:
        """Take one character; False if it isn't part of the value (then done or broken is set)."""
        step = self._STEPS[self._mode]
        accepted: bool = step(self, char)
        if not accepted and not self.done:
            self.broken = True
        return accepted

    def _value_ended(self) -> None:
        if not self._stack:
            self.done = True
        else:
            self._mode = "after"

    def _in_value(self, char: str) -> bool:
        if char in _WHITESPACE:
            return True
        if char in "{[":
            self._stack.append(char)
            self._mode = "first"
        elif char == '"':
            self._mode, self._key = "string", False
        elif char == "-" or (char.isascii() and char.isdigit()):
            self._mode = "number"
            self._detail = "-" if char == "-" else "zero" if char == "0" else "int"
        elif char in _LITERALS:
            self._mode, self._detail = "literal", _LITERALS[char][1:]
        else:
            return False
        return True

    def _in_first(self, char: str) -> bool:
        """After an opening bracket."""
        if char in _WHITESPACE:
            return True
        if char == ("}" if self._stack[-1] == "{" else "]"):
            self._stack.pop()
            self._value_ended()
            return True
        return self._in_key(char) if self._stack[-1] == "{" else self._in_value(char)

    def _in_key(self, char: str) -> bool:
        if char in _WHITESPACE:
            return True
        if char != '"':
            return False
        self._mode, self._key = "string", True
        return True

    def _in_string(self, char: str) -> bool:
        if char == '"':
            if self._key:
                self._mode = "colon"
            else:
                self._value_ended()
        elif char == "\\":
            self._mode = "escape"
        elif char == MARK_OPEN:
            self._mode = "marked"
        elif char < " ":
            return False
        return True

    def _in_marked(self, char: str) -> bool:
        """A special token inside a string: its text is text, quotes included."""
        if char == MARK_CLOSE:
            self._mode = "string"
        return True

    def _in_escape(self, char: str) -> bool:
        if char == "u":
            self._mode, self._detail = "hex", ""
        elif char in _ESCAPES:
            self._mode = "string"
        else:
            return False
        return True

    def _in_hex(self, char: str) -> bool:
        if char not in _HEX:
            return False
        self._detail += char
        if len(self._detail) == 4:
            self._mode = "string"
        return True

    def _in_colon(self, char: str) -> bool:
        if char == ":":
            self._mode = "value"
            return True
        return char in _WHITESPACE

    def _in_after(self, char: str) -> bool:
        if char in _WHITESPACE:
            return True
        top = self._stack[-1]
        if char == ",":
            self._mode = "key" if top == "{" else "value"
            return True
        if char == ("}" if top == "{" else "]"):
            self._stack.pop()
            self._value_ended()
            return True
        return False

    def _in_literal(self, char: str) -> bool:
        if char != self._detail[0]:
            return False
        self._detail = self._detail[1:]
        if not self._detail:
            self._value_ended()
        return True

    def _in_number(self, char: str) -> bool:
        for accepted, state in _NUMBER[self._detail].items():
            if _matches(char, accepted):
                self._detail = state
                return True
        if self._detail in _NO_NUMBERS:
            return False
        self._value_ended()
        return False if self.done else self._in_after(char)

    _STEPS = {
        "value": _in_value,
        "first": _in_first,
        "key": _in_key,
        "string": _in_string,
        "marked": _in_marked,
        "escape": _in_escape,
        "hex": _in_hex,
        "colon": _in_colon,
        "after": _in_after,
        "literal": _in_literal,
        "number": _in_number,
    }


def _matches(char: str, accepted: str) -> bool:
    if accepted == "0-9":
        return char in "0123456789"
    if accepted == "1-9":
        return char in "123456789"
    if accepted == "e":
        return char in "eE"
    return char in accepted
