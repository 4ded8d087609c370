"""Where in a grammar's text something stands, for whoever has to mend it."""

from __future__ import annotations


def position(text: str, at: int) -> str:
    """Line and column of the character numbered `at`, both from 1."""
    line = text.count("\n", 0, at) + 1
    return f"line {line}, column {at - text.rfind(chr(10), 0, at)}"
