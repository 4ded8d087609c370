"""What the parser makes of a pattern: a tree that still holds anchors and lookarounds."""

from __future__ import annotations

from typing import NamedTuple

from imp_server.grammar.machines.codepoints import Ranges


class Chars(NamedTuple):
    ranges: Ranges


class Cat(NamedTuple):
    parts: tuple[Tree, ...]


class Alt(NamedTuple):
    options: tuple[Tree, ...]


class Repeat(NamedTuple):
    body: Tree
    low: int
    high: int


class Begin(NamedTuple):
    """`^`: nothing stands before."""


class End(NamedTuple):
    """`$`: nothing follows."""


class Look(NamedTuple):
    """A lookaround; `at` is its place in the pattern, for the error."""

    body: Tree
    ahead: bool
    wanted: bool
    at: int


Tree = Chars | Cat | Alt | Repeat | Begin | End | Look


def flat(tree: Tree) -> list[Tree]:
    """The parts of a sequence, those of groups that aren't repeated included."""
    if isinstance(tree, Cat):
        return [part for inner in tree.parts for part in flat(inner)]
    return [tree]
