"""Messages break between words on a terminal and stay one line elsewhere."""

from __future__ import annotations

import io

import pytest
from imp_server.cli._message import fitted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


TEXT = "no model x: known names: smollm2, /a/path/that/is/longer/than/a/row-of-the-terminal\nnext"


def test_whole_words_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    rows = fitted(TEXT, Terminal()).split("\n")
    assert rows == [
        "no model x: known",
        "names: smollm2,",
        "/a/path/that/is/longer/than/a/row-of-the-terminal",
        "next",
    ]
    assert fitted(TEXT, io.StringIO()) == TEXT
