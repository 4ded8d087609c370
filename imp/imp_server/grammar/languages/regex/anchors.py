"""Takes the anchors out of a pattern: four anchor-free expressions say what it matches and where.

Exact for anchors anywhere, `(^a|b)+c$|d` included: a word that used `^` can have nothing before it, one that
used `$` nothing after it, so whatever else the pattern would match there must be empty.
"""

from __future__ import annotations

from typing import NamedTuple

from imp_server.core import GrammarRefused
from imp_server.grammar.languages.regex.tree import Alt, Begin, Chars, End, Look, Repeat, Tree
from imp_server.grammar.machines.nodes import INFINITE, Node, Nodes


class AnchoredWords(NamedTuple):
    """Words of a pattern by the anchors they used."""

    plain: Node
    begin: Node
    end: Node
    both: Node

    @property
    def nullable(self) -> bool:
        return any(part.nullable for part in self)


class Splitter:
    """Makes the parts of a pattern, bottom up. Owner of nothing: expressions are shared through `nodes`."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def split(self, tree: Tree) -> AnchoredWords:
        """Raises GrammarRefused for a lookaround."""
        nodes = self._nodes
        never, empty = nodes.never, nodes.empty
        if isinstance(tree, Chars):
            return AnchoredWords(nodes.chars(tree.ranges), never, never, never)
        if isinstance(tree, Begin):
            return AnchoredWords(never, empty, never, never)
        if isinstance(tree, End):
            return AnchoredWords(never, never, empty, never)
        if isinstance(tree, Look):
            kind = "lookahead" if tree.ahead else "lookbehind"
            raise GrammarRefused(f"a {kind} isn't supported in a grammar", at=tree.at)
        if isinstance(tree, Alt):
            options = [self.split(option) for option in tree.options]
            return AnchoredWords(*(nodes.either(column) for column in zip(*options, strict=True)))
        if isinstance(tree, Repeat):
            return self._repeat(self.split(tree.body), tree.low, tree.high)
        return self._sequence([self.split(part) for part in tree.parts])

    def _sequence(self, parts: list[AnchoredWords]) -> AnchoredWords:
        """Runs of plain parts are joined at once: the pairwise rule would cost a quadratic number of nodes."""
        nodes = self._nodes
        whole = AnchoredWords(nodes.empty, nodes.never, nodes.never, nodes.never)
        run: list[Node] = []
        never = nodes.never
        for part in reversed(parts):
            if part.begin is never and part.end is never and part.both is never:
                run.append(part.plain)
                continue
            whole = self._pair(part, self._pair(self._plain(run), whole))
            run = []
        return self._pair(self._plain(run), whole)

    def _plain(self, reversed_run: list[Node]) -> AnchoredWords:
        never = self._nodes.never
        return AnchoredWords(self._nodes.sequence(reversed(reversed_run)), never, never, never)

    def _pair(self, left: AnchoredWords, right: AnchoredWords) -> AnchoredWords:
        nodes = self._nodes
        found: list[list[Node]] = [[], [], [], []]
        for i, first in enumerate(left):
            for j, second in enumerate(right):
                if first is nodes.never or second is nodes.never:
                    continue
                ends, begins = bool(i & 2), bool(j & 1)
                if (ends and not second.nullable) or (begins and not first.nullable):
                    continue
                word = [] if ends and begins else [first] if ends else [second] if begins else [first, second]
                found[i | j].append(nodes.sequence(word))
        return AnchoredWords(*(nodes.either(options) for options in found))

    def _repeat(self, body: AnchoredWords, low: int, high: int) -> AnchoredWords:
        nodes = self._nodes
        never, loop = nodes.never, nodes.loop
        plain = loop(body.plain, low, high)
        if high == 0 or (body.begin is never and body.end is never and body.both is never):
            return AnchoredWords(plain, never, never, never)

        def times(used: int, filled: bool) -> Node:
            """The plain rounds beside `used` others; `filled`: empty rounds may make up the number."""
            most = high if high == INFINITE else high - used
            return loop(body.plain, 0 if filled else max(low - used, 0), most) if most >= 0 else never

        begin = nodes.sequence([body.begin, times(1, body.begin.nullable)])
        end = nodes.sequence([times(1, body.end.nullable), body.end])
        between = times(2, body.begin.nullable or body.end.nullable)
        both = [nodes.sequence([body.begin, between, body.end])]
        if low <= 1 or body.nullable:
            both.append(body.both)
        return AnchoredWords(nodes.either([plain, nodes.empty]) if low == 0 else plain, begin, end, nodes.either(both))
