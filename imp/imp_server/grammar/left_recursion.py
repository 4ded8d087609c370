"""Rewrites rules that begin with themselves, which an automaton would open for ever.

A rule that begins with itself is X = B | X A, which is X = B A*. Rules that begin with one another become, each, the
words that don't begin with one of them, and behind those a rule of what may follow on the way up to the first (the
left-corner transform). Everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from imp_server.grammar.nodes import INFINITE, Kind, Node
from imp_server.grammar.rules import RuleRefused, Rules, first_references, least, may_be_empty

MAX_GROUP = 40
"""Rules that begin with one another: the square of their number is added."""

Heads = dict[int, Node]
"""Rule -> what follows where a word begins with it."""


def without_left_recursion(rules: Rules) -> None:
    """Every rule is defined. Raises RuleRefused where it can't be done."""
    for name in rules.bodies:
        rules.number(name)
    bodies = [rules.bodies[name] for name in rules.names]
    nullable = [size == 0 for size in least(bodies, in_bytes=True)]
    memo: dict[int, bool] = {}
    begins = [first_references(body, nullable, memo) for body in bodies]
    for group in _groups(begins):
        name = rules.names[min(group)]
        if len(group) > MAX_GROUP:
            raise RuleRefused(f"rule {name} is one of {len(group)} that begin with one another", name)
        rewriter = _Rewriter(rules, nullable, memo, group)
        try:
            rewriter.rewrite({number: bodies[number] for number in sorted(group)})
        except _Hidden:
            raise RuleRefused(f"rule {name} begins with itself behind a rule that may be empty", name) from None


class _Hidden(Exception):
    pass


class _Rewriter:
    """Of one group of rules."""

    def __init__(self, rules: Rules, nullable: list[bool], memo: dict[int, bool], group: frozenset[int]) -> None:
        self._rules = rules
        self._nodes = rules.nodes
        self._nullable, self._memo = nullable, memo
        self._group = group

    def rewrite(self, bodies: dict[int, Node]) -> None:
        nodes, names = self._nodes, self._rules.names
        parts = {number: self.split(body) for number, body in bodies.items()}
        if len(parts) == 1:
            [(number, (base, heads))] = parts.items()
            again = nodes.loop(heads.get(number, nodes.empty), 0, INFINITE)
            self._rules.bodies[names[number]] = nodes.sequence([base, again])
            return
        ups: dict[int, Heads] = {number: {} for number in parts}
        for number, (_, heads) in parts.items():
            for below, after in heads.items():
                ups[below][number] = after
        for top in parts:
            words = [nodes.sequence([base, self._climb(number, top)]) for number, (base, _) in parts.items()]
            self._rules.bodies[names[top]] = nodes.either(words)
            for number in parts:
                self._rules.bodies[self._name(number, top)] = self._climbing(number, top, ups)

    def _name(self, number: int, top: int) -> str:
        return f"{self._rules.names[top]} begun with {self._rules.names[number]}"

    def _climb(self, number: int, top: int) -> Node:
        """What makes a word of `top` of a word of `number` with which it begins."""
        return self._rules.reference(self._name(number, top))

    def _climbing(self, number: int, top: int, ups: dict[int, Heads]) -> Node:
        nodes = self._nodes
        free = [number]
        for at in free:
            free += [up for up, after in ups[at].items() if self.may_be_empty(after) and up not in free]
        steps = [
            nodes.sequence([self.filled(after), self._climb(up, top)]) for at in free for up, after in ups[at].items()
        ]
        return nodes.either([nodes.empty, *steps] if top in free else steps)

    def split(self, node: Node) -> tuple[Node, Heads]:
        """(words that don't begin with a rule of the group, what follows those that do, by rule)."""
        nodes = self._nodes
        if not first_references(node, self._nullable, self._memo) & self._group:
            return node, {}
        if node.kind is Kind.RULE:
            return nodes.never, {node.low: nodes.empty}
        if node.kind is Kind.EITHER:
            parts = [self.split(option) for option in node.options]
            heads: Heads = {}
            for _, found in parts:
                for number, after in found.items():
                    self._add(heads, number, after)
            return nodes.either([base for base, _ in parts]), heads
        if node.kind is Kind.LOOP:
            body = self.filled(node.first) if self.may_be_empty(node.first) else node.first
            low = 0 if self.may_be_empty(node.first) else node.low
            rest = nodes.loop(node.first, max(low - 1, 0), node.high if node.high == INFINITE else node.high - 1)
            base, heads = self._sequence(body, rest)
            return nodes.either([base, nodes.empty]) if low == 0 else base, heads
        return self._sequence(node.first, node.rest)

    def _sequence(self, first: Node, rest: Node) -> tuple[Node, Heads]:
        nodes = self._nodes
        base, found = self.split(first)
        heads = {number: nodes.sequence([after, rest]) for number, after in found.items()}
        if not self.may_be_empty(base):
            return nodes.sequence([base, rest]), heads
        then, more = self.split(rest)
        for number, after in more.items():
            self._add(heads, number, after)
        return nodes.either([nodes.sequence([self.filled(base), rest]), then]), heads

    def _add(self, heads: Heads, number: int, after: Node) -> None:
        known = heads.get(number)
        heads[number] = after if known is None else self._nodes.either([known, after])

    def may_be_empty(self, node: Node) -> bool:
        return may_be_empty(node, self._nullable, self._memo)

    def filled(self, node: Node) -> Node:
        """The words of `node` but the empty one."""
        nodes = self._nodes
        if not self.may_be_empty(node):
            return node
        if node.kind is Kind.EITHER:
            return nodes.either([self.filled(option) for option in node.options])
        if node.kind is Kind.SEQUENCE:
            return nodes.either([nodes.sequence([self.filled(node.first), node.rest]), self.filled(node.rest)])
        if node.kind is Kind.LOOP:
            rest = nodes.loop(node.first, 0, node.high if node.high == INFINITE else node.high - 1)
            return nodes.sequence([self.filled(node.first), rest])
        if node.kind is Kind.RULE:
            raise _Hidden
        return nodes.never


def _groups(begins: list[set[int]]) -> Iterable[frozenset[int]]:
    """Strongly connected components that hold a cycle. Tarjan's algorithm, without recursion of our own."""
    index: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for start in range(len(begins)):
        if start in index:
            continue
        work = [(start, iter(sorted(begins[start])))]
        index[start] = lowest[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            number, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = lowest[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(begins[target]))))
                    break
                if target in on_stack:
                    lowest[number] = min(lowest[number], index[target])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[number])
                if lowest[number] == index[number]:
                    at = stack.index(number)
                    group = frozenset(stack[at:])
                    del stack[at:]
                    on_stack -= group
                    if len(group) > 1 or number in begins[number]:
                        yield group
