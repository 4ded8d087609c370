"""Text that a reader gathers in pieces until it means something."""

from __future__ import annotations


class Gathered:
    """Owner of the pieces; joined once, so that gathering takes time in proportion to the text."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, text: str) -> None:
        if text:
            self._pieces.append(text)

    def take(self) -> str:
        """All of it; nothing is left."""
        text = "".join(self._pieces)
        self._pieces = []
        return text
