"""Frames of envelopes: literals in parallel, values pushed above them, and what leads to free and raw texts.

A Script local is a set of *threads*, each the nodes it still has to read (a cons list), so literals that begin alike
run side by side until they differ.
"""

from __future__ import annotations

from collections.abc import Iterable

from imp_server.core.turns import spend
from imp_server.grammar.frames.ends import Ends
from imp_server.grammar.frames.free_texts import FreeTexts
from imp_server.grammar.frames.goals import Goal
from imp_server.grammar.frames.plain_values import Scalars
from imp_server.grammar.frames.raw_texts import RawTexts
from imp_server.grammar.frames.store import ListedFrame, Store
from imp_server.grammar.frames.threads import EnvelopeFrames, RawEnds, Rest, Tags, Threads, read_on
from imp_server.grammar.frames.values import Values
from imp_server.grammar.frames.verdicts import Verdicts
from imp_server.grammar.languages import envelope as env
from imp_server.grammar.machines.machine import DEAD, Machine
from imp_server.grammar.values.sat.found import MAX_LEAD


class Script(ListedFrame):
    """Several threads at their next byte."""

    __slots__ = ("envelope", "threads")

    def __init__(self, store: Store, envelope: PlannedFrames, threads: Threads) -> None:
        super().__init__(store)
        self.envelope = envelope
        self.threads = threads

    def entries(self) -> dict[int, int]:
        found = dict[int, int]()
        following: dict[int, set[Rest | None]] = {}
        pushes: dict[int, int] = {}
        for thread in self.threads:
            if thread is None:
                continue
            node = thread.node
            if isinstance(node, env.Lit):
                following.setdefault(node.data[thread.at], set()).add(read_on(thread))
            else:
                for byte, entry in self.envelope.first_bytes(thread).items():
                    pushes.setdefault(byte, entry)
        for byte, threads in following.items():
            found[byte] = self.envelope.script(threads)
        return {**pushes, **found}

    @property
    def end_result(self) -> int:
        ends = (t is None or (isinstance(t.node, env.Free) and t.node.may_end) for t in self.threads)
        return 0 if any(ends) else -1

    def lead(self) -> bytes:
        """Of the thread that is nearest to its end: a further pass of a repeat may begin with fewer bytes."""
        envelope = self.envelope
        leads = [(envelope.distance(t), envelope.lead(t)) for t in self.threads if t is not None]
        return min((found for found in leads if found[1]), key=lambda found: (found[0], len(found[1])))[1]


class AfterValue(ListedFrame):
    """Waits for a value pushed above an envelope."""

    __slots__ = ("envelope", "then")

    def __init__(self, store: Store, envelope: EnvelopeFrames, then: Rest | None) -> None:
        super().__init__(store)
        self.envelope = envelope
        self.then = then

    def entries(self) -> dict[int, int]:
        return {0: self.envelope.script({self.then})}


class Scripts:
    """The frames of envelopes."""

    def __init__(self, values: Values, scalars: Scalars, ends: Ends) -> None:
        self.store = store = values.store.owned_by(self)
        self.values = values
        self.scalars = scalars
        self.ends = ends
        self.free_texts = FreeTexts(store)
        self.raw_texts = RawTexts(store)
        self._scripts: dict[tuple[PlannedFrames, Threads], Script] = store.table()
        self._after_values: dict[tuple[PlannedFrames, Rest | None], AfterValue] = store.table()

    def script(self, envelope: PlannedFrames, threads: Threads) -> Script:
        return self.store.local(self._scripts, (envelope, threads), lambda: Script(self.store, envelope, threads))

    def after_value(self, envelope: PlannedFrames, then: Rest | None) -> AfterValue:
        return self.store.local(self._after_values, (envelope, then), lambda: AfterValue(self.store, envelope, then))


