"""Breaks lines between words while text is still coming: a word that runs over the edge is begun anew."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len

FENCE = "```"


class WordWrap:
    """Owner of the cursor's column. Lines inside a code fence are left to the terminal, so that they copy whole."""

    def __init__(self, put: Callable[[str], object], columns: int) -> None:
        """`columns`: of the terminal; the last one stays free, where terminals differ in what they do."""
        self._put = put
        self._width = max(columns - 1, 10)
        self._column = 0
        self._word = ""
        self._line = ""
        self._in_fence = False

    def write(self, text: str) -> None:
        for char in text:
            self._line += char
            if char == "\n":
                self._end_line()
            elif self._in_fence or self._line.startswith(FENCE):
                self._put(char)
            elif char.isspace():
                self._blank(char)
            else:
                self._letter(char)

    def _end_line(self) -> None:
        if self._line.startswith(FENCE):
            self._in_fence = not self._in_fence
        self._put("\n")
        self._line, self._word, self._column = "", "", 0

    def _blank(self, char: str) -> None:
        self._word = ""
        if self._column + 1 > self._width:
            self._put("\n")
            self._column = 0
        else:
            self._put(char)
            self._column += 1

    def _letter(self, char: str) -> None:
        width = cell_len(char)
        if self._column + width > self._width:
            taken_back = cell_len(self._word)
            if 0 < taken_back < self._column:
                self._put(f"\x1b[{taken_back}D\x1b[K\n{self._word}")
                self._column = taken_back
            else:  # a word longer than the line
                self._put("\n")
                self._word, self._column = "", 0
        self._put(char)
        self._word += char
        self._column += width
