"""The engine process under faults: killed, stalled, refused; its client always gets an answer."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imp_server.config import Config
from imp_server.core import EngineCrashed, EngineRestarting, ImpError, InvalidModel, ModelFileMissing, Unavailable
from imp_server.engine.build import build_engine
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.client.process import ProcessEngine

from tests.engine.tiny_engine import ask, request
from tests.models.tiny_gguf import write_tiny_llama


def said(engine: ProcessEngine) -> str:
    """Its state, read anew."""
    return engine.state


IDS = np.random.default_rng(3).integers(0, 250, 600).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", context=2048)


def config(**values: Any) -> Config:
    plain = {"engine.backend": "reference", "kv_cache.max_blocks": 512, "engine.restart_backoff_s": 0.05}
    return Config.of(plain | {k.replace("__", "."): v for k, v in values.items()})


@asynccontextmanager
async def running(path: Path, **values: Any) -> AsyncIterator[ProcessEngine]:
    engine = ProcessEngine(path, "tiny", config(**values))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
        assert engine.pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(engine.pid, 0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 90))


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.01)


def test_same_ids_as_inline_and_a_clean_end(model: Path) -> None:
    stages: list[str] = []

    async def body() -> None:
        inline = InlineEngine(lambda emit, post: build_engine(str(model), "tiny", config().for_engine(), emit, post))
        await inline.start()
        engine = ProcessEngine(model, "tiny", config())
        await engine.start(lambda stage, value: stages.append(stage))
        assert engine.info.backend == "reference" and engine.info.context_length == 2048
        for n in (1, 3):
            here = await ask(inline, request(inline, IDS[:50], 20, n=n, logprobs=2))
            there = await ask(engine, request(engine, IDS[:50], 20, n=n, logprobs=2))
            assert [(a.ids, a.logprobs) for a in here] == [(a.ids, a.logprobs) for a in there]
        counters, rows = await engine.stats()
        assert counters["grammar_dead_ends_total"] == 0 and rows == ()
        generation = await engine.submit(request(engine, IDS[:5], 100))
        draining = asyncio.ensure_future(engine.drain(20.0))
        assert sum(len(delta.ids) // 4 for delta in [d async for d in generation]) == 100
        await draining
        assert engine.state == "stopped"
        await inline.stop()

    run(body)
    assert {"open", "read"} <= set(stages)


def test_what_was_stopped_starts_again(model: Path) -> None:
    """A model that sleeps is one whose process has ended; what is known of it stays."""

    async def body() -> None:
        engine = ProcessEngine(model, "tiny", config())
        await engine.start()
        first = (await ask(engine, request(engine, IDS[:50], 20)))[0].ids
        await engine.stop()
        assert said(engine) == "stopped" and engine.info.context_length == 2048
        with pytest.raises(Unavailable):
            await engine.submit(request(engine, IDS[:5], 1))
        await engine.start()
        assert (await ask(engine, request(engine, IDS[:50], 20)))[0].ids == first
        await engine.stop()
        model.rename(model.with_suffix(".away"))
        try:
            with pytest.raises(ModelFileMissing):
                await engine.start()
        finally:
            model.with_suffix(".away").rename(model)
        assert said(engine) == "failed" and engine.n_crashes == 0

    run(body)


def test_kill_under_load_fails_or_retries_each_request_once(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What had tokens fails with engine_crashed, what had none is answered by the restarted process."""
    caplog.set_level(logging.WARNING, "imp_server")

    async def body() -> None:
        async with running(model, scheduler__max_rows=4) as engine:
            plain = (await ask(engine, request(engine, IDS[:30], 150)))[0].ids
            busy = [await engine.submit(request(engine, IDS[:30], 2000)) for _ in range(4)]
            for generation in busy:
                while not (await anext(generation)).ids:
                    pass
            queued = [asyncio.ensure_future(ask(engine, request(engine, IDS[:30], 150))) for _ in range(3)]
            await until(lambda: len(engine._requests) == 7)
            await asyncio.sleep(0.05)
            assert engine.pid
            os.kill(engine.pid, signal.SIGKILL)
            outcomes = await asyncio.gather(*(_drain(g) for g in busy))
            assert all(isinstance(o, EngineCrashed) and o.status == 500 for o in outcomes)
            with pytest.raises(EngineRestarting):
                await engine.submit(request(engine, IDS[:5], 1))
            for answers in await asyncio.gather(*queued):
                assert answers[0].ids == plain
            assert engine.n_crashes == 1 and engine.state == "ready"
            assert (await ask(engine, request(engine, IDS[:30], 150)))[0].ids == plain

    run(body)
    assert "ended by SIGKILL" in caplog.text and "answers again" in caplog.text


