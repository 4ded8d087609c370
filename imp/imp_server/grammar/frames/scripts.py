"""Frames of envelopes: literals in parallel, values pushed above them, and what leads to free and raw texts.

A Script local is a set of *threads*, each the nodes it still has to read (a cons list), so literals that begin alike
run side by side until they differ.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Union

from imp_server.core.turns import GaveUp, spend
from imp_server.grammar.frames.free_texts import Tags
from imp_server.grammar.frames.goals import Goal
from imp_server.grammar.frames.local import Listed
from imp_server.grammar.frames.raw_texts import RawEnds, RawText
from imp_server.grammar.frames.verdicts import Verdicts
from imp_server.grammar.languages import envelope as env
from imp_server.grammar.machines.machine import DEAD, Machine
from imp_server.grammar.values.sat.found import MAX_LEAD

if TYPE_CHECKING:
    from imp_server.grammar.frames.space import Space


SEARCH = 5_000
"""Frames looked at for a way to the end of a raw text."""


class Rest(NamedTuple):
    """What a thread still has to read: `node`, then `then`."""

    node: env.Node
    then: Union[Rest, None]  # noqa: UP007
    at: int = 0
    """Bytes of a Lit already read, or passes of a Repeat."""


Threads = frozenset[Rest | None]
"""None: a thread that has read everything."""


def read_on(thread: Rest) -> Rest | None:
    """Behind the next byte of a literal."""
    assert isinstance(thread.node, env.Lit)
    return thread._replace(at=thread.at + 1) if thread.at + 1 < len(thread.node.data) else thread.then


class Script(Listed):
    """Several threads at their next byte."""

    __slots__ = ("goals", "threads")

    def __init__(self, space: Space, goals: Goals, threads: Threads) -> None:
        super().__init__(space)
        self.goals = goals
        self.threads = threads

    def entries(self) -> dict[int, int]:
        space, found = self.space, dict[int, int]()
        following: dict[int, set[Rest | None]] = {}
        pushes: dict[int, int] = {}
        for thread in self.threads:
            if thread is None:
                continue
            node = thread.node
            if isinstance(node, env.Lit):
                following.setdefault(node.data[thread.at], set()).add(read_on(thread))
            else:
                for byte, entry in self.goals.first_bytes(space, thread).items():
                    pushes.setdefault(byte, entry)
        for byte, threads in following.items():
            found[byte] = self.goals.script(space, threads)
        return {**pushes, **found}

    @property
    def end_result(self) -> int:
        ends = (t is None or (isinstance(t.node, env.Free) and t.node.may_end) for t in self.threads)
        return 0 if any(ends) else -1

    def lead(self) -> bytes:
        """Of the thread that is nearest to its end: a further pass of a repeat may begin with fewer bytes."""
        goals, space = self.goals, self.space
        leads = [(goals.distance(space, t), goals.lead(space, t)) for t in self.threads if t is not None]
        return min((found for found in leads if found[1]), key=lambda found: (found[0], len(found[1])))[1]


class AfterValue(Listed):
    """Waits for a value pushed above an envelope."""

    __slots__ = ("goals", "then")

    def __init__(self, space: Space, goals: Goals, then: Rest | None) -> None:
        super().__init__(space)
        self.goals = goals
        self.then = then

    def entries(self) -> dict[int, int]:
        return {0: self.goals.script(self.space, {self.then})}


class Goals:
    """What the nodes of one envelope lead to. Owner of the memo of one plan in one space."""

    def __init__(
        self,
        goal_of: dict[int, Goal],
        machine_of: dict[int, Machine],
        words: dict[int, Verdicts],
        parts: tuple[env.Node, ...] = (),
    ) -> None:
        """By identity of nodes: goals of Values, machines of Raws, verdicts of Words. `parts`: what Refs refer to."""
        self._parts = parts
        self._goal_of = goal_of
        self._machine_of = machine_of
        self._words = words
        self._ways: dict[RawText, bytes | None] = {}
        self._ends: dict[Rest, RawEnds] = {}
        self._tags: dict[tuple[int, bool], Tags] = {}
        self._sizes: dict[int, int] = {}

    def is_empty(self, node: env.Node) -> bool:
        """Whether a Raw's schema allows no text at all."""
        machine = self._machine_of.get(id(node))
        return machine is not None and machine.start == DEAD

    def script(self, space: Space, threads: set[Rest | None]) -> int:
        """The local that reads any of the threads on."""
        opened: set[Rest | None] = set()
        for thread in threads:
            self._open(thread, opened)
        single = next(iter(opened)) if len(opened) == 1 else None
        if single is not None and isinstance(single.node, env.Free):
            return space.free_text(self, single).id
        if single is not None and isinstance(single.node, env.Raw):
            return self._raw(space, single).id
        if opened == {None}:
            return space.ended.id
        return space.script(self, frozenset(opened)).id

    def read(self, space: Space, node: env.Node, then: Rest | None) -> int:
        """The local that reads the node, and then goes on."""
        return self.script(space, {Rest(node, then)})

    def _open(self, thread: Rest | None, out: set[Rest | None]) -> None:
        """Replace sequences, alternatives and repeats by what they may begin with."""
        if thread is None:
            out.add(None)
            return
        node, then = thread.node, thread.then
        if isinstance(node, env.Seq):
            for part in reversed(node.parts):
                then = Rest(part, then)
            self._open(then, out)
        elif isinstance(node, env.Alt):
            for option in node.options:
                self._open(Rest(option, then), out)
        elif isinstance(node, env.Repeat):
            self._repeat(thread, node, out)
        elif isinstance(node, env.Lit) and not node.data:
            self._open(then, out)
        elif isinstance(node, env.Ref):
            self._open(Rest(self._parts[node.part], then), out)
        elif isinstance(node, env.End):
            out.add(None)
        else:
            out.add(thread)

    def _repeat(self, thread: Rest, node: env.Repeat, out: set[Rest | None]) -> None:
        if thread.at >= node.low:
            self._open(thread.then, out)
        if node.high is None or thread.at < node.high:
            more = thread._replace(at=min(thread.at + 1, node.low + 1) if node.high is None else thread.at + 1)
            start = Rest(node.part, more)
            if thread.at and node.between:
                start = Rest(env.Lit(node.between), start)
            self._open(start, out)

    def first_bytes(self, space: Space, thread: Rest) -> dict[int, int]:
        """Entries of a thread that doesn't stand before a literal."""
        node = thread.node
        if isinstance(node, env.Value):
            waiting = space.after_value(self, thread.then).id
            goal = self._goal_of[id(node)]
            return {b: space.tables.op(waiting, e) for b, e in space.first_bytes(goal).items()}
        if isinstance(node, env.Words):
            waiting = space.after_value(self, thread.then).id
            verdicts = self._words[id(node)]
            found = {}
            for byte in range(256):
                after = verdicts.step(verdicts.start, byte)
                if after != DEAD:
                    found[byte] = space.tables.op(waiting, space.scalar(verdicts, after).id)
            return found
        local = space.free_text(self, thread) if isinstance(node, env.Free) else self._raw(space, thread)
        space.tables.entry(local.id, 0)
        row = space.tables.rows[local.id]
        return {byte: int(row[byte]) for byte in range(256) if row[byte] != DEAD}

    def _raw(self, space: Space, thread: Rest) -> RawText:
        machine = self._machine_of[id(thread.node)]
        return space.raw_text(self, thread, machine, machine.start, b"", frozenset(), False)

    def tags(self, node: env.Free, past: bool) -> Tags:
        found = self._tags.get((id(node), past))
        if found is None:
            found = self._tags[id(node), past] = Tags([b for b in node.branches if not (past and b.early)])
        return found

    def ends(self, here: Rest) -> RawEnds:
        found = self._ends.get(here)
        if found is None:
            node = here.node
            assert isinstance(node, env.Raw)
            texts = {node.closer + follow: self._read(here.then, follow) for follow in node.follow or (b"",)}
            found = self._ends[here] = RawEnds(dict.fromkeys(node.never, frozenset()) | texts, node.opener)
        return found

    def _read(self, thread: Rest | None, data: bytes) -> Threads:
        """Where the thread may be after `data`; nowhere if literals say something else."""
        threads: set[Rest | None] = {thread}
        for byte in data:
            opened: set[Rest | None] = set()
            for one in threads:
                self._open(one, opened)
            threads = {read_on(t) for t in opened if t and isinstance(t.node, env.Lit) and t.node.data[t.at] == byte}
        return frozenset(threads)

    def lead(self, space: Space, thread: Rest) -> bytes:
        """A short text that brings the thread nearer to its end."""
        node = thread.node
        if isinstance(node, env.Lit):
            return node.data[thread.at :]
        if isinstance(node, env.Value):
            answer = space.shortest_value(self._goal_of[id(node)])
            return b"" if answer is None else answer.text(MAX_LEAD)
        if isinstance(node, env.Words):
            verdicts = self._words[id(node)]
            return verdicts.shortest(verdicts.start)
        if isinstance(node, env.Free):
            return space.free_text(self, thread).lead()
        return self._raw(space, thread).lead()

    def distance(self, space: Space, thread: Rest | None) -> int:
        """About how many bytes lie before the end."""
        n_bytes = 0
        while thread is not None:
            node = thread.node
            if isinstance(node, env.Repeat):
                n_bytes += max(0, node.low - thread.at) * self.size(space, node.part)
            else:
                n_bytes += self.size(space, node) - thread.at
            thread = thread.then
        return n_bytes

    def size(self, space: Space, node: env.Node) -> int:
        """About how many bytes a shortest text of the node has."""
        known = self._sizes.get(id(node))
        if known is None:
            self._sizes[id(node)] = 1000  # of a part that leads to itself
            known = self._sizes[id(node)] = self._size(space, node)
        return known

    def _size(self, space: Space, node: env.Node) -> int:
        match node:
            case env.Lit():
                return len(node.data)
            case env.Raw():
                return min(len(node.closer + follow) for follow in node.follow or (b"",))
            case env.Seq():
                return sum(self.size(space, part) for part in node.parts)
            case env.Alt():
                return min((self.size(space, option) for option in node.options), default=0)
            case env.Repeat():
                return node.low * self.size(space, node.part)
            case env.Free():
                ways = [len(branch.tag) + self.size(space, branch.then) for branch in node.branches]
                return 0 if node.may_end else min(ways)
            case env.Ref():
                return self.size(space, self._parts[node.part])
            case env.End():
                return 0
            case _:
                return len(self.lead(space, Rest(node, None)))

    def _straight_way(self, start: RawText, closers: list[bytes]) -> bytes | None:
        """A shortest text of the machine, then a closer, where neither gets into the other's way."""
        text = start.machine.shortest(start.state) if start.state != DEAD and not start.closers else None
        if text is None or not closers:
            return None
        way = text + min(closers, key=lambda closer: (len(closer), closer))
        here: RawText | Threads | None = start
        for byte in way:
            if not isinstance(here, RawText):
                return None
            here = here.after(byte)
        return None if here is None or isinstance(here, RawText) else way

    def raw_way(self, start: RawText) -> bytes | None:
        if start in self._ways:
            return self._ways[start]
        closers = [text for text, after in self.ends(start.here).next.items() if after]
        answer = self._straight_way(start, closers)
        for likely in (b'\na "<', bytes(range(256))):
            answer = answer or self._searched(start, closers, likely)
        self._ways[start] = answer
        return answer

    def _searched(self, start: RawText, closers: list[bytes], likely: bytes) -> bytes | None:
        """A way of these bytes, and those of shortest texts. Raises GaveUp."""
        queue = deque([(start, b"")])
        reached = {start}
        while queue:
            here, text = queue.popleft()
            begun = set(here.closers)
            if here.state != DEAD and here.machine.accepts(here.state) and not here.matched:
                begun.add(b"")
            tails = [closer[len(b) :] for b in begun for closer in closers if closer.startswith(b)]
            if tails:
                return text + min(tails, key=lambda tail: (len(tail), tail))
            rest = here.machine.shortest(here.state) if here.state != DEAD else None
            spend(1 + len(likely) // 8)
            for byte in dict.fromkeys((rest or b"")[:1] + likely + here.node.closer[-1:]):
                after = here.after(byte)
                if isinstance(after, RawText) and after not in reached:
                    reached.add(after)
                    queue.append((after, text + bytes([byte])))
            if len(reached) > SEARCH:
                raise GaveUp
        return None
