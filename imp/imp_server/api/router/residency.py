"""Loads models when they are asked for, one after the other, and lets idle ones go for them.

A model that somebody uses, or that is being loaded, never goes. Whoever waits for a model waits in one queue, first
come, first served; all who wait for the same model share a turn, and a turn that nobody wants any more is given up.
Everything here runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass

from imp_server.api.model_host import ModelHost, Rest
from imp_server.api.pool import WorkerPool
from imp_server.core import Draining, ImpError, ModelLoadFailed, ModelNotLoaded, Suspended, Unavailable

_log = logging.getLogger(__name__)
RETRY_S = 5.0
"""So long the cause of a failed load is told again before the load is tried again."""
_TEXT_S, _MOST_TEXTS = 60.0, 8
"""Of models that aren't in memory: seconds for which a text side stays open when it was used, and how many may."""
_LOOK_S = 0.25
"""How often idle models are looked for."""


@dataclass(frozen=True, slots=True)
class Room:
    """What models loaded on demand may take together."""

    n_models: int = 0
    """0 = any number."""
    n_bytes: int = 0
    """0 = any amount."""


@dataclass(slots=True, eq=False)
class LoadTurn:
    """One model that is to be loaded, for all who wait for it."""

    host: ModelHost
    done: asyncio.Future[ImpError | None]
    n_waiting: int = 0
    is_kept: bool = False
    """An operator asked for it: it stays although nobody waits."""
    loading: asyncio.Task[None] | None = None

    @property
    def is_wanted(self) -> bool:
        return self.is_kept or self.n_waiting > 0 or self.loading is not None


