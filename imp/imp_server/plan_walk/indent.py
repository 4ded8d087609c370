"""Where a text stops being indented enough (OutputPlan.min_indent)."""

from __future__ import annotations

from imp_server.core import SPECIAL_SPAN

_BLANKS = b" \t"


class IndentWatch:
    """Owner of the blanks counted so far in the line that a text is at. The line it begins in may begin anywhere."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._n_blanks = -1
        """-1: past the blanks of its line, which were enough."""

    def n_standing(self, data: bytes) -> int:
        """Bytes of `data` before the first character that has too few blanks in front of it in its line.

        The end of a blank line is such a character, too. `data` are marked bytes; special tokens aren't looked at.
        """
        at = 0
        for match in SPECIAL_SPAN.finditer(data):
            standing = self._plain(data[at : match.start()])
            if standing < match.start() - at:
                return at + standing
            at = match.end()
        return at + self._plain(data[at:])

    def _plain(self, data: bytes) -> int:
        at = 0
        while at < len(data):
            if self._n_blanks < 0:
                at = data.find(b"\n", at) + 1
                if not at:
                    break
                self._n_blanks = 0
            elif data[at] in _BLANKS:
                self._n_blanks += 1
                at += 1
            elif self._n_blanks < self._least:
                return at
            else:
                self._n_blanks = -1
        return len(data)
