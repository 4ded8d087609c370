"""Rewrites rules that begin with themselves, which an automaton would open for ever.

A rule that begins with itself is X = B | X A, which is X = B A*. Rules that begin with one another become, each, the
words that don't begin with one of them, and behind those a rule of what may follow on the way up to the first (the
left-corner transform). That only holds for rules that aren't empty, so where some are, every rule loses its empty
word first, and whoever uses it may leave it out. A grammar without left recursion stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from imp_server.core.turns import spend
from imp_server.grammar.languages.rules import GrammarRules, RuleRefused, first_references, least
from imp_server.grammar.machines.nodes import INFINITE, Kind, Node

MAX_GROUP = 40
"""Rules that begin with one another: the square of their number is added."""

Heads = dict[int, Node]
"""Rule -> what follows where a word begins with it."""


def without_left_recursion(rules: GrammarRules, start: str) -> None:
    """Every rule is defined, and none uses `start`. Raises RuleRefused where it would cost too much."""
    for name in rules.bodies:
        rules.number(name)
    bodies = [rules.bodies[name] for name in rules.names]
    nullable = [size == 0 for size in least(bodies, in_bytes=True)]
    memo: dict[int, bool] = {}
    groups = list(_groups([first_references(body, nullable, memo) for body in bodies]))
    if groups and any(empty and name != start for name, empty in zip(rules.names, nullable, strict=True)):
        _leave_out_empty_words(rules, nullable, start)
        without_left_recursion(rules, start)
        return
    for group in groups:
        name = rules.names[min(group)]
        if len(group) > MAX_GROUP:
            raise RuleRefused(f"rule {name} is one of {len(group)} that begin with one another", name)
        _Rewriter(rules, group).rewrite({number: bodies[number] for number in sorted(group)})


def _leave_out_empty_words(rules: GrammarRules, nullable: list[bool], start: str) -> None:
    """Of all rules but `start`: whoever uses a rule that had one may leave it out."""
    nodes, filler = rules.nodes, _Rewriter(rules, frozenset())
    memo: dict[int, Node] = {}

    def optional(node: Node) -> Node:
        found = memo.get(node.id)
        if found is not None:
            return found
        made = node
        if node.kind is Kind.RULE and nullable[node.low]:
            made = nodes.optional(node)
        elif node.kind is Kind.SEQUENCE:
            parts, at = [], node
            while at.kind is Kind.SEQUENCE:  # literals are long
                parts.append(optional(at.first))
                at = at.rest
            made = nodes.sequence([*parts, optional(at)])
        elif node.kind is Kind.EITHER:
            made = nodes.either([optional(option) for option in node.options])
        elif node.kind is Kind.LOOP:
            made = nodes.loop(optional(node.first), node.low, node.high)
        memo[node.id] = made
        return made

    for name, body in rules.bodies.items():
        made = optional(body)
        rules.bodies[name] = made if name == start else filler.filled(made)


class _Rewriter:
    """Of one group of rules. No rule is empty."""

    def __init__(self, rules: GrammarRules, group: frozenset[int]) -> None:
        self._rules = rules
        self._nodes = rules.nodes
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
            free += [up for up, after in ups[at].items() if after.nullable and up not in free]
        steps = [
            nodes.sequence([self.filled(after), self._climb(up, top)]) for at in free for up, after in ups[at].items()
        ]
        return nodes.either([nodes.empty, *steps] if top in free else steps)

    def split(self, node: Node) -> tuple[Node, Heads]:
        """(words that don't begin with a rule of the group, what follows those that do, by rule)."""
        nodes = self._nodes
        if not self._begins(node):
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
            body = self.filled(node.first) if node.first.nullable else node.first
            low = 0 if node.first.nullable else node.low
            rest = nodes.loop(node.first, max(low - 1, 0), node.high if node.high == INFINITE else node.high - 1)
            base, heads = self._sequence(body, rest)
            return nodes.either([base, nodes.empty]) if low == 0 else base, heads
        return self._sequence(node.first, node.rest)

    def _begins(self, node: Node) -> bool:
        """Whether a word may begin with a rule of the group."""
        todo = [node]
        while todo:
            spend()
            part = todo.pop()
            if part.kind is Kind.RULE and part.low in self._group:
                return True
            if part.kind is Kind.SEQUENCE:
                todo += [part.first, part.rest] if part.first.nullable else [part.first]
            elif part.kind is Kind.LOOP:
                todo.append(part.first)
            elif part.kind is Kind.EITHER:
                todo += part.options
        return False

    def _sequence(self, first: Node, rest: Node) -> tuple[Node, Heads]:
        nodes = self._nodes
        base, found = self.split(first)
        heads = {number: nodes.sequence([after, rest]) for number, after in found.items()}
        if not base.nullable:
            return nodes.sequence([base, rest]), heads
        then, more = self.split(rest)
        for number, after in more.items():
            self._add(heads, number, after)
        return nodes.either([nodes.sequence([self.filled(base), rest]), then]), heads

    def _add(self, heads: Heads, number: int, after: Node) -> None:
        known = heads.get(number)
        heads[number] = after if known is None else self._nodes.either([known, after])

    def filled(self, node: Node) -> Node:
        """The words of `node` but the empty one."""
        nodes = self._nodes
        if not node.nullable:
            return node
        if node.kind is Kind.EITHER:
            return nodes.either([self.filled(option) for option in node.options])
        if node.kind is Kind.SEQUENCE:
            return nodes.either([nodes.sequence([self.filled(node.first), node.rest]), self.filled(node.rest)])
        if node.kind is Kind.LOOP:
            rest = nodes.loop(node.first, 0, node.high if node.high == INFINITE else node.high - 1)
            return nodes.sequence([self.filled(node.first), rest])
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
