"""Words are never broken at the edge, whatever the pieces in which the text comes."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from imp_server.cli._word_wrap import WordWrap


def screen(pieces: list[str], columns: int) -> list[str]:
    """The lines that a terminal shows (without wrapping of its own: a line may never need it)."""
    written: list[str] = []
    wrap = WordWrap(written.append, columns)
    for piece in pieces:
        wrap.write(piece)
    lines, column = [""], 0
    for token in re.findall(r"\x1b\[\d*[DK]|.|\n", "".join(written)):
        if token == "\n":
            lines.append("")
            column = 0
        elif token.endswith("D") and token[0] == "\x1b":
            column -= int(token[2:-1])
            assert column >= 0
        elif token == "\x1b[K":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column] + token
            column += 1
    return [line.rstrip() for line in lines]


words = st.lists(st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=14))


@given(words, st.integers(12, 40), st.integers(1, 7))
def test_no_word_that_fits_is_broken(said: list[str], columns: int, cut: int) -> None:
    text = " ".join(said).replace("`", "'")
    lines = screen([text[i : i + cut] for i in range(0, len(text), cut)], columns)
    assert all(len(line) < columns for line in lines)
    if all(len(word) < columns - 1 for word in said):
        assert " ".join(" ".join(lines).split()) == text
    assert "".join("".join(lines).split()) == text.replace(" ", "")


def test_paragraphs_stay() -> None:
    assert screen(["one two three four\n\n", "five"], 12) == ["one two", "three four", "", "five"]


def test_wide_characters_count_twice() -> None:
    written: list[str] = []
    WordWrap(written.append, 11).write("你好你好你好")
    assert "".join(written) == "你好你好你\n好"


def test_code_is_left_alone() -> None:
    code = "```python\n" + "x = 1 + 2 + 3 + 4 + 5\n" + "```\n"
    assert screen([code], 12) == code.split("\n")
