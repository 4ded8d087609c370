"""n_indent: a text ends before the first character whose line isn't indented enough, however tokens cut it."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import OutputPlan, Segment, special
from imp_server.plan_walk import PlanWalker
from imp_server.plan_walk.walker import WalkEnd

EOS, SILENT, SHORT = 256, 257, WalkEnd("length")


def walked(text: bytes, cuts: list[int], *, least: int, stop: tuple[bytes, ...] = ()) -> tuple[bytes, WalkEnd | None]:
    """The text that stands and how it ended; the tokens are the pieces between `cuts`."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    table = [text[a:b] for a, b in itertools.pairwise(places)]
    walker = PlanWalker(OutputPlan(min_indent=least, stop=stop, max_tokens=10_000), table)
    pieces = []
    for token in range(len(table)):
        pieces += walker.push(token)
        if walker.end is not None:
            break
    else:
        pieces += walker.finish()
    return b"".join(piece.data for piece in pieces), walker.end


def twin(text: bytes, least: int) -> tuple[bytes, WalkEnd | None]:
    """Of the whole text, line by line."""
    lines = re.split(rb"(?<=\n)", text)
    done = lines[0]
    for line in lines[1:]:
        blanks = line[: len(line) - len(line.lstrip(b" \t"))]
        if len(blanks) < least and len(blanks) < len(line):
            return done + blanks, SHORT
        done += line
    return done, None


@given(st.text("a \t\n", max_size=30), st.lists(st.integers(0, 30), max_size=30), st.integers(1, 4))
@settings(max_examples=400, deadline=None)
def test_equal_to_the_twin_for_every_cut(text: str, cuts: list[int], least: int) -> None:
    assert walked(text.encode(), cuts, least=least) == twin(text.encode(), least)


@pytest.mark.parametrize(
    ("text", "stands", "end"),
    [
        (b"a\n  b\n c", b"a\n  b\n ", SHORT),
        (b"a\n\tb\n  c", b"a\n\t", SHORT),
        (b"a\n\t b\n  c", b"a\n\t b\n  c", None),
        (b"a\n\n  b", b"a\n", SHORT),
        (b"a\n  ENDb\nc", b"a\n  ", WalkEnd("stop", b"END")),
        (b"a\n ENDb\nc", b"a\n ", WalkEnd("stop", b"END")),
        (b"a\n EN", b"a\n ", SHORT),
        (b"a\n  b\nEN", b"a\n  b\n", SHORT),
    ],
)
def test_lines(text: bytes, stands: bytes, end: WalkEnd | None) -> None:
    for cuts in ([], list(range(len(text)))):
        found, ended = walked(text, cuts, least=2, stop=(b"END",))
        if text.endswith(b"EN"):  # held back as the beginning of a stop string: it is judged when it is let go
            assert found == stands
        else:
            assert (found, ended) == (stands, end)


def test_special_tokens_neither_indent_nor_end() -> None:
    table = [bytes([i]) for i in range(256)] + [special("<e>"), special("<x>")]
    walker = PlanWalker(OutputPlan(min_indent=1, end_ids=(EOS,), max_tokens=99), table)
    for token in (*b"a\n", SILENT, *b" b\n", SILENT):
        walker.push(token)
    assert walker.end is None
    walker.push(ord("c"))
    assert walker.end == SHORT


def test_only_answers_are_watched() -> None:
    table = [bytes([i]) for i in range(256)] + [special("<e>"), special("</think>")]
    segments = (Segment("think", closers=(special("</think>"),), closes_to=1), Segment("answer"))
    walker = PlanWalker(OutputPlan(segments=segments, min_indent=2, max_tokens=99), table)
    for token in (*b"a\nb\nc", SILENT, *b"x\n  y"):
        walker.push(token)
    assert walker.end is None
    walker.push(ord("\n"))
    walker.push(ord("z"))
    assert walker.end == SHORT
