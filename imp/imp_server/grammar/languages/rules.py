"""The rules of a grammar and what holds for all of them: every reference is defined, none begins with itself."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from imp_server.core import GrammarRefused
from imp_server.core.turns import spend
from imp_server.grammar.machines.nodes import INFINITE, NOTHING, Kind, Node, Nodes, Spread

MAX_RULES = 4_096
MAX_WORK = 1_000_000
"""Expressions looked at to find the shortest texts of all rules."""
MAX_CHAIN = 100
"""Rules that may begin with one another in a row: the automaton opens them recursively."""


MAX_FRAMES = 600
"""Calls inside calls that open a rule, one for each level of its expression; Python allows 1000."""


class RuleRefused(GrammarRefused):
    """`rule` is the name of the one to blame."""

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class GrammarRules:
    """Bodies by name as they are read, and the numbers by which they refer to each other."""

    def __init__(self) -> None:
        self.nodes = Nodes()
        self.bodies: dict[str, Node] = {}
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number

    def reference(self, name: str) -> Node:
        """A reference while the properties of rules aren't known yet; `settle` replaces it."""
        return self.nodes.rule(self.number(name), False, 1, NOTHING)


def settle(rules: GrammarRules, start: str = "root") -> tuple[Nodes, Node, list[Node]]:
    """(nodes, rule `start`, bodies by number) with references that know what they match. Raises GrammarRefused."""
    root = rules.number(start)
    for name in rules.bodies:
        rules.number(name)
    if len(rules.names) > MAX_RULES:
        raise GrammarRefused(f"the grammar has {len(rules.names)} rules; at most {MAX_RULES} are supported")
    undefined = [name for name in rules.names if name not in rules.bodies]
    if undefined:
        raise GrammarRefused(f"the grammar uses rules that it doesn't define: {', '.join(undefined[:5])}")
    bodies = [rules.bodies[name] for name in rules.names]
    lows = least(bodies, in_bytes=False)
    sizes = least(bodies, in_bytes=True)
    _refuse_left_recursion(rules.names, bodies, [size == 0 for size in sizes])
    final = _Rebuilder(sizes, lows)
    return final.nodes, final.rebuilt(rules.nodes.rule(root, False, 1, NOTHING)), [final.rebuilt(b) for b in bodies]


def least(bodies: list[Node], *, in_bytes: bool) -> list[int]:
    """Fewest bytes or code points of each rule; INFINITE if it derives no finite text.

    Knuth's generalisation of Dijkstra's algorithm: the rule with the least value is final.
    """
    final = [INFINITE] * len(bodies)
    users: dict[int, set[int]] = {}
    for number, body in enumerate(bodies):
        for used in _references(body):
            users.setdefault(used, set()).add(number)
    work = 0
    queue = [(_smallest(body, final, in_bytes, {}), number) for number, body in enumerate(bodies)]
    heapify(queue)
    while queue:
        value, number = heappop(queue)
        if final[number] <= value:
            continue
        final[number] = value
        for user in users.get(number, ()):
            if final[user] == INFINITE:
                memo: dict[int, int] = {}
                heappush(queue, (_smallest(bodies[user], final, in_bytes, memo), user))
                work += len(memo)
                if work > MAX_WORK:
                    raise GrammarRefused("the rules of the grammar depend on each other too much; simplify them")
    return final


def _smallest(node: Node, known: list[int], in_bytes: bool, memo: dict[int, int]) -> int:
    found = memo.get(node.id)
    if found is not None:
        return found
    spend()
    total, at = 0, node
    while at.kind is Kind.SEQUENCE:
        total += _smallest(at.first, known, in_bytes, memo)
        at = at.rest
    if at.kind is Kind.EITHER:
        total += min(_smallest(option, known, in_bytes, memo) for option in at.options)
    elif at.kind is Kind.LOOP:
        total += _smallest(at.first, known, in_bytes, memo) * at.low
    elif at.kind is Kind.RULE:
        total += known[at.low]
    else:
        total += at.size if in_bytes else at.spread.low
    memo[node.id] = min(total, INFINITE)
    return memo[node.id]


def _references(body: Node) -> Iterator[int]:
    seen: set[int] = set()
    todo = [body]
    while todo:
        node = todo.pop()
        if node.id in seen:
            continue
        seen.add(node.id)
        spend(len(seen) % 4 == 0)
        if node.kind is Kind.RULE:
            yield node.low
        elif node.kind is Kind.SEQUENCE:
            todo += [node.first, node.rest]
        elif node.kind is Kind.LOOP:
            todo.append(node.first)
        elif node.kind is Kind.EITHER:
            todo += node.options


