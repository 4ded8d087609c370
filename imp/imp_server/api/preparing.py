"""From a request to prompts ready for the engine: text in threads, grammars in processes, neither for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from imp_server.api.checks import Checks, RequestProver, Unanswered
from imp_server.api.pool import WorkerPool
from imp_server.api.text_side import TextSide
from imp_server.core import ChatRequest, InvalidRequest, PromptRequest, Unavailable
from imp_server.core.errand import Errand, NotWanted, running
from imp_server.grammar.proving import Refusal
from imp_server.text.session import Prepared

PlanOutput = Callable[[RequestProver], Prepared]


def check_vectors(prepared: Sequence[Prepared], width: int, most_mib: int, param: str = "input") -> None:
    """Raises InvalidRequest where embeddings would be more numbers than a reply may hold; `param`: what the texts are
    called."""
    asked = [prompt.request for prompt in prepared if prompt.request.task == "embed"]
    n_vectors = sum(len(one.ids) // 4 if one.pooling == "none" else 1 for one in asked)
    n_bytes = 4 * width * n_vectors
    if n_bytes > most_mib << 20:
        raise InvalidRequest(
            f"{n_vectors} vectors of {width} numbers take {n_bytes >> 20} MiB, and a reply may hold {most_mib} "
            "(server.max_vector_mib): send less at once",
            param=param,
        )


class Preparing:
    """Owner of one reply's way there. `stop` ends it, whatever it is doing."""

    def __init__(self, pool: WorkerPool, checks: Checks, owner: str, limit_s: float | None) -> None:
        """`owner`: whose work it is, for fairness. `limit_s`: seconds that all of it may take."""
        self._pool = pool
        self._checks = checks
        self._owner = owner
        self._limit_s = limit_s
        self._checking: asyncio.Task[dict[bytes, Refusal]] | None = None
        self._ended: dict[bytes, Refusal] = {}
        self._errand = Errand()

    @property
    def is_stopped(self) -> bool:
        return self._errand.is_over

    def stop(self) -> None:
        self._errand.end()
        if self._checking is not None:
            self._checking.cancel()

    async def run(self, side: TextSide, requests: Sequence[ChatRequest | PromptRequest]) -> list[Prepared] | None:
        """None if it was stopped. Raises what the text side raises, and Unavailable."""
        try:
            with running(self._errand):
                async with asyncio.timeout(self._limit_s):
                    return await self._run(side, requests)
        except NotWanted:
            return None
        except TimeoutError:
            raise Unavailable(
                "making this request's prompt and checking its grammar took longer than server.request_timeout_s",
                retry_after_s=5.0,
            ) from None
        finally:
            self._errand.end()

    async def _run(self, side: TextSide, requests: Sequence[ChatRequest | PromptRequest]) -> list[Prepared] | None:
        steps = await self._pool.run(_begin, side, requests)
        prepared: list[Prepared] = []
        while True:
            try:
                while len(prepared) < len(steps) and not self.is_stopped:
                    n_done = len(prepared)
                    prepared += await self._pool.run(self._some, steps[n_done:])
                return None if self.is_stopped else prepared
            except Unanswered as unanswered:
                if not await self._learn(unanswered.questions):
                    return None

    def _some(self, steps: list[PlanOutput]) -> list[Prepared]:
        """As many as are known; at least one."""
        prepared: list[Prepared] = []
        for step in steps:
            try:
                prepared.append(self._checks.attempt(step, self._ended))
            except Unanswered:
                if not prepared:
                    raise
                break
        return prepared

    async def _learn(self, questions: RequestProver) -> bool:
        """False if that was stopped."""
        if self.is_stopped:
            return False
        task = self._checking = asyncio.ensure_future(self._checks.answer(questions, self._owner))
        try:
            self._ended |= await task
        except asyncio.CancelledError:
            task.cancel()
            if self.is_stopped:
                return False
            raise
        finally:
            self._checking = None
        return True


def _begin(side: TextSide, requests: Sequence[ChatRequest | PromptRequest]) -> list[PlanOutput]:
    return [side.begin_chat(r) if isinstance(r, ChatRequest) else side.begin_prompt(r) for r in requests]
