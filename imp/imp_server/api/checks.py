"""Whether grammars may be served: each is asked once, of a worker process that ends with whoever wants to know.

Plain grammars (grammar/plain.py) are told at once. A schema's verdict serves whatever it is part of: an envelope is
proved around the schemas that are known, and what all of them take is added up. Only verdicts that are numbers are
kept, never that a process was ended from outside. What an engine gives up although it was checked is kept, too, so that
nobody begins it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Literal, TypeVar

import msgspec

from imp_server.core import GrammarPlan, GrammarRefused, GrammarTooCostly, Unavailable
from imp_server.core.limits import CHECK
from imp_server.grammar.proving import ProofJob, Refusal, Verdict, verdict_at_once, verdict_key
from imp_server.grammar.whole_schema import JOB as JUDGE
from imp_server.grammar.whole_schema import Unjudged
from imp_server.workers.jobs import JobBroken, JobFault, Jobs
from imp_server.workers.wire import JobLimits

_log = logging.getLogger(__name__)
T = TypeVar("T")
PROOF = "imp_server.grammar.proving:proved"
WARM_UP = "imp_server.grammar.proving:warm_up"
LIMITS = JobLimits(cpu_s=5.0, memory_bytes=384 << 20)
"""A backstop: the units and bytes of the check itself end far below it."""
REFUSED = "grammar_refused_total"
"""Counts requests refused for their grammar."""
KILLED = 'worker_killed_total{job="grammar"}'
"""Counts checks that only the backstop ended."""
_FEW = 5
"""Plans that one process proves at least, where several are free: starting one takes as long as an easy proof."""
_ENTRY_BYTES = 200
"""Of a verdict in memory, without its text."""


NOTHING: Mapping[bytes, Refusal] = {}


class Unanswered(Exception):
    """Plans nobody knows about yet."""

    def __init__(self, questions: RequestProver) -> None:
        super().__init__()
        self.questions = questions


class KnownVerdicts:
    """Owner of what is known of plans, the least recently used forgotten first. Thread-safe."""

    def __init__(self, most_bytes: int = 8 << 20) -> None:
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: bytes) -> Verdict | None:
        """None: nobody knows."""
        with self._lock:
            verdict = self._known.get(key)
            if verdict is not None:
                self._known.move_to_end(key)
            return verdict

    def replace(self, key: bytes, verdict: Verdict) -> None:
        """As `put`, whatever was known."""
        with self._lock:
            if key in self._known:
                self.n_bytes -= _size(self._known.pop(key))
            self._keep(key, verdict)

    def put(self, key: bytes, verdict: Verdict) -> None:
        """A whole one."""
        with self._lock:
            if key not in self._known:
                self._keep(key, verdict)

    def _keep(self, key: bytes, verdict: Verdict) -> None:
        self._known[key] = verdict
        self.n_bytes += _size(verdict)
        while self.n_bytes > self._most_bytes:
            _, oldest = self._known.popitem(last=False)
            self.n_bytes -= _size(oldest)


def _size(verdict: Verdict) -> int:
    refusal = verdict.refusal
    return _ENTRY_BYTES + (len(refusal.message) + len(refusal.pointer) if refusal is not None else 0)


class RequestProver:
    """The prover of one try at a request: answers from what is known, and notes the rest."""

    def __init__(self, verdicts: KnownVerdicts, ended: Mapping[bytes, Refusal]) -> None:
        """`ended`: plans whose proofs were ended from outside, for this request alone."""
        self._verdicts, self._ended = verdicts, ended
        self.open: dict[bytes, GrammarPlan] = {}
        self._n_unknown = 0
        self.known: list[str] = []
        """Digests of schemas' plans that are known to be served."""

    def prove(self, plan: GrammarPlan) -> None:
        found = self._verdict(plan)
        if found is not None and found.refusal is not None:
            raise found.refusal.error()

    def _verdict(self, plan: GrammarPlan) -> Verdict | None:
        """None: it has to be learnt, that of its parts first."""
        key = verdict_key(plan.kind, plan.digest)
        if key in self._ended:
            return Verdict(self._ended[key])
        found = self._verdicts.get(key)
        if found is None:
            n_unknown = self._n_unknown
            found = verdict_at_once(plan, self._verdict)
            if found is not None:
                self._verdicts.put(key, found)
            elif self._n_unknown == n_unknown:
                self.open[key] = plan
        if found is None:
            self._n_unknown += 1
        if found is not None and found.refusal is None and plan.kind == "json_schema":
            self.known.append(plan.digest)
        return found

    def settle(self) -> None:
        if self.open:
            raise Unanswered(self)