def first_references(body: Node, nullable: list[bool], memo: dict[int, bool]) -> set[int]:
    """Rules with which a word of the body may begin."""
    found: set[int] = set()
    todo = [body]
    while todo:
        node = todo.pop()
        if node.kind is Kind.RULE:
            found.add(node.low)
        elif node.kind is Kind.SEQUENCE:
            todo.append(node.first)
            if may_be_empty(node.first, nullable, memo):
                todo.append(node.rest)
        elif node.kind is Kind.LOOP:
            todo.append(node.first)
        elif node.kind is Kind.EITHER:
            todo += node.options
    return found


def may_be_empty(node: Node, nullable: list[bool], memo: dict[int, bool]) -> bool:
    """`nullable`: of each rule. `memo`: of this function, by node."""
    known = memo.get(node.id)
    if known is not None:
        return known
    at, found = node, True
    while at.kind is Kind.SEQUENCE and found:
        found = may_be_empty(at.first, nullable, memo)
        at = at.rest
    if at.kind is Kind.EITHER:
        found = found and any(may_be_empty(option, nullable, memo) for option in at.options)
    elif at.kind is Kind.LOOP:
        found = found and (at.low == 0 or may_be_empty(at.first, nullable, memo))
    else:
        found = found and (nullable[at.low] if at.kind is Kind.RULE else at.nullable)
    memo[node.id] = found
    return found


def _refuse_left_recursion(names: list[str], bodies: list[Node], nullable: list[bool]) -> None:
    """Depth first over the relation "begins with", without recursion of our own."""
    memo: dict[int, bool] = {}
    begins = [sorted(first_references(body, nullable, memo)) for body in bodies]
    height: dict[int, int] = {}
    depths = _depths(bodies)
    frames: dict[int, int] = {}
    for start in range(len(bodies)):
        path = [start]
        on_path = {start}
        waiting = [iter(begins[start])]
        while path:
            for target in waiting[-1]:
                if target in on_path:
                    cycle = [names[n] for n in path[path.index(target) :]]
                    shown = " -> ".join([*cycle, cycle[0]])
                    raise RuleRefused(f"rule {names[target]} is left-recursive: {shown}", names[target])
                if target not in height:
                    path.append(target)
                    on_path.add(target)
                    waiting.append(iter(begins[target]))
                    break
            else:
                done = path.pop()
                on_path.discard(done)
                waiting.pop()
                height[done] = 1 + max((height[t] for t in begins[done]), default=0)
                if height[done] > MAX_CHAIN:
                    raise RuleRefused(f"rule {names[done]} begins a chain of more than {MAX_CHAIN} rules", names[done])
                frames[done] = depths[done] + max((frames[t] for t in begins[done]), default=0)
                if frames[done] + max(depths) > MAX_FRAMES:
                    raise RuleRefused(f"rule {names[done]} begins a chain of rules nested too deeply", names[done])


def _depths(bodies: list[Node]) -> list[int]:
    """Levels of each body, alternatives counted twice: a bound on the calls that open it."""
    memo: dict[int, int] = {}
    return [_depth(body, memo) for body in bodies]


def _depth(node: Node, memo: dict[int, int]) -> int:
    found = memo.get(node.id)
    if found is not None:
        return found
    below, at = 0, node
    while at.kind is Kind.SEQUENCE:
        below = max(below, _depth(at.first, memo) + 1)
        at = at.rest
    if at.kind is Kind.EITHER:
        below = max(below, *(_depth(option, memo) + 2 for option in at.options))
    else:
        below = max(below, _depth(at.first, memo) + 1 if at.kind is Kind.LOOP else 1)
    memo[node.id] = below
    return below


class _Rebuilder:
    """Makes the expressions anew, bottom up, now that it is known what references match."""

    def __init__(self, sizes: list[int], lows: list[int]) -> None:
        self.nodes = Nodes()
        self._sizes, self._lows = sizes, lows
        self._memo: dict[int, Node] = {}

    def rebuilt(self, node: Node) -> Node:
        known = self._memo.get(node.id)
        if known is not None:
            return known
        nodes = self.nodes
        if node.kind is Kind.SEQUENCE:
            parts, at = [], node
            while at.kind is Kind.SEQUENCE:
                parts.append(self.rebuilt(at.first))
                at = at.rest
            made = nodes.sequence([*parts, self.rebuilt(at)])
        elif node.kind is Kind.EITHER:
            made = nodes.either([self.rebuilt(option) for option in node.options])
        elif node.kind is Kind.LOOP:
            made = nodes.loop(self.rebuilt(node.first), node.low, node.high)
        elif node.kind is Kind.CLASS:
            made = nodes.chars(node.ranges)
        elif node.kind is Kind.RULE:
            made = self._reference(node.low)
        else:
            made = nodes.empty if node.kind is Kind.EMPTY else nodes.never
        self._memo[node.id] = made
        return made

    def _reference(self, number: int) -> Node:
        size = self._sizes[number]
        if size >= INFINITE:
            return self.nodes.never
        return self.nodes.rule(number, size == 0, size, Spread(self._lows[number], INFINITE, 1))
