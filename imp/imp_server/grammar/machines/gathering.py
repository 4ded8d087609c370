"""What the states of an expression's automaton (terms.py) are made of, before they have a number."""

from __future__ import annotations

from imp_server.grammar.machines.nodes import Node

Items = tuple[tuple[Node, int], ...]
"""(head, tail): match the head, then go on in state `tail`."""


class Gathering:
    """Items of a state under construction: head -> the tails it may go on with."""

    __slots__ = ("accepts", "tails")

    def __init__(self) -> None:
        self.accepts = False
        self.tails: dict[Node, list[int]] = {}

    def add(self, head: Node, tail: int) -> None:
        known = self.tails.get(head)
        if known is None:
            self.tails[head] = [tail]
        elif tail not in known:
            known.append(tail)


def covered(items: list[tuple[Node, int]], group: list[int]) -> list[int]:
    """Loops over the same body with the same tail whose range of counts lies within another's."""
    ranked = sorted(group, key=lambda i: (items[i][0].low, -items[i][0].high))
    out: list[int] = []
    best = -1
    for i in ranked:
        if items[i][0].high <= best:
            out.append(i)
        best = max(best, items[i][0].high)
    return out