class Checks:
    """Owner of the verdicts; the jobs are its own."""

    def __init__(self, jobs: Jobs, *, limits: JobLimits = LIMITS) -> None:
        self.verdicts = KnownVerdicts()
        self.jobs = jobs
        self.counters: Counter[str] = Counter({REFUSED: 0, KILLED: 0})
        self._limits = limits

    def attempt(self, plan_output: Callable[[RequestProver], T], ended: Mapping[bytes, Refusal] = NOTHING) -> T:
        """One try, on any thread. Raises Unanswered where the prover has to learn something first.

        `ended`: what `answer` said before.
        """
        questions = RequestProver(self.verdicts, ended)
        try:
            return plan_output(questions)
        except GrammarRefused:
            # The first of several refusals is the one to tell, also where later ones are known already.
            questions.settle()
            self.counters[REFUSED] += 1
            raise

    def give_up(self, plan: GrammarPlan, error: GrammarTooCostly) -> None:
        """A grammar that was checked took more than any may: it is refused from now on. From the event loop only."""
        refusal = Refusal("too_costly", error.message, error.pointer)
        self.verdicts.replace(verdict_key(plan.kind, plan.digest), Verdict(refusal))

    async def answer(self, questions: RequestProver, owner: str) -> dict[bytes, Refusal]:
        """Learn what is open. Cancelling ends the work at once. Raises Unavailable.

        What only a process's limits ended is told, for the next `attempt` of the same request.
        """
        ended: dict[bytes, Refusal] = {}
        keys = list(questions.open)
        apart = frozenset(questions.known)
        n_jobs = max(1, min(self.jobs.n_free, len(keys) // _FEW))
        parts = [self._learn(questions, keys[i::n_jobs], apart, owner, ended) for i in range(n_jobs)]
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            around = [found for part in await asyncio.gather(*tasks) for found in part]
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        for key, verdict in around:
            if self._add_up(key, verdict) == "more":
                # alone, where what its parts have in common counts once
                await self._learn(questions, [key], frozenset(), owner, ended)
        return ended

    async def satisfies(self, asked: Unjudged, owner: str) -> bool:
        """Whether an answer is known to satisfy its whole schema; one that takes too long isn't. Cancelling ends it."""
        try:
            return await self.jobs.run(JUDGE, msgspec.msgpack.encode(asked), self._limits, owner) == b"\x01"
        except JobBroken:
            self.counters[KILLED] += 1
        except JobFault:  # its words could quote the answer
            _log.error("an answer couldn't be held against its schema: the validator failed")
        except Unavailable:
            pass
        return False

    def _add_up(self, key: bytes, verdict: Verdict) -> Literal["less", "more", "unknown"]:
        """Whether a plan and what it leaves out take less than a check may together; it is then known to be served."""
        parts = [self.verdicts.get(verdict_key("json_schema", digest)) for digest in verdict.apart]
        n_units, n_bytes = verdict.n_units, verdict.n_bytes
        for part in parts:
            if part is None or part.refusal is not None:
                return "unknown"
            n_units += part.n_units
            n_bytes += part.n_bytes
        if n_units > CHECK.n_units or n_bytes > CHECK.n_bytes:
            return "more"
        self.verdicts.put(key, Verdict(None, n_units, n_bytes))
        return "less"

    async def _learn(
        self,
        questions: RequestProver,
        keys: list[bytes],
        apart: frozenset[str],
        owner: str,
        ended: dict[bytes, Refusal],
    ) -> list[tuple[bytes, Verdict]]:
        """Those verdicts that leave something out; the others are known by then, or `ended`."""
        job = ProofJob(tuple(questions.open[key] for key in keys), apart)
        try:
            data = await self.jobs.run(PROOF, msgspec.msgpack.encode(job), self._limits, owner)
        except JobBroken:
            self.counters[KILLED] += 1
            if len(keys) == 1:
                where = " at #" if questions.open[keys[0]].kind == "json_schema" else ""
                ended[keys[0]] = Refusal("broken_off", f"this grammar takes too much work{where}; simplify it")
                return []
            found = [await self._learn(questions, [key], apart, owner, ended) for key in keys]  # to tell which
            return [each for part in found for each in part]
        around: list[tuple[bytes, Verdict]] = []
        for key, verdict in zip(keys, msgspec.msgpack.decode(data, type=list[Verdict]), strict=True):
            if verdict.apart:
                around.append((key, verdict))
            else:
                self.verdicts.put(key, verdict)
        return around