class Residency:
    """Owner of the queue of loads and of the rest of each host."""

    def __init__(
        self,
        hosts: Callable[[], Iterable[ModelHost]],
        pool: WorkerPool,
        room: Room | None = None,
        *,
        autoload: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`hosts`: those that the server has now. `autoload`: a request loads the model that it names."""
        self._hosts, self._pool, self._room = hosts, pool, room or Room()
        self._autoload, self._clock = autoload, clock
        self._queue: list[LoadTurn] = []
        self._worker: asyncio.Task[None] | None = None
        self._resting: set[asyncio.Task[None]] = set()
        self._leaving: set[ModelHost] = set()
        """Not up any more, and still in memory."""
        self._changed = asyncio.Event()
        self._is_closed = False

    # --- for requests ---------------------------------------------------------------------------

    def is_up(self, host: ModelHost) -> bool:
        """Requests may go to its engine, which says itself what keeps it from taking them."""
        if host.rest or host.is_queued:
            return False
        return not host.on_demand or host.client.state in ("ready", "restarting", "draining")

    async def awake(self, host: ModelHost, limit_s: float | None) -> None:
        """Returns when the model can be asked. Cancelling it gives up the place in the queue.

        Raises ModelLoadFailed, ModelNotLoaded, Suspended, Draining; Unavailable when it takes longer than `limit_s`.
        """
        if self.is_up(host):
            return
        self._check(host)
        turn = self._turn_of(host)
        turn.n_waiting += 1
        try:
            async with asyncio.timeout(limit_s):
                error = await asyncio.shield(turn.done)
        except TimeoutError:
            message = f"model {host.id!r} wasn't loaded within server.request_timeout_s; try again later"
            raise Unavailable(message, retry_after_s=5.0) from None
        finally:
            turn.n_waiting -= 1
            self._changed.set()
        if error is not None:
            raise type(error)(error.message)

    def _check(self, host: ModelHost) -> None:
        if self._is_closed:
            raise Draining("the server is shutting down")
        if host.broken:
            raise ModelLoadFailed(f"model {host.id!r} can't be loaded: {host.broken}")
        if host.rest == "suspended":
            raise Suspended(f"model {host.id!r} was put to sleep; POST /admin/resume wakes it")
        if host.rest == "unloaded" and not self._autoload and self._find(host) is None:
            message = f"model {host.id!r} isn't loaded, and this server loads none by itself; POST /models/load does"
            raise ModelNotLoaded(message, param="model")
        if host.failure is not None and self._clock() - host.failed_s < RETRY_S and self._find(host) is None:
            raise load_failed(host)

    # --- for operators --------------------------------------------------------------------------

    def want(self, host: ModelHost) -> asyncio.Future[ImpError | None]:
        """Loads it when its turn comes, whoever waits; what came of it, None if it is in memory then."""
        if self.is_up(host):
            done: asyncio.Future[ImpError | None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        turn = self._turn_of(host)
        turn.is_kept = True
        return turn.done

    def let_go(self, host: ModelHost, rest: Rest, limit_s: float = 0.0) -> asyncio.Task[None]:
        """Takes it out of memory: what runs may finish for `limit_s`, what comes now waits for its next load.

        A load under way is given up. Done once its memory is free.
        """
        self._give_up(host, f"model {host.id!r} was taken out of memory before it was loaded")
        host.rest = rest
        task = asyncio.get_running_loop().create_task(self._end(host, rest, limit_s))
        self._resting.add(task)
        task.add_done_callback(self._resting.discard)
        return task

    async def close(self) -> None:
        """Nothing is loaded any more; who waits gets Draining."""
        self._is_closed = True
        for turn in list(self._queue):
            if not turn.done.done():
                turn.done.set_result(Draining("the server is shutting down"))
            if turn.loading is not None:
                turn.loading.cancel()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await asyncio.gather(*self._resting, return_exceptions=True)

    # --- the queue ------------------------------------------------------------------------------

    def _find(self, host: ModelHost) -> LoadTurn | None:
        return next((turn for turn in self._queue if turn.host is host and not turn.done.done()), None)

    def _turn_of(self, host: ModelHost) -> LoadTurn:
        turn = self._find(host)
        if turn is None:
            turn = LoadTurn(host, asyncio.get_running_loop().create_future())
            self._queue.append(turn)
            host.is_queued = True
            host.tell()
        if self._worker is None or self._worker.done():
            # Not in the context of the request that happens to be first: what it wants ends when its client leaves.
            self._worker = asyncio.get_running_loop().create_task(self._work(), context=Context())
        return turn

    def _remove(self, turn: LoadTurn) -> None:
        if turn in self._queue:
            self._queue.remove(turn)
            turn.host.is_queued = self._find(turn.host) is not None

    def _give_up(self, host: ModelHost, message: str) -> None:
        turn = self._find(host)
        if turn is None:
            return
        if not turn.done.done():
            turn.done.set_result(Unavailable(message, retry_after_s=1.0))
        if turn.loading is not None:
            turn.loading.cancel()
        else:
            self._remove(turn)
        self._changed.set()

    async def _work(self) -> None:
        while self._queue:
            self._drop_unwanted()
            if not self._queue:
                return
            turn = self._queue[0]
            if not await self._makes_room(turn):
                continue
            turn.loading = asyncio.get_running_loop().create_task(self._load(turn.host))
            await asyncio.wait((turn.loading,))
            self._remove(turn)
            self._settle(turn)

    def _settle(self, turn: LoadTurn) -> None:
        assert turn.loading is not None
        if turn.loading.cancelled():
            error: ImpError | None = Unavailable(f"the load of model {turn.host.id!r} was given up")
        else:
            error = None if turn.loading.exception() is None else load_failed(turn.host)
        if not turn.done.done():
            turn.done.set_result(error)
        turn.host.tell()
        self._trim()

    def _drop_unwanted(self) -> None:
        for turn in [turn for turn in self._queue if not turn.is_wanted]:
            self._remove(turn)
            turn.done.cancel()
            turn.host.tell()

    async def _load(self, host: ModelHost) -> None:
        async with host.changing:
            if not self.is_up(host):
                try:
                    await host.load(self._pool)
                except Exception:
                    self._note_failure(host)
                    raise
            host.was_used()

    def _note_failure(self, host: ModelHost) -> None:
        host.failed_s = self._clock()
        _log.warning("model %s can't be loaded: %s", host.id, host.failure and host.failure.message)

    # --- room -----------------------------------------------------------------------------------

    async def _makes_room(self, turn: LoadTurn) -> bool:
        """Lets idle models go until there is room; False if the turn is over: not wanted any more, or in vain."""
        is_sound = False
        while turn in self._queue and turn.is_wanted:
            if not turn.host.on_demand or not self._is_full(turn.host):
                return True
            if not is_sound:
                is_sound = await self._is_sound(turn)
                continue
            self._changed.clear()
            victim = self._longest_idle()
            if victim is not None:
                await self.let_go(victim, "unloaded")
            else:
                await self._changed.wait()
        return False

    async def _is_sound(self, turn: LoadTurn) -> bool:
        """Nobody goes for a model whose files can't be read: its turn ends here."""
        try:
            await turn.host.check(self._pool)
        except Exception:
            self._note_failure(turn.host)
            self._remove(turn)
            if not turn.done.done():
                turn.done.set_result(load_failed(turn.host))
            turn.host.tell()
            return False
        return True

    def _in_memory(self) -> list[ModelHost]:
        """Those that are about to leave are still there."""
        return [h for h in self._hosts() if h.on_demand and (self.is_up(h) or h in self._leaving)]

    def _is_full(self, coming: ModelHost | None = None) -> bool:
        """With `coming`, if one comes. A model that is too large by itself may be the only one."""
        there = self._in_memory()
        n_models, n_bytes = len(there), sum(host.memory_bytes for host in there)
        if coming is not None:
            n_models, n_bytes = n_models + 1, n_bytes + coming.memory_bytes
        too_many = 0 < self._room.n_models < n_models
        return too_many or (n_models > 1 and 0 < self._room.n_bytes < n_bytes)

    def _longest_idle(self) -> ModelHost | None:
        states = ("ready", "restarting")
        idle = [
            host
            for host in self._in_memory()
            if host.is_idle and host.client.state in states and host not in self._leaving
        ]
        return min(idle, key=lambda host: host.used_s, default=None)

    def _trim(self) -> None:
        """What turned out larger than it was thought to be makes others go, as soon as they are idle."""
        if not self._is_full():
            return
        newest = max(self._in_memory(), key=lambda host: host.used_s)
        victim = self._longest_idle()
        if victim is not None and victim is not newest:
            self.let_go(victim, "unloaded").add_done_callback(lambda _: self._trim())

    async def _end(self, host: ModelHost, rest: Rest, limit_s: float) -> None:
        host.tell()
        self._leaving.add(host)
        try:
            async with host.changing:
                host.rest = rest  # a load that was given up has put back what was before it
                await self._finished(host, limit_s)
                await host.put_to_rest()
        finally:
            self._leaving.discard(host)
            host.tell()
            self._changed.set()

    async def _finished(self, host: ModelHost, limit_s: float) -> None:
        """Waits until nobody uses it, for at most `limit_s`."""
        end_s = self._clock() + limit_s
        while host.queue_depth and self._clock() < end_s:
            await asyncio.sleep(0.02)

    # --- idleness -------------------------------------------------------------------------------

    def was_used(self) -> None:
        """Told by hosts: somebody has left one."""
        self._changed.set()
        self._trim()

    def _close_texts(self) -> None:
        """Of models that aren't in memory, the text sides that nobody has used for a while; and the oldest of many."""
        idle = [h for h in self._hosts() if h.rest == "unloaded" and h.text is not None and not h.is_read]
        idle = [h for h in idle if not h.is_queued and h not in self._leaving]
        idle.sort(key=lambda host: host.read_s, reverse=True)
        for place, host in enumerate(idle):
            if place >= _MOST_TEXTS or self._clock() - host.read_s > _TEXT_S:
                task = host.close_text()
                self._resting.add(task)
                task.add_done_callback(self._resting.discard)

    async def watch(self) -> None:
        """Puts models to sleep that nobody has used for `engine.idle_unload_s`."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self._changed.set()  # an engine that starts again, or fails to, tells nobody here
            self._close_texts()
            for host in self._hosts():
                limit_s = host.config.engine.idle_unload_s
                idle_s = self._clock() - host.used_s
                if limit_s and idle_s >= limit_s and host.is_idle and self.is_up(host) and host.state == "ready":
                    _log.info("model %s sleeps: nobody has asked it for %g s", host.id, limit_s)
                    self.let_go(host, "sleeping")


def load_failed(host: ModelHost) -> ModelLoadFailed:
    cause = host.failure.message if host.failure is not None else "its engine ended"
    return ModelLoadFailed(f"model {host.id!r} can't be loaded: {cause}")
