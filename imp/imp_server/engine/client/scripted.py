"""An engine without a model: plays token ids, delays, gates, errors and crashes from a script.

Requests pass the same acceptance checks and walk their plans with the same code as in a real engine, so
usage, finish reasons, stop strings and forced closings are exact. Everything runs on the caller's event loop.

    engine = ScriptedEngine(byte_vocabulary("<|end|>"))
    engine.play(text_ids("Hello"), Wait(0.1), text_ids(" you"))     # the next request, every choice
    engine.always(text_ids("ok"))                                   # every request without a play of its own

A play that runs out before its completion has ended is followed by the plan's first end id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from imp_server.core import (
    Draining,
    EngineCrashed,
    EngineRestarting,
    GenerateRequest,
    ImpError,
    ModelLoading,
    TokenLogprob,
    Unavailable,
    unpack_ids,
)
from imp_server.engine.acceptance import Limits, check_request
from imp_server.engine.choice import ChoiceOutput
from imp_server.engine.client.base import EngineState, EngineStats, OnLoading
from imp_server.engine.client.generation import LiveGeneration, Requests
from imp_server.engine.client.script import (
    Action,
    Crash,
    Emit,
    Fail,
    PlayedVectors,
    Player,
    Prefilled,
    ScriptGate,
    Wait,
    byte_vocabulary,
    text_ids,
)
from imp_server.engine.errors import failed, rejected
from imp_server.engine.messages import (
    Cancel,
    EndReasoning,
    ModelInfo,
    ReasoningEnded,
    ReasoningVerdict,
    RequestAccepted,
    SlotAction,
    SlotDone,
    StepDone,
    Submit,
    ToEngine,
)
from imp_server.vocab.table import Vocabulary

__all__ = [
    "Action",
    "Crash",
    "Emit",
    "Fail",
    "PlayedVectors",
    "Prefilled",
    "ScriptGate",
    "ScriptedEngine",
    "Wait",
    "byte_vocabulary",
    "text_ids",
]


@dataclass(slots=True, eq=False)
class _Row:
    output: ChoiceOutput
    task: asyncio.Task[None] | None = None
    running: bool = False


class ScriptedEngine:
    """An EngineClient that plays scripts. Owner of its rows; one event loop."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        context_length: int = 8192,
        n_rows: int = 8,
        max_queue: int = 128,
        tasks: tuple[str, ...] = ("generate", "embed", "score", "rank"),
        model_id: str = "scripted",
        load_seconds: float = 0.0,
        restart_seconds: float = 0.0,
    ) -> None:
        self.vocabulary = vocabulary
        self.limits = Limits(context_length, vocabulary.size, n_rows, max_queue, tasks)
        self.requests_seen: list[GenerateRequest] = []
        self.cancelled_keys: list[int] = []
        self.slot_actions: list[SlotAction] = []
        self.sessions_closed: list[str] = []
        self.n_crashes = 0
        self._info = ModelInfo(
            id=model_id,
            family="scripted",
            path="",
            context_length=context_length,
            trained_context=context_length,
            vocab_size=vocabulary.size,
            width=8,
            n_parameters=0,
            quantisation="none",
            tasks=tasks,
            n_rows=n_rows,
            backend="scripted",
        )
        self._state: EngineState = "stopped"
        self._load_seconds = load_seconds
        self._restart_seconds = restart_seconds
        self._plays: deque[Player] = deque()
        self._default: Player = lambda _request, _choice: ()
        self._requests = Requests(self._send)
        self._rows: dict[int, list[_Row]] = {}
        self._slots = asyncio.Semaphore(n_rows)
        self._adapters: dict[str, str] = {}
        self._restart: asyncio.Task[None] | None = None

    # --- scripting ------------------------------------------------------------------------------

    def play(self, *actions: Action) -> None:
        """What every choice of the next request without a play does. A request submitted again takes a further one."""
        self._plays.append(lambda _request, _choice: actions)

    def play_choices(self, *plays: Sequence[Action]) -> None:
        """One play per choice of the next request."""
        self._plays.append(lambda _request, choice: plays[choice])

    def always(self, *actions: Action) -> None:
        """What requests do for which no play is left."""
        self._default = lambda _request, _choice: actions

    def answer_with(self, player: Player) -> None:
        """As `always`, computed from the request."""
        self._default = player

    @property
    def n_running(self) -> int:
        """Rows in use: 0 once every request has ended or was cancelled."""
        return sum(row.running for rows in self._rows.values() for row in rows)

    # --- EngineClient ---------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def stalled_s(self) -> float:
        return 0.0

    @property
    def info(self) -> ModelInfo:
        if self._state in ("loading", "stopped"):
            raise ModelLoading("the model is still loading", retry_after_s=1.0)
        return self._info

    async def start(self, on_progress: OnLoading | None = None) -> None:
        self._state = "loading"
        if on_progress:
            on_progress("open", 0.0)
        await asyncio.sleep(self._load_seconds)
        if on_progress:
            on_progress("open", 1.0)
        self._state = "ready"

    async def submit(self, request: GenerateRequest) -> LiveGeneration:
        if self._state == "loading":
            raise ModelLoading("the model is still loading", retry_after_s=1.0)
        if self._state == "restarting":
            raise EngineRestarting("the engine is restarting; try again in a moment", retry_after_s=1.0)
        if self._state == "draining":
            raise Draining("the server is shutting down")
        if self._state == "stopped":
            raise Unavailable("the engine is stopped")
        return await self._requests.submit(request)

    def new_key(self) -> int:
        return self._requests.new_key()

    async def close_session(self, session_id: str) -> int:
        self.sessions_closed.append(session_id)
        return 0

    async def slot_action(self, action: SlotAction) -> SlotDone:
        """As if all slots were empty, and every file a whole one."""
        self.slot_actions.append(action)
        return SlotDone(0, 12, 3456, 1.5) if action.action == "restore" else SlotDone(0, problem="nothing")

    async def load_adapter(self, name: str, path: str) -> None:
        self._adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        self._adapters.pop(name, None)

    async def stats(self) -> EngineStats:
        running = [row.output for rows in self._rows.values() for row in rows if row.running]
        details = tuple(
            {"slot": slot, "key": out.request.key, "choice": out.choice}
            | {"n_prompt": len(out.request.ids) // 4, "n_output": out.n_tokens}
            for slot, out in enumerate(running)
        )
        counters = {
            "rows_running": float(self.n_running),
            "requests_waiting": float(self._n_queued()),
            "engine_crashes_total": float(self.n_crashes),
            "grammar_blown_caps_total": 0.0,
            "grammar_dead_ends_total": 0.0,
        }
        return EngineStats(counters, details)

    async def drain(self, timeout_s: float) -> None:
        self._state = "draining"
        tasks = [row.task for rows in self._rows.values() for row in rows if row.task]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        await self.stop()

    async def stop(self) -> None:
        self._state = "stopped"
        self._requests.fail_all(Unavailable("the engine was stopped"))
        for key in list(self._rows):
            self._drop(key)

    def kill(self) -> None:
        """Nothing runs outside of this process."""

    # --- the engine's side ----------------------------------------------------------------------

    def _send(self, message: ToEngine) -> None:
        if isinstance(message, Submit):
            self._accept(message.request)
        elif isinstance(message, Cancel):
            self.cancelled_keys.append(message.key)
            self._drop(message.key, message.choice)
        elif isinstance(message, EndReasoning):
            self._requests.receive(ReasoningEnded(message.key, self._end_reasoning(message.key)))

    def _accept(self, request: GenerateRequest) -> None:
        self.requests_seen.append(request)
        try:
            ids = check_request(request, self.limits, n_queued=self._n_queued(), adapters=self._adapters)
        except ImpError as error:
            self._requests.receive(rejected(request.key, error))
            return
        player = self._plays.popleft() if self._plays else self._default
        room = self.limits.context_length - len(ids)
        choices = range(request.options.n)
        rows = [_Row(ChoiceOutput(request, c, self.vocabulary.token_bytes, room=room)) for c in choices]
        self._rows[request.key] = rows
        loop = asyncio.get_running_loop()
        for row in rows:
            row.output.clock.arrived_s = loop.time()
            row.task = loop.create_task(self._run(row, player))
        self._requests.receive(RequestAccepted(request.key, len(ids)))

    async def _run(self, row: _Row, player: Player) -> None:
        output = row.output
        request = output.request
        try:
            async with self._slots:
                row.running = True
                output.clock.admitted_s = asyncio.get_running_loop().time()
                with suppress(TimeoutError):
                    async with asyncio.timeout(request.deadline_s):
                        await self._play(output, player(request, output.choice))
                if output.finish is None:
                    output.stop("length", "timed_out")
                    self._hand_off(output)
        except ImpError as error:
            self._requests.receive(failed(request.key, error))
            self._drop(request.key)
        finally:
            row.running = False

    async def _play(self, output: ChoiceOutput, actions: Iterable[Action]) -> None:
        if output.request.task != "generate" or output.request.plan.max_tokens == 0:
            await self._play_prompt_only(output, actions)
            return
        self._note_prompt(output)
        self._force(output)
        for action in actions:
            if output.finish is not None:
                return
            await self._act(output, action)
        while output.finish is None:
            end_ids = output.request.plan.end_ids or self.vocabulary.end_ids
            if end_ids and end_ids[0] in output.request.plan.end_ids:
                self._emit(output, [end_ids[0]])
            else:
                output.stop("length")
                self._hand_off(output)

    def _note_prompt(self, output: ChoiceOutput) -> None:
        """Logprobs of the prompt, invented like those of the output."""
        k = output.request.options.prompt_logprobs
        if k is not None and output.choice == 0:
            ids = unpack_ids(output.request.ids)[1:]
            output.note_prompt_logprobs([TokenLogprob(i, 0.0, ((i, 0.0),) if k else (), 1) for i in ids])

    async def _play_prompt_only(self, output: ChoiceOutput, actions: Iterable[Action]) -> None:
        self._note_prompt(output)
        for action in actions:
            if not isinstance(action, int | Emit | Sequence):
                await self._act(output, action)
        output.stop("length" if output.request.task == "generate" else "stop")
        self._hand_off(output)

    async def _act(self, output: ChoiceOutput, action: Action) -> None:
        match action:
            case int():
                self._emit(output, [action])
                await asyncio.sleep(0)
            case Emit():
                self._emit(output, action.ids, action.logprobs)
                await asyncio.sleep(0)
            case Wait():
                await asyncio.sleep(action.seconds)
            case ScriptGate():
                await action.event.wait()
            case Prefilled():
                output.note_prefilled(action.n_prefilled)
                if action.n_cached >= 0:
                    output.note_started(action.n_cached, action.n_to_cache)
                self._hand_off(output)
            case PlayedVectors():
                output.note_vectors(action.vectors)
            case Fail():
                raise action.error
            case Crash():
                self._crash()
                await asyncio.Event().wait()
            case _:
                for token_id in action:
                    if output.finish is None:
                        self._emit(output, [token_id])
                        await asyncio.sleep(0)

    def _emit(self, output: ChoiceOutput, ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> None:
        output.clock.first_token_s = output.clock.first_token_s or asyncio.get_running_loop().time()
        output.push(ids, logprobs)
        self._force(output)
        self._hand_off(output)

    def _force(self, output: ChoiceOutput) -> None:
        while output.finish is None and (forced := output.forced()):
            output.push(forced)

    def _hand_off(self, output: ChoiceOutput) -> None:
        output.look_at_clock(asyncio.get_running_loop().time())
        delta = output.take_delta()
        if delta is not None:
            self._requests.receive(StepDone((delta,)))
        if output.finish is not None and all(r.output.finish for r in self._rows.get(output.request.key, ())):
            self._rows.pop(output.request.key, None)

    def _n_queued(self) -> int:
        return sum(not row.running and row.output.finish is None for rows in self._rows.values() for row in rows)

    def _end_reasoning(self, key: int) -> ReasoningVerdict:
        rows = list(self._rows.get(key, ()))
        verdicts = [row.output.end_reasoning() for row in rows]
        for row in rows:
            if row.running:
                self._force(row.output)
                self._hand_off(row.output)
        return next((v for v in ("ending", "no_closer", "already_closed") if v in verdicts), "unknown")

    def _drop(self, key: int, choice: int = -1) -> None:
        """Free rows. The task that is running now (a crash it played itself) is left to be collected."""
        rows = self._rows.get(key, [])
        for row in list(rows):
            if choice in (-1, row.output.choice):
                rows.remove(row)
                row.running = False
                if row.task and row.task is not asyncio.current_task():
                    row.task.cancel()
        if not rows:
            self._rows.pop(key, None)

    def _crash(self) -> None:
        self.n_crashes += 1
        self._state = "restarting"
        again: list[GenerateRequest] = []
        for generation in self._requests:
            if generation.has_output or generation.resubmitted:
                self._requests.fail(generation, EngineCrashed("the engine crashed while it answered this request"))
            else:
                generation.resubmitted = True
                again.append(generation.request)
        for key in list(self._rows):
            self._drop(key)
        self._restart = asyncio.get_running_loop().create_task(self._come_back(again))

    async def _come_back(self, again: list[GenerateRequest]) -> None:
        await asyncio.sleep(self._restart_seconds)
        if self._state != "restarting":
            return
        self._state = "ready"
        live = {generation.key for generation in self._requests}
        for request in again:
            if request.key in live:
                self._accept(request)