async def _drain(generation: Any) -> ImpError | None:
    try:
        async for _ in generation:
            pass
    except ImpError as error:
        return error
    return None


def test_three_crashes_by_one_request_refuse_it_and_no_bystander(model: Path) -> None:
    """Killed three times while the same request ran: the one that only waited behind it is answered each time."""

    async def body() -> None:
        async with running(model, scheduler__max_rows=1) as engine:
            for _ in range(3):
                poison = await engine.submit(request(engine, [1, 2, 3], 2000, digest="poison"))
                while not (await anext(poison)).ids:
                    pass
                waiting = asyncio.ensure_future(ask(engine, request(engine, [4, 5], 5, digest="bystander")))
                await until(lambda: len(engine._requests) == 2)
                assert engine.pid
                os.kill(engine.pid, signal.SIGKILL)
                assert isinstance(await _drain(poison), EngineCrashed)
                assert len((await waiting)[0].ids) == 5
            with pytest.raises(EngineCrashed, match="refused"):
                await engine.submit(request(engine, [1, 2, 3], 2000, digest="poison"))
            assert len((await ask(engine, request(engine, [4, 5], 5, digest="bystander")))[0].ids) == 5

    run(body)


def test_a_hung_process_is_killed_and_replaced(model: Path) -> None:
    async def body() -> None:
        async with running(model, engine__watchdog_s=1.0, engine__heartbeat_s=0.2) as engine:
            generation = await engine.submit(request(engine, IDS[:5], 2000))
            while not (await anext(generation)).ids:
                pass
            assert engine.pid
            os.kill(engine.pid, signal.SIGSTOP)
            assert isinstance(await _drain(generation), EngineCrashed)
            await until(lambda: engine.state == "ready")
            assert len((await ask(engine, request(engine, IDS[:5], 5)))[0].ids) == 5

    run(body)


def test_who_asks_an_engine_that_dies_is_told_what_one_that_is_down_has(model: Path) -> None:
    """Its pins and counts are gone with it: that is no error of the request that asked for them."""

    async def body() -> None:
        async with running(model) as engine:
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGSTOP)
            closing, asking = asyncio.ensure_future(engine.close_session("a")), asyncio.ensure_future(engine.stats())
            await asyncio.sleep(0.05)
            os.kill(engine.pid, signal.SIGKILL)
            assert await closing == 0
            assert (await asking).counters == {"engine_crashes_total": 1.0}
            await until(lambda: engine.state == "ready")

    run(body)


def test_a_pause_of_both_processes_is_no_hang(model: Path) -> None:
    async def body() -> None:
        async with running(model, engine__watchdog_s=1.0, engine__heartbeat_s=0.2) as engine:
            generation = await engine.submit(request(engine, IDS[:5], 200))
            await anext(generation)
            assert engine.pid
            os.kill(engine.pid, signal.SIGSTOP)
            time.sleep(2.5)  # the event loop, too, stands still
            os.kill(engine.pid, signal.SIGCONT)
            assert not isinstance(await _drain(generation), ImpError)
            assert engine.n_crashes == 0

    run(body)


def test_a_dropped_client_frees_its_row_and_a_stalled_one_harms_nobody(model: Path) -> None:
    async def body() -> None:
        async with running(model, scheduler__max_rows=2) as engine:
            gone = await engine.submit(request(engine, IDS[:600], 2000))
            stalled = await engine.submit(request(engine, IDS[:5], 500))
            await anext(gone)
            gone.cancel()
            began = time.monotonic()
            while (await engine.stats())[0]["rows_running"] > 1:
                assert time.monotonic() - began < 0.25
            assert len((await ask(engine, request(engine, IDS[:5], 50)))[0].ids) == 50
            await until(lambda: len(engine._requests) == 0)
            deltas = [delta async for delta in stalled]
            assert len(deltas) == 1 and len(deltas[0].ids) == 4 * 500

    run(body)


def test_an_unreadable_model_is_one_clear_error(tmp_path: Path, model: Path) -> None:
    async def body() -> None:
        broken = tmp_path / "broken.gguf"
        broken.write_bytes(model.read_bytes()[:-5000])
        for path, kind in ((broken, InvalidModel), (tmp_path / "absent.gguf", ModelFileMissing)):
            engine = ProcessEngine(path, "tiny", config())
            with pytest.raises(kind) as caught:
                await engine.start()
            assert engine.state == "failed" and caught.value.exit_code in (4, 5)
            with pytest.raises(Unavailable):
                await engine.submit(request(engine, [1], 1))

    run(body)