class PlannedFrames(EnvelopeFrames):
    """What the nodes of one envelope lead to. Owner of the memo of one plan in one space."""

    def __init__(
        self,
        scripts: Scripts,
        goal_of: dict[int, Goal],
        machine_of: dict[int, Machine],
        words: dict[int, Verdicts],
        parts: tuple[env.Node, ...] = (),
    ) -> None:
        """By identity of nodes: goals of Values, machines of Raws, verdicts of Words. `parts`: what Refs refer to."""
        self._scripts = scripts
        self._parts = parts
        self._goal_of = goal_of
        self._machine_of = machine_of
        self._words = words
        self._ends: dict[Rest, RawEnds] = {}
        self._tags: dict[tuple[int, bool], Tags] = {}
        self._sizes: dict[int, int] = {}

    def is_empty(self, node: env.Node) -> bool:
        """Whether a Raw's schema allows no text at all."""
        machine = self._machine_of.get(id(node))
        return machine is not None and machine.start == DEAD

    def all_can_end(self, starts: Iterable[env.Node]) -> bool:
        """Whether each raw text that can be reached from some nodes has a way to its end."""
        todo: list[Rest | None] = [Rest(node, None) for node in starts]
        met: set[Rest] = set()
        while todo:
            opened: set[Rest | None] = set()
            self._open(todo.pop(), opened)
            for thread in opened:
                if thread is None or thread in met:
                    continue
                spend(2)
                met.add(thread)
                node = thread.node
                if isinstance(node, env.Raw):
                    if not self._can_end(thread):
                        return False
                    todo += [t for after in self.ends(thread).next.values() for t in after]
                elif isinstance(node, env.Free):
                    todo += [Rest(branch.then, thread.then) for branch in node.branches]
                else:
                    todo.append(thread.then)
        return True

    def _can_end(self, here: Rest) -> bool:
        """Of a raw text. Mostly no byte of a shortest one begins what can't stand there: it ends as it is."""
        machine, ends = self.machine(here), self.ends(here)
        text = machine.shortest(machine.start)
        if text is not None and {text[0] for text in ends.texts}.isdisjoint(text):
            return any(ends.next.values())
        return self._scripts.raw_texts.start(self, here).alive()

    def script(self, threads: set[Rest | None]) -> int:
        """The local that reads any of the threads on."""
        opened: set[Rest | None] = set()
        for thread in threads:
            self._open(thread, opened)
        single = next(iter(opened)) if len(opened) == 1 else None
        if single is not None and isinstance(single.node, env.Free):
            return self._scripts.free_texts.start(self, single).id
        if single is not None and isinstance(single.node, env.Raw):
            return self._scripts.raw_texts.start(self, single).id
        if opened == {None}:
            return self._scripts.ends.ended.id
        return self._scripts.script(self, frozenset(opened)).id

    def read(self, node: env.Node, then: Rest | None) -> int:
        """The local that reads the node, and then goes on."""
        return self.script({Rest(node, then)})

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

    def first_bytes(self, thread: Rest) -> dict[int, int]:
        """Entries of a thread that doesn't stand before a literal."""
        node, scripts = thread.node, self._scripts
        tables = scripts.store.tables
        if isinstance(node, env.Value):
            waiting = scripts.after_value(self, thread.then).id
            goal = self._goal_of[id(node)]
            return {b: tables.op(waiting, e) for b, e in scripts.values.first_bytes(goal).items()}
        if isinstance(node, env.Words):
            waiting = scripts.after_value(self, thread.then).id
            verdicts = self._words[id(node)]
            found = {}
            for byte in range(256):
                after = verdicts.step(verdicts.start, byte)
                if after != DEAD:
                    found[byte] = tables.op(waiting, scripts.scalars.scalar(verdicts, after).id)
            return found
        local = self._text(thread)
        tables.entry(local.id, 0)
        row = tables.rows[local.id]
        return {byte: int(row[byte]) for byte in range(256) if row[byte] != DEAD}

    def _text(self, thread: Rest) -> ListedFrame:
        texts = self._scripts.free_texts if isinstance(thread.node, env.Free) else self._scripts.raw_texts
        return texts.start(self, thread)

    def machine(self, here: Rest) -> Machine:
        return self._machine_of[id(here.node)]

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

    def lead(self, thread: Rest) -> bytes:
        """A short text that brings the thread nearer to its end."""
        node = thread.node
        if isinstance(node, env.Lit):
            return node.data[thread.at :]
        if isinstance(node, env.Value):
            answer = self._scripts.values.shortest(self._goal_of[id(node)])
            return b"" if answer is None else answer.text(MAX_LEAD)
        if isinstance(node, env.Words):
            verdicts = self._words[id(node)]
            return verdicts.shortest(verdicts.start)
        return self._text(thread).lead()

    def distance(self, thread: Rest | None) -> int:
        """About how many bytes lie before the end."""
        n_bytes = 0
        while thread is not None:
            node = thread.node
            if isinstance(node, env.Repeat):
                n_bytes += max(0, node.low - thread.at) * self.size(node.part)
            else:
                n_bytes += self.size(node) - thread.at
            thread = thread.then
        return n_bytes

    def size(self, node: env.Node) -> int:
        """About how many bytes a shortest text of the node has."""
        known = self._sizes.get(id(node))
        if known is None:
            self._sizes[id(node)] = 1000  # of a part that leads to itself
            known = self._sizes[id(node)] = self._size(node)
        return known

    def _size(self, node: env.Node) -> int:
        match node:
            case env.Lit():
                return len(node.data)
            case env.Raw():
                return min(len(node.closer + follow) for follow in node.follow or (b"",))
            case env.Seq():
                return sum(self.size(part) for part in node.parts)
            case env.Alt():
                return min((self.size(option) for option in node.options), default=0)
            case env.Repeat():
                return node.low * self.size(node.part)
            case env.Free():
                ways = [len(branch.tag) + self.size(branch.then) for branch in node.branches]
                return 0 if node.may_end else min(ways)
            case env.Ref():
                return self.size(self._parts[node.part])
            case env.End():
                return 0
            case _:
                return len(self.lead(Rest(node, None)))
