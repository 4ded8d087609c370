"""Markdown on a terminal while it is still being written.

A block (paragraph, list, table, fence) is shown as it comes, and drawn anew, rendered, once it is complete.
"""

from __future__ import annotations

from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.markdown import Markdown

from imp_server.cli._word_wrap import FENCE, WordWrap


class MarkdownStream:
    """Owner of the lines below the last complete block."""

    def __init__(self, out: TextIO, columns: int, rows: int) -> None:
        """`columns`, `rows`: of the terminal."""
        self._out = out
        self._columns, self._rows = columns, rows
        self._console = Console(file=out, width=columns, force_terminal=True, highlight=False)
        self._has_drawn = False
        self._begin()

    def write(self, text: str) -> None:
        for char in text:
            if char == "\n":
                self._end_line()
            else:
                self._line += char
                self._show(char)

    def end(self) -> bool:
        """Draw what is left. False if nothing was ever written."""
        if self._block.strip() or self._line.strip():
            self._draw()
        return self._has_drawn

    def _begin(self) -> None:
        self._block = self._line = ""
        self._fence = ""
        self._n_lines = 0
        self._wrap = WordWrap(self._put, self._columns)

    def _end_line(self) -> None:
        line, self._line = self._line, ""
        self._block += line + "\n"
        mark = line.strip()[:3]
        closes = bool(self._fence) and mark == self._fence and not line.strip().strip(self._fence[0])
        if closes or (not self._fence and not line.strip()):
            if self._block.strip():
                self._draw()
            else:
                self._begin()
            return
        if not self._fence and mark in (FENCE, "~~~"):
            self._fence = mark
        self._n_lines += max(0, cell_len(line) - 1) // self._columns if self._in_raw(line) else 0
        self._show("\n")

    def _in_raw(self, line: str) -> bool:
        """The terminal breaks this line, not we."""
        return bool(self._fence) or line.startswith(FENCE)

    def _show(self, text: str) -> None:
        self._wrap.write(text)

    def _put(self, text: str) -> None:
        self._n_lines += text.count("\n")
        self._out.write(text)

    def _draw(self) -> None:
        """The block in place of its source, unless that has left the screen: then it stays as it is."""
        above = self._n_lines + (max(0, cell_len(self._line) - 1) // self._columns if self._in_raw(self._line) else 0)
        if above >= self._rows - 1:
            self._out.write("\n")
        else:
            self._out.write("\r" + (f"\x1b[{above}A" if above else "") + "\x1b[J")
            if self._has_drawn:
                self._out.write("\n")
            self._console.print(Markdown((self._block + self._line).strip("\n"), code_theme="ansi_dark"))
        self._has_drawn = True
        self._begin()
