"""Frames of envelopes: literals in parallel, values pushed above them, free and raw text up to a tag.

A Script local is a set of *threads*, each the nodes it still has to read (a cons list), so literals that begin alike
run side by side until they differ.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Union

from imp_server.core import SPECIAL_CLOSE, SPECIAL_OPEN
from imp_server.grammar import envelope as env
from imp_server.grammar.frames.goals import Goal
from imp_server.grammar.frames.local import Local
from imp_server.grammar.frames.verdicts import Verdicts
from imp_server.grammar.machine import DEAD, Machine

if TYPE_CHECKING:
    from imp_server.grammar.frames.space import Space

UNTYPED = (SPECIAL_OPEN[0], SPECIAL_CLOSE[0])


class Rest(NamedTuple):
    """What a thread still has to read: `node`, then `then`. `free`: where an Again inside goes back to."""

    node: env.Node
    then: Union[Rest, None]  # noqa: UP007
    at: int = 0
    """Bytes of a Lit already read, or passes of a Repeat."""
    free: Union[Rest, None] = None  # noqa: UP007


Threads = frozenset[Rest | None]
"""None: a thread that has read everything."""


class Script(Local):
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
                after = thread._replace(at=thread.at + 1) if thread.at + 1 < len(node.data) else thread.then
                following.setdefault(node.data[thread.at], set()).add(after)
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
        best: bytes | None = None
        for thread in self.threads:
            lead = b"" if thread is None else self.goals.lead(self.space, thread)
            if lead and (best is None or len(lead) < len(best)):
                best = lead
        assert best is not None
        return best


class AfterValue(Local):
    """Waits for a value pushed above an envelope."""

    __slots__ = ("goals", "then")

    def __init__(self, space: Space, goals: Goals, then: Rest | None) -> None:
        super().__init__(space)
        self.goals = goals
        self.then = then

    def entries(self) -> dict[int, int]:
        return {0: self.goals.script(self.space, {self.then})}

    def lead(self) -> bytes:
        raise AssertionError("a waiting frame is never on top")


class FreeText(Local):
    """Free text; `matched`: the longest beginning of a tag that stands at its end."""

    __slots__ = ("goals", "here", "matched")

    def __init__(self, space: Space, goals: Goals, here: Rest, matched: bytes) -> None:
        super().__init__(space)
        self.goals = goals
        self.here = here
        self.matched = matched

    @property
    def node(self) -> env.Free:
        assert isinstance(self.here.node, env.Free)
        return self.here.node

    def entries(self) -> dict[int, int]:
        space, goals = self.space, self.goals
        found: dict[int, int] = {}
        plain = space.free_text(goals, self.here, b"").id
        tags = [b.tag for b in self.node.branches]
        inside = bool(self.matched) and self.matched.rfind(SPECIAL_OPEN) > self.matched.rfind(SPECIAL_CLOSE)
        for byte in range(256):
            after = longest_beginning(self.matched + bytes([byte]), tags)
            complete = [b for b in self.node.branches if after.endswith(b.tag)]
            if complete:
                branch = max(complete, key=lambda b: len(b.tag))
                found[byte] = goals.script(space, {Rest(branch.then, self.here.then, 0, self.here)})
            elif after and (not inside or len(after) == len(self.matched) + 1):
                found[byte] = space.free_text(goals, self.here, after).id
            elif byte not in UNTYPED and not inside:
                found[byte] = plain
        return found

    @property
    def end_result(self) -> int:
        return 0 if self.node.may_end and SPECIAL_OPEN not in self.matched else -1

    def lead(self) -> bytes:
        branch = min(self.node.branches, key=lambda b: len(self.goals.shortest(self.space, b, self.here)))
        shared = self.matched if branch.tag.startswith(self.matched) else b""
        return branch.tag[len(shared) :]


class RawText(Local):
    """Raw text under a machine. `closers`: how much of the closer stands there, begun where the text might end."""

    __slots__ = ("closers", "goals", "here", "machine", "matched", "state")

    def __init__(
        self,
        space: Space,
        goals: Goals,
        here: Rest,
        machine: Machine,
        state: int,
        matched: int,
        closers: frozenset[int],
    ) -> None:
        """`matched`: bytes of the closer that stand at the end of the text, whether it may end there or not."""
        super().__init__(space)
        self.goals = goals
        self.here = here
        self.machine = machine
        self.state = state
        self.matched = matched
        self.closers = closers

    @property
    def node(self) -> env.Raw:
        assert isinstance(self.here.node, env.Raw)
        return self.here.node

    @property
    def guard(self) -> int:
        return self.node.guard or max(1, len(self.node.closer.rstrip()) - 1)

    def entries(self) -> dict[int, int]:
        found = {}
        for byte in range(256):
            after = self.after(byte)
            if isinstance(after, RawText):
                if after.alive():
                    found[byte] = after.id
            elif after is not None:
                found[byte] = self.goals.script(self.space, {self.here.then})
        return found

    def after(self, byte: int) -> RawText | bool | None:
        """The frame after a byte; True where the closer is complete, None where the byte is impossible."""
        closer, machine = self.node.closer, self.machine
        begun = set(self.closers)
        if self.state != DEAD and machine.accepts(self.state):
            begun.add(0)
        closers = frozenset(n + 1 for n in begun if closer[n] == byte)
        if len(closer) in closers:
            return True
        matched = _overlap(closer, closer[: self.matched] + bytes([byte]))
        state = DEAD if self.state == DEAD or byte in UNTYPED else machine.step(self.state, byte)
        if matched >= self.guard:
            state = DEAD
        if state == DEAD and not closers:
            return None
        if state == DEAD:
            matched = 0
        return self.space.raw_text(self.goals, self.here, machine, state, matched, closers)

    def alive(self) -> bool:
        return self.way() is not None

    def way(self) -> bytes | None:
        """A shortest way to the end of the closer."""
        return self.goals.raw_way(self)

    def lead(self) -> bytes:
        way = self.way()
        assert way is not None
        return way


class Goals:
    """What the nodes of one envelope lead to. Owner of the memo of one plan in one space."""

    def __init__(self, goal_of: dict[int, Goal], machine_of: dict[int, Machine], words: dict[int, Verdicts]) -> None:
        """Per node (by identity): the goal of a Value, the machine of a Raw, the verdicts of Words."""
        self._goal_of = goal_of
        self._machine_of = machine_of
        self._words = words
        self._ways: dict[RawText, bytes | None] = {}

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
            return space.free_text(self, single, b"").id
        if single is not None and isinstance(single.node, env.Raw):
            return self._raw(space, single).id
        if opened == {None}:
            return space.ended.id
        return space.script(self, frozenset(opened)).id

    def _open(self, thread: Rest | None, out: set[Rest | None]) -> None:
        """Replace sequences, alternatives and repeats by what they may begin with."""
        if thread is None:
            out.add(None)
            return
        node, then = thread.node, thread.then
        if isinstance(node, env.Seq):
            for part in reversed(node.parts):
                then = Rest(part, then, 0, thread.free)
            self._open(then, out)
        elif isinstance(node, env.Alt):
            for option in node.options:
                self._open(Rest(option, then, 0, thread.free), out)
        elif isinstance(node, env.Repeat):
            self._repeat(thread, node, out)
        elif isinstance(node, env.Lit) and not node.data:
            self._open(then, out)
        elif isinstance(node, env.Again):
            assert thread.free is not None, "Again outside of a Free"
            out.add(thread.free)
        elif isinstance(node, env.End):
            out.add(None)
        else:
            out.add(thread)

    def _repeat(self, thread: Rest, node: env.Repeat, out: set[Rest | None]) -> None:
        if thread.at >= node.low:
            self._open(thread.then, out)
        if node.high is None or thread.at < node.high:
            more = thread._replace(at=min(thread.at + 1, node.low + 1) if node.high is None else thread.at + 1)
            start = Rest(node.part, more, 0, thread.free)
            if thread.at and node.between:
                start = Rest(env.Lit(node.between), start, 0, thread.free)
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
        local = space.free_text(self, thread, b"") if isinstance(node, env.Free) else self._raw(space, thread)
        space.tables.entry(local.id, 0)
        row = space.tables.rows[local.id]
        return {byte: int(row[byte]) for byte in range(256) if row[byte] != DEAD}

    def _raw(self, space: Space, thread: Rest) -> RawText:
        machine = self._machine_of[id(thread.node)]
        return space.raw_text(self, thread, machine, machine.start, 0, frozenset())

    def lead(self, space: Space, thread: Rest) -> bytes:
        """A short text that brings the thread nearer to its end."""
        node = thread.node
        if isinstance(node, env.Lit):
            return node.data[thread.at :]
        if isinstance(node, env.Value):
            answer = space.shortest_value(self._goal_of[id(node)])
            return b"" if answer is None else answer.text()
        if isinstance(node, env.Words):
            verdicts = self._words[id(node)]
            return verdicts.shortest(verdicts.start)
        if isinstance(node, env.Free):
            return space.free_text(self, thread, b"").lead()
        return self._raw(space, thread).lead()

    def shortest(self, space: Space, branch: env.Branch, here: Rest) -> bytes:
        """A rough measure of a branch: its tag (and whether it comes back to free text)."""
        return branch.tag + (b"~" * 1000 if isinstance(branch.then, env.Again) else b"")

    def raw_way(self, start: RawText) -> bytes | None:
        if start in self._ways:
            return self._ways[start]
        closer = start.node.closer
        queue = deque([(start, b"")])
        reached = {start}
        answer: bytes | None = None
        while queue and len(reached) < 5000:
            here, text = queue.popleft()
            if here.closers:
                answer = text + closer[max(here.closers) :]
                break
            if here.state != DEAD and here.machine.accepts(here.state) and here.matched == 0:
                answer = text + closer
                break
            rest = here.machine.shortest(here.state) if here.state != DEAD else None
            for byte in dict.fromkeys((rest or b"")[:1] + b'\na "<'):
                after = here.after(byte)
                if isinstance(after, RawText) and after not in reached:
                    reached.add(after)
                    queue.append((after, text + bytes([byte])))
        self._ways[start] = answer
        return answer


def longest_beginning(text: bytes, tags: list[bytes]) -> bytes:
    """The longest end of `text` that is a beginning of some tag (or a whole one)."""
    for at in range(len(text)):
        if any(tag.startswith(text[at:]) for tag in tags):
            return text[at:]
    return b""


def _overlap(closer: bytes, text: bytes) -> int:
    for size in range(min(len(text), len(closer)), 0, -1):
        if closer.startswith(text[-size:]):
            return size
    return 0
