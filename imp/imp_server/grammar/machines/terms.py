"""The automaton of an expression: states are sets of continuations, built when first stepped into.

A state is a set of items (head, tail): match the head, then go on in the state `tail`. Items with
the same head share one tail, so ambiguity makes tails, never copies of a stack; counters are numbers in
a head, never unrolled. Tails are older than the states that hold them, so they can't form a cycle.
Owner of its states and of its transition table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.codepoints import after_continuation, after_lead, byte_classes, contains, sample
from imp_server.grammar.machines.explored import representatives
from imp_server.grammar.machines.gathering import Gathering, Items, covered
from imp_server.grammar.machines.machine import DEAD, GROWING, UNBOUNDED, Machine
from imp_server.grammar.machines.nodes import INFINITE, NOTHING, Kind, Node, Nodes, Spread

HOLE = -2
N_BYTES, N_BYTES_ITEM, N_BYTES_CLASS = 500, 150, 8
"""Memory of a state, of each of its items, and of each entry of its row."""

WIDE = 32
"""Items of a state above which only the entries asked for are derived, not its whole row."""


class TermMachine:
    """Deterministic byte automaton of `root`. Every state it hands out can still reach an end."""

    def __init__(self, nodes: Nodes, root: Node, rules: Sequence[Node] = ()) -> None:
        """`rules[i]` is the body of rule i; no rule may begin with itself."""
        self._nodes = nodes
        self.root = None if rules else root
        """The expression, unless there are more."""
        self._rules = rules
        self.classes = byte_classes({n.ranges for n in nodes.all if n.kind is Kind.CLASS})
        self._representatives = representatives(self.classes)
        self._templates: dict[int, list[Node | None]] = {}
        self._accepts: list[bool] = []
        self._items: list[Items] = []
        self._rows: list[list[int]] = []
        self._shortest: list[int] = []
        self._spreads: list[Spread] = []
        self._numbers: dict[tuple[bool, tuple[tuple[int, int], ...]], int] = {}
        self._aliases: dict[tuple[int, int], int] = {}
        self._samples: dict[int, bytes] = {}
        self._unions: dict[tuple[int, ...], int] = {}
        self._pushed: dict[tuple[int, int], int] = {}
        self._entered: dict[tuple[int, int], int] = {}
        self._end = self._intern(True, ())
        self._universal = self._intern(True, ((nodes.anything, self._end),))
        self.start = self._push(root, self._end)
        self.reach = INFINITE if rules else root.reach
        """Bound on the fewest code points still missing in any state."""

    # --- the Machine protocol ---------------------------------------------------------------

    def step(self, state: int, byte: int) -> int:
        row = self._rows[state]
        kind = self.classes[byte]
        target = row[kind]
        if target == HOLE:
            spend()
            with GROWING:
                if len(self._items[state]) <= WIDE:
                    target = self._complete(state)[kind]
                else:
                    target = row[kind] = self._derive(state, byte)
        return target

    def accepts(self, state: int) -> bool:
        return self._accepts[state]

    def live(self, state: int) -> bool:
        return state != DEAD

    def shortest(self, state: int) -> bytes | None:
        if state == DEAD:
            return None
        out: list[bytes] = []
        while not self._accepts[state]:
            spend(1 + len(self._items[state]) // 8)
            head, tail = min(self._items[state], key=lambda item: item[0].size + self._shortest[item[1]])
            if self._rules and head.size and head.kind in (Kind.LOOP, Kind.RULE):
                # rules may call each other deeper than Python can: they are opened one at a time
                with GROWING:
                    state = self._enter(head, tail)
                continue
            out.append(self._sample(head))
            state = tail
        return b"".join(out)

    def size(self, state: int) -> int:
        """Bytes of `shortest`."""
        return self._shortest[state]

    def room(self, state: int) -> int:
        if state == self._universal:
            return UNBOUNDED
        free = (h.high for h, _ in self._items[state] if h.kind is Kind.LOOP and h.first is self._nodes.any)
        return min(max(free, default=0), UNBOUNDED)

    def universal(self, state: int) -> bool:
        """Whether every text is accepted from here."""
        return state == self._universal

    def alias(self, state: int, n: int) -> tuple[Machine, int]:
        """A state that many share and that can't be told from this one within `n` code points.

        A count beyond n is as good as none: a round takes a code point at least.
        """
        items = self._items[state]
        if not any(h.kind is Kind.LOOP and (n < h.high < INFINITE or h.low > n + 1) for h, _ in items):
            return self, state
        known = self._aliases.get((state, n))
        if known is None:
            with GROWING:
                gathered = Gathering()
                gathered.accepts = self._accepts[state]
                for head, tail in items:
                    gathered.add(self._nearly(head, n), tail)
                known = self._aliases[state, n] = self._finish(gathered)
        return self, known

    def _nearly(self, head: Node, n: int) -> Node:
        if head.kind is not Kind.LOOP or head.first.nullable:
            return head
        return self._nodes.loop(head.first, min(head.low, n + 1), INFINITE if head.high > n else head.high)

    def spread(self, state: int) -> Spread:
        """Lengths of what may still come, in code points."""
        spreads = self._spreads
        if state >= len(spreads):
            with GROWING:
                for number in range(len(spreads), state + 1):
                    options = [head.spread.then(spreads[tail]) for head, tail in self._items[number]]
                    if self._accepts[number]:
                        options.append(NOTHING)
                    spreads.append(reduce(Spread.either, sorted(options)))
        return spreads[state]

    @property
    def n_states(self) -> int:
        return len(self._items)

    def _sample(self, node: Node) -> bytes:
        """The shortest bytes that match it."""
        if node.size == 0:
            return b""  # not by looking inside: what is optional there may hold the rule itself
        known = self._samples.get(node.id)
        if known is not None:
            return known
        out = b""
        if node.kind is Kind.CLASS:
            out = chr(sample(node.ranges)).encode()
        elif node.kind is Kind.REST:
            value = node.ranges[0][0]
            out = bytes(0x80 | (value >> (6 * i)) & 0x3F for i in reversed(range(node.low)))
        elif node.kind is Kind.EITHER:
            out = self._sample(min(node.options, key=lambda option: option.size))
        elif node.kind is Kind.LOOP:
            out = self._sample(node.first) * node.low
        elif node.kind is Kind.RULE:
            out = self._sample(self._rules[node.low])
        elif node.kind is Kind.SEQUENCE:
            parts = []
            while node.kind is Kind.SEQUENCE:
                parts.append(self._sample(node.first))
                node = node.rest
            return b"".join(parts) + self._sample(node)
        self._samples[node.id] = out
        return out

    # --- construction -----------------------------------------------------------------------

    def _intern(self, accepts: bool, items: Items) -> int:
        if not items and not accepts:
            return DEAD
        key = (accepts, tuple((head.id, tail) for head, tail in items))
        number = self._numbers.get(key)
        if number is None:
            n_bytes = N_BYTES + N_BYTES_ITEM * len(items) + N_BYTES_CLASS * len(self._representatives)
            charge(n_bytes, 2 + len(items) // 4)
            number = self._numbers[key] = len(self._items)
            self._accepts.append(accepts)
            self._items.append(items)
            self._rows.append([HOLE] * len(self._representatives))
            shortest = 0 if accepts else min(head.size + self._shortest[tail] for head, tail in items)
            self._shortest.append(min(shortest, INFINITE))
        return number

    def _union(self, states: Sequence[int]) -> int:
        """The state that goes on like any of them. Iterative: deep stacks may share long beginnings."""
        wanted = tuple(sorted({s for s in states if s != DEAD}))
        if len(wanted) < 2:
            return wanted[0] if wanted else DEAD
        work = [wanted]
        while work:
            key = work[-1]
            if key in self._unions:
                work.pop()
                continue
            gathered = Gathering()
            for state in key:
                self._pour(gathered, state)
            missing = self._missing(gathered)
            if missing:
                work.extend(missing)
                continue
            self._unions[key] = self._settle(gathered)
        return self._unions[wanted]

    def _pour(self, gathered: Gathering, state: int) -> None:
        spend(1 + len(self._items[state]) // 8)
        gathered.accepts |= self._accepts[state]
        for head, tail in self._items[state]:
            gathered.add(head, tail)

    def _missing(self, gathered: Gathering) -> list[tuple[int, ...]]:
        """Unions of tails that must be made before the gathered items can become a state."""
        keys = (tuple(sorted(tails)) for tails in gathered.tails.values() if len(tails) > 1)
        return [key for key in keys if key not in self._unions]

    def _settle(self, gathered: Gathering) -> int:
        """The state of the gathered items; all unions of their tails exist."""
        if gathered.accepts and self._end in gathered.tails.get(self._nodes.anything, ()):
            return self._universal
        items: list[tuple[Node, int]] = []
        loops: dict[tuple[int, int], list[int]] = {}
        for head in sorted(gathered.tails):
            tails = gathered.tails[head]
            tail = tails[0] if len(tails) == 1 else self._unions[tuple(sorted(tails))]
            if head.kind is Kind.LOOP:
                loops.setdefault((head.first.id, tail), []).append(len(items))
            items.append((head, tail))
        lost = {i for group in loops.values() if len(group) > 1 for i in covered(items, group)}
        if lost:
            items = [item for i, item in enumerate(items) if i not in lost]
        return self._intern(gathered.accepts, tuple(items))

    def _finish(self, gathered: Gathering) -> int:
        for key in self._missing(gathered):
            self._union(key)
        return self._settle(gathered)

    def _push(self, node: Node, tail: int) -> int:
        """The state that matches `node` and then goes on in `tail`."""
        spine: list[Node] = []
        while node.kind is Kind.SEQUENCE:
            spine.append(node.first)
            node = node.rest
        state = self._push_one(node, tail)
        for part in reversed(spine):
            state = self._push_one(part, state)
        return state

    def _push_one(self, node: Node, tail: int) -> int:
        if node.kind is Kind.EMPTY or tail == DEAD:
            return tail
        if node.kind is Kind.NEVER:
            return DEAD
        key = (node.id, tail)
        state = self._pushed.get(key)
        if state is None:
            charge(N_BYTES_ITEM)
            if node.kind is Kind.EITHER:
                state = self._union([self._push(option, tail) for option in node.options])
            elif node.kind is Kind.SEQUENCE:
                state = self._push(node, tail)
            else:
                state = self._intern(False, ((node, tail),))
                if node.nullable:
                    state = self._union([state, tail])
            self._pushed[key] = state
        return state

    def _enter(self, node: Node, tail: int) -> int:
        """Like `_push`, but without skipping `node` when it is nullable; loops and rules are opened."""
        key = (node.id, tail)
        state = self._entered.get(key)
        if state is not None:
            return state
        charge(N_BYTES_ITEM)
        if node.kind is Kind.LOOP:
            # For a nullable body the skipped iterations add nothing: low is 0 then, and fewer rounds are a subset.
            again = self._nodes.loop(node.first, max(node.low - 1, 0), _less(node.high))
            state = self._enter(node.first, self._push(again, tail))
        elif node.kind is Kind.RULE:
            state = self._enter(self._rules[node.low], tail)
        elif node.kind is Kind.EITHER:
            state = self._union([self._enter(option, tail) for option in node.options])
        elif node.kind is Kind.SEQUENCE:
            parts = []
            while node.kind is Kind.SEQUENCE:
                parts.append(self._enter(node.first, self._push(node.rest, tail)))
                if not node.first.nullable:
                    break
                node = node.rest
            else:
                parts.append(self._enter(node, tail))
            state = self._union(parts)
        elif node.kind in (Kind.EMPTY, Kind.NEVER):
            state = DEAD
        else:
            state = self._intern(False, ((node, tail),))
        self._entered[key] = state
        return state

    def _complete(self, state: int) -> list[int]:
        """The whole row of a state: classes that every item treats alike are derived once."""
        row = self._rows[state]
        if HOLE not in row:
            return row
        items = self._items[state]
        if not items:
            row[:] = [DEAD] * len(row)
            return row
        spend(1 + len(items) * len(row) // 32)
        columns = [self._column(head, tail) for head, tail in items]
        if len(columns) == 1:
            column = columns[0]
            if items[0][0].kind in (Kind.LOOP, Kind.RULE):
                self._rows[state] = column
                return column
            made = {None: DEAD}
            row[:] = [made[x] if x in made else made.setdefault(x, self._reached([x])) for x in column]
            return row
        known: dict[tuple[Node | int | None, ...], int] = {}
        for kind, outcomes in enumerate(zip(*columns, strict=True)):
            target = known.get(outcomes)
            if target is None:
                target = known[outcomes] = self._reached(outcomes)
            row[kind] = target
        return row

    def _reached(self, outcomes: Sequence[tuple[Node, int] | int | None]) -> int:
        """The state that the outcomes of all items make together."""
        live = [x for x in outcomes if x is not None and x != DEAD]
        if len(live) == 1 and isinstance(live[0], int):
            return live[0]
        gathered = Gathering()
        for outcome in live:
            if isinstance(outcome, int):
                self._pour(gathered, outcome)
            else:
                gathered.add(*outcome)
        return self._finish(gathered)

    def _column(self, head: Node, tail: int) -> list[Any]:
        """What an item does with each class of bytes: a state, an item (node, tail), or None."""
        if head.kind in (Kind.LOOP, Kind.RULE):
            opened = self._enter(head, tail)
            return [DEAD] * len(self._representatives) if opened == DEAD else self._complete(opened)
        template = self._templates.get(head.id)
        if template is None:
            charge(N_BYTES_CLASS * len(self._representatives), 1 + len(self._representatives) // 4)
            template = self._templates[head.id] = [self._after(head, byte) for byte in self._representatives]
        return [x if x is None else tail if x is self._nodes.empty else (x, tail) for x in template]

    def _after(self, head: Node, byte: int) -> Node | None:
        """The rest of a character after one of its bytes; `empty` if it was the last one."""
        if head.kind is Kind.CLASS and byte < 0x80:
            return self._nodes.empty if contains(head.ranges, byte) else None
        if head.kind is Kind.CLASS:
            width, ranges = after_lead(head.ranges, byte)
            return self._nodes.remainder(width, ranges) if ranges else None
        if byte & 0xC0 != 0x80:
            return None
        ranges = after_continuation(head.low, head.ranges, byte)
        if not ranges:
            return None
        return self._nodes.empty if head.low == 1 else self._nodes.remainder(head.low - 1, ranges)

    def _derive(self, state: int, byte: int) -> int:
        gathered = Gathering()
        for head, tail in self._items[state]:
            if head.kind in (Kind.LOOP, Kind.RULE):
                opened = self._enter(head, tail)
                target = DEAD if opened == DEAD else self.step(opened, byte)
                if target != DEAD:
                    self._pour(gathered, target)
                continue
            after = self._after(head, byte)
            if after is self._nodes.empty:
                self._pour(gathered, tail)
            elif after is not None:
                gathered.add(after, tail)
        return self._finish(gathered)


def _less(high: int) -> int:
    return high if high == INFINITE else high - 1
